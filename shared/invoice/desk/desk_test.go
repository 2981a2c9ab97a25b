package desk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/desk"
)

func document(t testing.TB, name string) *invoice.Document {
	text, err := os.ReadFile(filepath.Join("../../../examples/invoices/data", name))
	if err != nil {
		t.Fatal(err)
	}
	d, err := invoice.File{Name: name, Text: string(text)}.Read()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAQuestionIsAnsweredFromTheDocument(t *testing.T) {
	for name, c := range map[string]struct {
		file, question string
		want           string
		wantTopics     []desk.Topic
	}{
		"what is payable": {"plain-eur.xml", "How much do we owe?",
			"Verzonnen Tulpen B.V. owes Nordlicht Büro GmbH EUR 892.50.", []desk.Topic{desk.TopicPayable}},
		"a credit note is owed by the seller": {"credit-note.xml", "What is payable?",
			"Nordlicht Büro GmbH owes Verzonnen Tulpen B.V. EUR 178.14.", []desk.Topic{desk.TopicPayable}},
		"so is an invoice below nought": {"negative-total.xml", "total?",
			"Fiktiva Kontor AB owes Nordlicht Büro GmbH SEK 524.25.", []desk.Topic{desk.TopicPayable}},
		"when": {"plain-eur.xml", "WHEN?", "It is due on 2026-04-01.", []desk.Topic{desk.TopicDue}},
		"when, where it does not say": {"credit-note.xml", "Is it overdue?",
			"It names no due date.", []desk.Topic{desk.TopicDue}},
		"two things at once, in a fixed order": {"plain-eur.xml", "By what date do I pay?",
			"Verzonnen Tulpen B.V. owes Nordlicht Büro GmbH EUR 892.50.\nIt is due on 2026-04-01.",
			[]desk.Topic{desk.TopicPayable, desk.TopicDue}},
		"VAT": {"plain-eur.xml", "And the VAT?",
			"VAT is EUR 142.50 on 750.00 without VAT: 142.50 at 19 % in category S.", []desk.Topic{desk.TopicVAT}},
		"VAT at two rates": {"allowances-and-charges.xml", "tax rates",
			"VAT is EUR 259.80 on 1667.39 without VAT: 226.55 at 19 % in category S; 33.25 at 7 % in category S.", []desk.Topic{desk.TopicVAT}},
		"right arithmetic": {"plain-eur.xml", "is it valid",
			"Its arithmetic is right: it keeps the rules BR-CO-10 to BR-CO-17.", []desk.Topic{desk.TopicViolations}},
		"wrong arithmetic": {"broken-total.xml", "is anything wrong?",
			"Its arithmetic is wrong: BR-CO-15 at /Invoice/cac:LegalMonetaryTotal/cbc:TaxInclusiveAmount (found 1865.40, expected 1856.40).",
			[]desk.Topic{desk.TopicViolations}},
		"who": {"credit-note.xml", "who is the supplier?",
			"Credit note NB-2026-C011 is from Nordlicht Büro GmbH to Verzonnen Tulpen B.V., issued on 2026-03-12.",
			[]desk.Topic{desk.TopicParties}},
		"a word within a word is no keyword": {"plain-eur.xml", "when is the duel of the vats",
			"It is due on 2026-04-01.", []desk.Topic{desk.TopicDue}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := desk.Answer(c.question, document(t, c.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.Answer); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.wantTopics, got.Topics); diff != "" {
				t.Errorf("topics (-want +got):\n%s", diff)
			}
			if wantValid := !strings.HasPrefix(c.file, "broken"); *got.Valid != wantValid || got.Facts.ID == "" {
				t.Errorf("valid %t, facts %+v", *got.Valid, got.Facts)
			}
		})
	}
}

func TestWithoutAKeywordAllIsTold(t *testing.T) {
	got, err := desk.Answer("tell me", document(t, "plain-eur.xml"))
	want := []desk.Topic{desk.TopicParties, desk.TopicPayable, desk.TopicDue, desk.TopicVAT, desk.TopicViolations}
	if diff := cmp.Diff(want, got.Topics); err != nil || diff != "" {
		t.Errorf("error %v, topics (-want +got):\n%s", err, diff)
	}
	if lines := strings.Split(got.Answer, "\n"); len(lines) != len(want) {
		t.Errorf("answer has %d lines: %s", len(lines), got.Answer)
	}
}

func TestWithoutADocumentItAsksForOne(t *testing.T) {
	got, err := desk.Answer("what is due?", nil)
	if err != nil || got.Facts != nil || got.Valid != nil || got.Topics == nil || !strings.HasPrefix(got.Answer, "Which invoice?") {
		t.Errorf("reply %+v, error %v", got, err)
	}
}

func TestAQuestionIsBounded(t *testing.T) {
	for _, question := range []string{"", " \n", strings.Repeat("due ", desk.MaxQuestion/4) + "?"} {
		if got, err := desk.Answer(question, nil); !errors.Is(err, desk.ErrQuestion) {
			t.Errorf("question of %d bytes: reply %+v, error %v", len(question), got, err)
		}
	}
}

func TestAnAnswerIsShortWhateverTheDocumentHolds(t *testing.T) {
	d := document(t, "broken-vat.xml")
	long := strings.Repeat("Ü", 10_000)
	d.ID, d.Seller, d.Buyer, d.DueDate, d.IssueDate = long, long, long, long, long
	row := d.TaxTotals[0].Breakdown[0]
	row.Category, row.Tax = long, decimal.NewFromInt(-999)
	for range 3000 {
		d.TaxTotals[0].Breakdown = append(d.TaxTotals[0].Breakdown, row)
	}
	got, err := desk.Answer("everything", d)
	if err != nil || len(got.Answer) > 5000 || strings.Contains(got.Answer, "\ufffd") {
		t.Errorf("error %v, %d bytes: %.500s", err, len(got.Answer), got.Answer)
	}
	for _, part := range []string{"and 2996 rows more", "violations more"} {
		if !strings.Contains(got.Answer, part) {
			t.Errorf("the answer lacks %q: %.5000s", part, got.Answer)
		}
	}
}
