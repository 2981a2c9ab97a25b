package tally_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/tally"
)

const data = "../../../examples/invoices/data"

func file(t testing.TB, name string) invoice.File {
	text, err := os.ReadFile(filepath.Join(data, name))
	if err != nil {
		t.Fatal(err)
	}
	return invoice.File{Name: name, Text: string(text)}
}

func TestASetIsReconciled(t *testing.T) {
	wrong := func(name, id string, rules ...invoice.Rule) tally.Invalid {
		return tally.Invalid{Name: name, ID: id, Rules: rules, Problem: "its arithmetic is wrong"}
	}
	for name, c := range map[string]struct {
		files []string
		want  tally.Report
	}{
		"a credit note is taken off": {[]string{"plain-eur.xml", "credit-note.xml"},
			tally.Report{Totals: map[string]string{"EUR": "714.36"}}},
		"each currency has its total": {[]string{"plain-eur.xml", "rounding-and-prepaid-sek.xml", "negative-total.xml"},
			tally.Report{Totals: map[string]string{"EUR": "892.50", "SEK": "3764.75"}}},
		"wrong arithmetic is in no total": {[]string{"broken-total.xml", "plain-eur.xml", "broken-vat.xml"},
			tally.Report{Totals: map[string]string{"EUR": "892.50"}, Invalid: []tally.Invalid{
				wrong("broken-total.xml", "MB-2026-0440", invoice.RuleTaxInclusive), wrong("broken-vat.xml", "MB-2026-0441", invoice.RuleTaxOfRow)}}},
		"an invoice that comes twice counts once": {[]string{"plain-eur.xml", "plain-eur.xml"},
			tally.Report{Totals: map[string]string{"EUR": "892.50"}, Invalid: []tally.Invalid{
				{Name: "plain-eur.xml", ID: "NB-2026-0101", Problem: `the same invoice as in "plain-eur.xml"`}}}},
		"what is no invoice is listed, each time": {[]string{"not-an-invoice.xml", "not-an-invoice.xml"},
			tally.Report{Totals: map[string]string{}, Invalid: []tally.Invalid{
				{Name: "not-an-invoice.xml", Problem: "is no invoice"}, {Name: "not-an-invoice.xml", Problem: "is no invoice"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			// One document a shard: nothing may depend on what shares a shard.
			var shards [][]tally.Finding
			for _, name := range c.files {
				shards = append(shards, []tally.Finding{tally.Examine(file(t, name))})
			}
			got, err := tally.Reconcile(shards)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Invalid { // the words of package invoice are not ours to fix
				if strings.HasPrefix(got.Invalid[i].Problem, `file "not-an-invoice.xml": read UBL document`) {
					got.Invalid[i].Problem = "is no invoice"
				}
			}
			c.want.Shards, c.want.Documents = len(c.files), len(c.files)
			if c.want.Invalid == nil {
				c.want.Invalid = []tally.Invalid{}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

// Sellers number their invoices as they like.
func TestTheSameNumberOfAnotherSellerIsAnotherInvoice(t *testing.T) {
	mine := file(t, "plain-eur.xml")
	other := mine
	other.Text = strings.Replace(mine.Text, "Nordlicht Büro GmbH</cbc:RegistrationName>", "Südlicht Büro GmbH</cbc:RegistrationName>", 1)
	if a, b := tally.Examine(mine), tally.Examine(other); a.ID != b.ID || a.Unit == b.Unit {
		t.Errorf("ids %q and %q, units %q and %q; want one id, two units", a.ID, b.ID, a.Unit, b.Unit)
	}
}

func TestShardsAreEvenAndHoldEveryDocument(t *testing.T) {
	for name, c := range map[string]struct {
		n, wanted int
		want      []int
	}{
		"two shards of five":              {5, 2, []int{2, 5}},
		"no shard is empty":               {3, 10, []int{1, 2, 3}},
		"ten unless told otherwise":       {20, 0, []int{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}},
		"no shard holds more than it may": {250, 1, []int{83, 166, 250}},
	} {
		t.Run(name, func(t *testing.T) {
			ends, err := tally.Split(c.n, c.wanted)
			if diff := cmp.Diff(c.want, ends); err != nil || diff != "" {
				t.Errorf("error %v, ends (-want +got):\n%s", err, diff)
			}
		})
	}
	for name, c := range map[string][2]int{
		"no documents":        {0, 1},
		"too many documents":  {tally.MaxDocuments + 1, 1},
		"shards below nought": {1, -1},
		"too many shards":     {1, tally.MaxDocuments + 1},
	} {
		if ends, err := tally.Split(c[0], c[1]); err == nil {
			t.Errorf("%s: split at %v, without an error", name, ends)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, tally.MaxDocuments).Draw(t, "documents")
		ends, err := tally.Split(n, rapid.IntRange(0, tally.MaxDocuments).Draw(t, "shards"))
		if err != nil || ends[len(ends)-1] != n {
			t.Fatalf("split at %v, error %v", ends, err)
		}
		var sizes []int
		for i, end := range ends {
			sizes = append(sizes, end-slices.Concat([]int{0}, ends)[i])
		}
		if low, high := slices.Min(sizes), slices.Max(sizes); low < 1 || high > tally.MaxPerShard || high-low > 1 {
			t.Fatalf("shards of %d to %d documents", low, high)
		}
	})
}

func TestTotalsDoNotDependOnTheShards(t *testing.T) {
	names, _ := filepath.Glob(data + "/*.xml")
	var findings []tally.Finding
	for _, name := range names {
		findings = append(findings, tally.Examine(file(t, filepath.Base(name))))
	}
	want, err := tally.Reconcile([][]tally.Finding{findings})
	if err != nil || want.Documents < 9 {
		t.Fatalf("report %+v, error %v", want, err)
	}
	for shards := 1; shards <= len(findings); shards++ {
		ends, _ := tally.Split(len(findings), shards)
		var parts [][]tally.Finding
		from := 0
		for _, end := range ends {
			// As a durable step keeps it.
			text, _ := json.Marshal(findings[from:end])
			var part []tally.Finding
			if err := json.Unmarshal(text, &part); err != nil {
				t.Fatal(err)
			}
			parts, from = append(parts, part), end
		}
		got, err := tally.Reconcile(parts)
		want.Shards = shards
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d shards: error %v, report (-want +got):\n%s", shards, err, diff)
		}
	}
}

func TestAFindingIsSmallWhateverTheDocumentHolds(t *testing.T) {
	f := file(t, "plain-eur.xml")
	f.Name = strings.Repeat("ü", 10_000)
	f.Text = strings.Replace(f.Text, "NB-2026-0101", strings.Repeat("Ω", 2000), 1)
	for _, f := range []invoice.File{f, {Name: f.Name, Text: "<" + strings.Repeat("x", 10_000)}} {
		finding := tally.Examine(f)
		text, err := json.Marshal(finding)
		if err != nil || len(text) > 2000 || strings.Contains(string(text), "\ufffd") {
			t.Errorf("%d bytes, error %v: %s", len(text), err, text)
		}
	}
}

func TestFindingsOfSomebodyElseAreRefused(t *testing.T) {
	if r, err := tally.Reconcile([][]tally.Finding{{{Name: "a", Currency: "EUR", Amount: "ten"}}}); err == nil {
		t.Errorf("report %+v, without an error", r)
	}
}
