package intake

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/invoice"
)

func extract(t *testing.T, path string) Extract {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := invoice.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	e, err := FromDocument(d)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const data = "../../../examples/invoices/data/"

func TestALineIsReckonedFromItsQuantityAndPrice(t *testing.T) {
	for name, c := range map[string]struct {
		line     Line
		findings []string
		err      string
	}{
		"it comes out":                      {Line{Number: 1, Net: "21.00", Quantity: "2", Price: "10.50"}, nil, ""},
		"the price is for a hundred":        {Line{Number: 1, Net: "3.15", Quantity: "30", Price: "10.50", Base: "100"}, nil, ""},
		"its own discount is taken off":     {Line{Number: 1, Net: "19.00", Quantity: "2", Price: "10.50", Adjusted: "-2"}, nil, ""},
		"two hundredths are borne":          {Line{Number: 1, Net: "21.02", Quantity: "2", Price: "10.50"}, nil, ""},
		"three are not":                     {Line{Number: 7, Net: "21.03", Quantity: "2", Price: "10.50"}, []string{"line 7: 2 at 10.5 each 1 comes to 21, and 21.03 is charged"}, ""},
		"a credit counts backwards":         {Line{Number: 1, Net: "-21", Quantity: "-2", Price: "10.5"}, nil, ""},
		"without a price nothing is said":   {Line{Number: 1, Net: "21"}, nil, ""},
		"a price of no pieces":              {Line{Number: 2, Net: "1", Quantity: "1", Price: "1", Base: "0"}, []string{"line 2: its price is for 0 pieces; want more than none"}, ""},
		"a net amount that is no number":    {Line{Net: "x"}, nil, `net "x": want a decimal number`},
		"a price that would take for ever":  {Line{Net: "1", Quantity: "1", Price: "1e999999"}, nil, `price "1e999999": want`},
		"a quantity longer than any number": {Line{Net: "1", Quantity: strings.Repeat("9", 99), Price: "1"}, nil, "quantity "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := CheckLine(c.line)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if c.findings == nil {
				c.findings = []string{}
			}
			if diff := cmp.Diff(c.findings, got.Findings); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryLineOfTheExamplesComesOut(t *testing.T) {
	files, err := filepath.Glob(data + "*.xml")
	if err != nil || len(files) < 5 {
		t.Fatalf("files %v, error %v", files, err)
	}
	for _, file := range files {
		if strings.Contains(file, "not-an-invoice") {
			continue
		}
		for _, l := range extract(t, file).Lines {
			if got, err := CheckLine(l); err != nil || len(got.Findings) > 0 {
				t.Errorf("%s: %v, error %v", file, got.Findings, err)
			}
		}
	}
}

func TestAnInvoiceHasOneKeyHoweverItsNumberIsWritten(t *testing.T) {
	base := Extract{Summary: invoice.Summary{ID: "RE-2026/1", Kind: invoice.KindInvoice, Seller: "Nord GmbH", Issued: "2026-01-02", Payable: "5"}, VAT: "DE 1"}
	for name, c := range map[string]struct {
		change   func(*Extract)
		same     bool
		sameLook bool
	}{
		"the number in other writing":       {func(e *Extract) { e.ID = "re 2026-1" }, true, true},
		"another number":                    {func(e *Extract) { e.ID = "RE-2026/2" }, false, true},
		"another vendor":                    {func(e *Extract) { e.VAT = "DE2" }, false, false},
		"the same vendor under a new name":  {func(e *Extract) { e.Seller = "Nord AG" }, true, true},
		"a credit note of the same number":  {func(e *Extract) { e.Kind = invoice.KindCreditNote }, false, true},
		"another amount of the same number": {func(e *Extract) { e.Payable = "6" }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			other := base
			c.change(&other)
			if same := other.Key() == base.Key(); same != c.same {
				t.Errorf("same key: %t", same)
			}
			if same := other.LookAlike() == base.LookAlike(); same != c.sameLook {
				t.Errorf("same look: %t", same)
			}
		})
	}
}

func TestVendorsAndOrders(t *testing.T) {
	vendors := []Vendor{{ID: "V1", Name: "Nord GmbH", VAT: "DE1", Accounts: []string{"DE02 1203"}}, {ID: "V2", Name: "Süd AG"}}
	orders := []Order{{"PO-1", "V1", "EUR", "100.00"}, {"PO-2", "V2", "EUR", "9"}, {"PO-3", "V1", "SEK", "9"}}
	at := func(change func(*Extract)) *Extract {
		e := &Extract{Summary: invoice.Summary{Seller: "Nord GmbH", Currency: "EUR", Net: "99.99"}, VAT: "DE1", Account: "DE021203", Order: "po 1"}
		change(e)
		return e
	}
	for name, c := range map[string]struct {
		e            *Extract
		vendor       string
		order        string
		wantFindings []string
	}{
		"everything fits":                 {at(func(*Extract) {}), "V1", "PO-1", nil},
		"by name where there is no VAT":   {at(func(e *Extract) { e.VAT, e.Seller, e.Account, e.Order = "", "Süd AG", "", "PO-2"; e.Net = "9.00" }), "V2", "PO-2", nil},
		"a stranger":                      {at(func(e *Extract) { e.VAT, e.Seller = "DE9", "Fremd" }), "", "PO-1", []string{`vendor "Fremd" is not known`}},
		"an account that changed":         {at(func(e *Extract) { e.Account = "XX1" }), "V1", "PO-1", []string{`account "XX1" is none that is known of vendor V1`}},
		"another name":                    {at(func(e *Extract) { e.Seller = "Nord AG" }), "V1", "PO-1", []string{`vendor V1 is known as "Nord GmbH", the invoice says "Nord AG"`}},
		"no order":                        {at(func(e *Extract) { e.Order = "" }), "V1", "", []string{"no purchase order is named"}},
		"an order that nobody made":       {at(func(e *Extract) { e.Order = "PO-9" }), "V1", "", []string{`purchase order "PO-9" is not known`}},
		"an order of somebody else":       {at(func(e *Extract) { e.Order = "PO-2"; e.Net = "1" }), "V1", "PO-2", []string{"purchase order PO-2 is of vendor V2, the invoice of V1"}},
		"more than was ordered":           {at(func(e *Extract) { e.Net = "100.01" }), "V1", "PO-1", []string{"purchase order PO-1 is over 100 EUR, the invoice over 100.01"}},
		"an order in another currency":    {at(func(e *Extract) { e.Order = "PO-3" }), "V1", "PO-3", []string{"purchase order PO-3 is in SEK, the invoice in EUR"}},
		"an invoice without a net amount": {at(func(e *Extract) { e.Net = "" }), "V1", "PO-1", []string{`purchase order PO-1: "100.00" and "" cannot be compared`}},
	} {
		t.Run(name, func(t *testing.T) {
			v, o := MatchVendor(vendors, c.e), MatchOrder(orders, vendors, c.e)
			if v.Vendor != c.vendor || o.Order != c.order {
				t.Errorf("vendor %q, order %q", v.Vendor, o.Order)
			}
			if diff := cmp.Diff(c.wantFindings, append([]string(nil), append(v.Findings, o.Findings...)...)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatBecomesOfAnInvoice(t *testing.T) {
	plain := extract(t, data+"plain-eur.xml")
	broken := extract(t, data+"broken-total.xml")
	for name, c := range map[string]struct {
		e       Extract
		checks  Checks
		want    string
		reasons int
		notes   int
	}{
		"right, of somebody known":        {plain, Checks{}, Pay, 0, 0},
		"right, with something to notice": {plain, Checks{Vendor: VendorReport{Findings: []string{"a"}}, Order: OrderReport{Findings: []string{"b"}}}, Pay, 0, 2},
		"wrong in sum":                    {broken, Checks{}, Dispute, 1, 0},
		"a line that does not reckon":     {plain, Checks{Lines: []LineReport{{1, []string{"a"}}}}, Pay, 0, 1},
		"in already":                      {plain, Checks{Duplicate: DuplicateReport{Of: "r1"}}, Duplicate, 1, 0},
		"wrong, and in already":           {broken, Checks{Duplicate: DuplicateReport{Of: "r1"}}, Duplicate, 1, 0},
		"a hundred notes are cut off":     {plain, Checks{Lines: []LineReport{{1, make([]string, 100)}}}, Pay, 0, maxNotes + 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(&c.e, c.checks)
			if got.Verdict != c.want || len(got.Reasons) != c.reasons || len(got.Payment.Notes) != c.notes {
				t.Errorf("%+v", got)
			}
			if letter := Write(got); letter.To == "" || !strings.Contains(letter.Text, c.e.ID) && c.want != Dispute {
				t.Errorf("letter %+v", letter)
			}
		})
	}
}

func TestMasterDataIsReadStrictly(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"vendors":            {`[{"id":"V1","name":"n","vat":"","accounts":[]}]`, ""},
		"an unknown field":   {`[{"id":"V1","iban":"x"}]`, "unknown field"},
		"no list":            {`{}`, "cannot unmarshal"},
		"nothing":            {``, "EOF"},
		"more than is taken": {"[" + strings.Repeat(" ", maxMaster) + "]", "more than"},
	} {
		_, err := ReadMaster[Vendor](strings.NewReader(c.text))
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
