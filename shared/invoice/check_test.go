package invoice

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
)

const everySum = "testdata/every-sum.xml"

// TestChangingOneAmountBreaksExactlyTheRulesThatUseIt is the heart of this
// package: a rule that is too lax misses its row, one that looks at the wrong
// amount adds a name to another.
func TestChangingOneAmountBreaksExactlyTheRulesThatUseIt(t *testing.T) {
	const (
		totals = "/Invoice/cac:LegalMonetaryTotal/cbc:"
		vat    = "/Invoice/cac:TaxTotal[1]"
	)
	for name, c := range map[string]struct {
		path, to  string
		wantRules string
	}{
		"nothing breaks nothing": {"/Invoice/cbc:ID", "other", ""},

		"a line's net amount breaks the sum of lines":                  {"/Invoice/cac:InvoiceLine[2]/cbc:LineExtensionAmount", "400.01", "BR-CO-10"},
		"a line's price is not looked at":                              {"/Invoice/cac:InvoiceLine[1]/cac:Price/cbc:PriceAmount", "1.00", ""},
		"the sum of lines breaks itself and the total without VAT":     {totals + "LineExtensionAmount", "1450.01", "BR-CO-10 BR-CO-13"},
		"the total without VAT breaks itself and the total with VAT":   {totals + "TaxExclusiveAmount", "1360.01", "BR-CO-13 BR-CO-15"},
		"the total with VAT breaks itself and the amount due":          {totals + "TaxInclusiveAmount", "1638.11", "BR-CO-15 BR-CO-16"},
		"the amount due breaks itself":                                 {totals + "PayableAmount", "1438.01", "BR-CO-16"},
		"the prepaid amount breaks the amount due":                     {totals + "PrepaidAmount", "200.01", "BR-CO-16"},
		"the rounding amount breaks the amount due":                    {totals + "PayableRoundingAmount", "-0.11", "BR-CO-16"},
		"no rounding where the amount due is rounded breaks it":        {totals + "PayableRoundingAmount", "0", "BR-CO-16"},
		"nothing prepaid where something was taken off breaks it":      {totals + "PrepaidAmount", "0", "BR-CO-16"},
		"the sum of allowances breaks itself and the total":            {totals + "AllowanceTotalAmount", "120.01", "BR-CO-11 BR-CO-13"},
		"the sum of charges breaks itself and the total":               {totals + "ChargeTotalAmount", "30.01", "BR-CO-12 BR-CO-13"},
		"an allowance breaks the sum of allowances":                    {"/Invoice/cac:AllowanceCharge[2]/cbc:Amount", "20.01", "BR-CO-11"},
		"a charge breaks the sum of charges":                           {"/Invoice/cac:AllowanceCharge[3]/cbc:Amount", "30.01", "BR-CO-12"},
		"a charge called an allowance breaks both sums":                {"/Invoice/cac:AllowanceCharge[3]/cbc:ChargeIndicator", "false", "BR-CO-11 BR-CO-12"},
		"an allowance called a charge breaks both sums":                {"/Invoice/cac:AllowanceCharge[1]/cbc:ChargeIndicator", " 1\n", "BR-CO-11 BR-CO-12"},
		"the VAT total breaks itself and the total with VAT":           {vat + "/cbc:TaxAmount", "278.11", "BR-CO-14 BR-CO-15"},
		"the VAT total in the tax currency is not added up":            {"/Invoice/cac:TaxTotal[2]/cbc:TaxAmount", "99.99", ""},
		"a row's VAT, beyond the tolerance, breaks the row and sum":    {vat + "/cac:TaxSubtotal[1]/cbc:TaxAmount", "233.50", "BR-CO-14 BR-CO-17"},
		"a row's VAT, within the tolerance, breaks the sum alone":      {vat + "/cac:TaxSubtotal[1]/cbc:TaxAmount", "233.49", "BR-CO-14"},
		"a row's VAT, below it by a unit, breaks the row and sum":      {vat + "/cac:TaxSubtotal[2]/cbc:TaxAmount", "44.60", "BR-CO-14 BR-CO-17"},
		"a taxable amount breaks its row":                              {vat + "/cac:TaxSubtotal[1]/cbc:TaxableAmount", "934.00", "BR-CO-17"},
		"a taxable amount whose VAT stays in the tolerance is left be": {vat + "/cac:TaxSubtotal[1]/cbc:TaxableAmount", "933.96", ""},
		"a rate breaks its row":                                        {vat + "/cac:TaxSubtotal[2]/cac:TaxCategory/cbc:Percent", "25", "BR-CO-17"},
		"a rate of zero wants no VAT":                                  {vat + "/cac:TaxSubtotal[2]/cac:TaxCategory/cbc:Percent", "0", "BR-CO-17"},
		"VAT on an exempt row breaks the row and the sum":              {vat + "/cac:TaxSubtotal[3]/cbc:TaxAmount", "0.50", "BR-CO-14 BR-CO-17"},
		"VAT on an exempt row that rounds to zero breaks the sum":      {vat + "/cac:TaxSubtotal[3]/cbc:TaxAmount", "0.49", "BR-CO-14"},
		"an exempt taxable amount breaks nothing":                      {vat + "/cac:TaxSubtotal[3]/cbc:TaxableAmount", "77", ""},
		"another document currency leaves no VAT total to add":         {"/Invoice/cbc:DocumentCurrencyCode", "NOK", "BR-CO-15"},
		"the tax currency as the document's takes the wrong VAT":       {"/Invoice/cbc:DocumentCurrencyCode", "EUR", "BR-CO-15"},
		"the same amount with other decimals breaks nothing":           {totals + "PayableAmount", "+01438", ""},
	} {
		t.Run(name, func(t *testing.T) {
			report := check(t, set(t, file(t, everySum), c.path, c.to))
			if diff := cmp.Diff(c.wantRules, rules(report)); diff != "" {
				t.Errorf("broken rules (-want +got):\n%s\n%+v", diff, report.Violations)
			}
			if report.Valid != (c.wantRules == "") {
				t.Errorf("valid = %t beside %q", report.Valid, rules(report))
			}
		})
	}
}

func TestLeavingOutAnElementCountsAsTheRuleSays(t *testing.T) {
	const totals = "/Invoice/cac:LegalMonetaryTotal/cbc:"
	plain := "../../examples/invoices/data/plain-eur.xml"
	for name, c := range map[string]struct {
		file      string
		paths     []string
		wantRules string
	}{
		"the sum of lines is mandatory":        {everySum, []string{totals + "LineExtensionAmount"}, "BR-CO-10 BR-CO-13"},
		"the total without VAT is mandatory":   {everySum, []string{totals + "TaxExclusiveAmount"}, "BR-CO-13 BR-CO-15"},
		"the total with VAT is mandatory":      {everySum, []string{totals + "TaxInclusiveAmount"}, "BR-CO-15 BR-CO-16"},
		"allowances need their sum":            {everySum, []string{totals + "AllowanceTotalAmount"}, "BR-CO-11 BR-CO-13"},
		"charges need their sum":               {everySum, []string{totals + "ChargeTotalAmount"}, "BR-CO-12 BR-CO-13"},
		"a sum of charges needs charges":       {everySum, []string{"/Invoice/cac:AllowanceCharge[3]"}, "BR-CO-12"},
		"a prepaid amount left out is zero":    {everySum, []string{totals + "PrepaidAmount"}, "BR-CO-16"},
		"a rounding amount left out is zero":   {everySum, []string{totals + "PayableRoundingAmount"}, "BR-CO-16"},
		"a row without rate wants no VAT":      {everySum, []string{"/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[2]/cac:TaxCategory/cbc:Percent"}, "BR-CO-17"},
		"an exempt row may have no rate":       {everySum, []string{"/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[3]/cac:TaxCategory/cbc:Percent"}, ""},
		"a taxed row needs its taxable amount": {everySum, []string{"/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[1]/cbc:TaxableAmount"}, "BR-CO-17"},
		"an exempt row is sure without it":     {everySum, []string{"/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[3]/cbc:TaxableAmount"}, ""},
		"a VAT total without rows is not summed": {plain, []string{
			"/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[1]"}, ""},
		"a total with VAT needs a VAT total": {plain, []string{"/Invoice/cac:TaxTotal[1]"}, "BR-CO-15"},
		"the tax currency's total is no substitute": {everySum, []string{
			"/Invoice/cac:TaxTotal[1]"}, "BR-CO-15"},
	} {
		t.Run(name, func(t *testing.T) {
			doc := file(t, c.file)
			for _, path := range c.paths {
				doc = drop(t, doc, path)
			}
			if diff := cmp.Diff(c.wantRules, rules(check(t, doc))); diff != "" {
				t.Errorf("broken rules (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTwoVATTotalsInTheDocumentCurrencyAreAmbiguous(t *testing.T) {
	doc := bytes.Replace(file(t, everySum), []byte(`"EUR">25.03`), []byte(`"SEK">25.03`), 1)
	want := []Violation{{RuleTaxInclusive, "", "1638.10", "/Invoice/cac:LegalMonetaryTotal/cbc:TaxInclusiveAmount"}}
	if diff := cmp.Diff(want, check(t, doc).Violations); diff != "" {
		t.Error(diff)
	}
}

// TestVATOfARowRoundsAndTolerates takes figures that were argued about where
// the standard's tests are kept: halves, negative invoices, rates near zero.
func TestVATOfARowRoundsAndTolerates(t *testing.T) {
	for name, c := range map[string]struct {
		taxable, percent, tax string
		wantOK                bool
		wantTax               string
	}{
		"a half is rounded up":                            {"100.50", "25", "25.13", true, "25.13"},
		"a half of a negative row is rounded away":        {"-100.50", "25", "-25.13", true, "-25.13"},
		"the tolerance is open below":                     {"100.00", "25", "24.00", false, "25.00"},
		"the tolerance is open above":                     {"100.00", "25", "26.00", false, "25.00"},
		"less than a unit is tolerated":                   {"100.00", "25", "25.99", true, "25.00"},
		"less than a unit is tolerated when negative":     {"-100.00", "25", "-24.01", true, "-25.00"},
		"a unit is not tolerated when negative":           {"-100.00", "25", "-26.00", false, "-25.00"},
		"the signs are not compared":                      {"100.00", "25", "-25.00", true, "25.00"},
		"a rate below a half percent counts as none":      {"1000.00", "0.4", "4.00", false, "0.00"},
		"a rate of a half percent counts":                 {"1000.00", "0.5", "5.00", true, "5.00"},
		"the product is exact before it is rounded":       {"1000000000000000.01", "33.333333", "333333330000000.00", true, "333333330000000.00"},
		"the product has no binary error":                 {"1.15", "100", "1.15", true, "1.15"},
		"VAT of minus a half rounds to zero without rate": {"5.00", "0", "-0.50", true, "0.00"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := taxOfRow(TaxSubtotal{
				Taxable: some(decimal.RequireFromString(c.taxable)),
				Percent: some(decimal.RequireFromString(c.percent)),
				Tax:     decimal.RequireFromString(c.tax),
			})
			if ok != c.wantOK || money(got.Decimal) != c.wantTax {
				t.Errorf("VAT %s of %s at %s %%: got %t, expected %s; want %t, %s",
					c.tax, c.taxable, c.percent, ok, money(got.Decimal), c.wantOK, c.wantTax)
			}
		})
	}
}

func TestSumsAreExactAndRoundedOnlyWhereTheRuleRounds(t *testing.T) {
	const totals = "/Invoice/cac:LegalMonetaryTotal/cbc:"
	plain := "../../examples/invoices/data/plain-eur.xml"
	for name, c := range map[string]struct {
		edits     map[string]string
		wantRules string
	}{
		"a sum of lines with three decimals is rounded, a half up": {map[string]string{
			"/Invoice/cac:InvoiceLine[1]/cbc:LineExtensionAmount": "498.995"}, ""},
		"and just below the half it is rounded down": {map[string]string{
			"/Invoice/cac:InvoiceLine[1]/cbc:LineExtensionAmount": "498.9949"}, "BR-CO-10"},
		"without allowances and charges the totals are compared unrounded": {map[string]string{
			totals + "LineExtensionAmount": "750.001",
			totals + "TaxExclusiveAmount":  "750.001"}, "BR-CO-10"},
		"and so is the amount due with nothing prepaid": {map[string]string{
			totals + "TaxInclusiveAmount": "892.501",
			totals + "PayableAmount":      "892.501"}, "BR-CO-15"},
		"tenths add up": {map[string]string{
			"/Invoice/cac:InvoiceLine[1]/cbc:LineExtensionAmount": "749.90",
			"/Invoice/cac:InvoiceLine[2]/cbc:LineExtensionAmount": "0.10"}, ""},
		"one part in a quadrillion is seen": {map[string]string{
			totals + "PayableAmount": "892.500000000000000001"}, "BR-CO-16"},
	} {
		t.Run(name, func(t *testing.T) {
			doc := file(t, plain)
			for path, to := range c.edits {
				doc = set(t, doc, path, to)
			}
			if diff := cmp.Diff(c.wantRules, rules(check(t, doc))); diff != "" {
				t.Errorf("broken rules (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReportJSONHasExactlyTheAgreedKeys(t *testing.T) {
	doc := set(t, file(t, everySum), "/Invoice/cac:InvoiceLine[2]/cbc:LineExtensionAmount", "401")
	for name, c := range map[string]struct {
		doc  []byte
		want string
	}{
		"a valid document has an empty list": {file(t, "../../examples/invoices/data/credit-note.xml"),
			`{"id":"NB-2026-C011","kind":"creditnote","currency":"EUR","payable":"178.14","valid":true,"violations":[]}`},
		"a violation says what was expected, found and where": {doc,
			`{"id":"ES-1","kind":"invoice","currency":"SEK","payable":"1438.00","valid":false,"violations":[` +
				`{"rule":"BR-CO-10","expected":"1451.00","found":"1450.00","where":"/Invoice/cac:LegalMonetaryTotal/cbc:LineExtensionAmount"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(check(t, c.doc))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReportStaysBoundedAndSaysWhatItLeftOut(t *testing.T) {
	d := &Document{Kind: KindInvoice, Currency: "EUR"}
	row := TaxSubtotal{Taxable: some(decimal.NewFromInt(100)), Percent: some(decimal.NewFromInt(19)), Tax: decimal.NewFromInt(50)}
	total := TaxTotal{Currency: "EUR"}
	for range MaxViolations {
		total.Breakdown = append(total.Breakdown, row)
	}
	d.TaxTotals = []TaxTotal{total}
	report := Check(d)
	// Besides the rows: BR-CO-10, 13, 14, 15 and 16, whose amounts are missing or wrong.
	if got := len(report.Violations); got != MaxViolations || report.Omitted != 5 || report.Valid {
		t.Errorf("%d violations listed, %d omitted, valid %t; want %d, 5, false", got, report.Omitted, report.Valid, MaxViolations)
	}
}

// TestExampleFilesAreWhatTheirNamesSay reads the files that the worked example
// runs on; a new file there needs a row here.
func TestExampleFilesAreWhatTheirNamesSay(t *testing.T) {
	const dir = "../../examples/invoices/data"
	want := map[string]func(t *testing.T, d *Document, r Report){
		"plain-eur.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && d.Currency == "EUR" && len(d.Adjustments) == 0 && len(d.Lines) == 2, "valid EUR, two lines, nothing else")
		},
		"allowances-and-charges.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && d.Totals.Allowance.Decimal.IsPositive() && d.Totals.Charge.Decimal.IsPositive(), "valid, both sums positive")
			expect(t, len(d.TaxTotals[0].Breakdown) == 2, "two rates")
		},
		"rounding-and-prepaid-sek.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && d.Currency == "SEK" && !d.Totals.Rounding.Decimal.IsZero() && d.Totals.Prepaid.Decimal.IsPositive(), "valid SEK, rounded and prepaid")
			expect(t, d.Totals.Payable.IsInteger(), "whole kronor")
		},
		"credit-note.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && r.Kind == KindCreditNote && d.Totals.Payable.IsPositive(), "valid credit note, positive")
		},
		"negative-total.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && r.Kind == KindInvoice && d.Totals.Payable.IsNegative(), "valid invoice, negative")
		},
		"reverse-charge.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, r.Valid && d.TaxTotals[0].Breakdown[0].Category == "AE" && d.TaxTotals[0].Amount.IsZero(), "valid, category AE, no VAT")
		},
		"broken-total.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, rules(r) == "BR-CO-15", "BR-CO-15 alone")
		},
		"broken-vat.xml": func(t *testing.T, d *Document, r Report) {
			expect(t, rules(r) == "BR-CO-17", "BR-CO-17 alone")
		},
		"not-an-invoice.xml": nil,
	}
	files, err := filepath.Glob(dir + "/*.xml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files in %s (%v), want %d", len(files), dir, err, len(want))
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			expectation, known := want[filepath.Base(path)]
			if !known {
				t.Fatal("no expectation for this file")
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			d, err := Read(f)
			if expectation == nil {
				if err == nil || !strings.Contains(err.Error(), "neither a UBL 2.1 Invoice nor a CreditNote") {
					t.Errorf("error %v, want that it is no invoice", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			expectation(t, d, Check(d))
		})
	}
}

func expect(t *testing.T, ok bool, what string) {
	t.Helper()
	if !ok {
		t.Errorf("want: %s", what)
	}
}

func TestSummaryGivesTheFiguresAsWritten(t *testing.T) {
	d, err := Read(bytes.NewReader(file(t, everySum)))
	if err != nil {
		t.Fatal(err)
	}
	want := Summary{
		ID: "ES-1", Kind: KindInvoice, Seller: "Fiktiva Kontor AB", Buyer: "Nordlicht Büro GmbH",
		Issued: "2026-01-05", Due: "2026-02-04", Currency: "SEK",
		Net: "1360.00", VAT: "278.10", Payable: "1438.00", Lines: 3,
	}
	if diff := cmp.Diff(want, Summarize(d)); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkReadAndCheck20kB(b *testing.B) {
	doc := file(b, everySum)
	n := find(b, doc, "/Invoice/cac:InvoiceLine[3]")
	line := string(doc[n.start:n.end])
	for i := 4; len(doc) < 20_000; i++ {
		extra := strings.Replace(line, "<cbc:ID>3<", fmt.Sprintf("<cbc:ID>%d<", i), 1)
		doc = bytes.Replace(doc, []byte("</Invoice>"), []byte(extra+"</Invoice>"), 1)
	}
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		d, err := Read(bytes.NewReader(doc))
		if err != nil {
			b.Fatal(err)
		}
		Check(d)
	}
}
