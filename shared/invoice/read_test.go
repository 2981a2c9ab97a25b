package invoice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// small is the least that Read takes; %s is where a test adds to it.
const small = `<Invoice xmlns="` + nsInvoice + `" xmlns:cac="` + nsAggregate + `" xmlns:cbc="` + nsBasic + `">
<cbc:ID>A-1</cbc:ID>
<cbc:DocumentCurrencyCode>EUR</cbc:DocumentCurrencyCode>
%s
<cac:LegalMonetaryTotal><cbc:PayableAmount currencyID="EUR">5</cbc:PayableAmount></cac:LegalMonetaryTotal>
<cac:InvoiceLine><cbc:ID>1</cbc:ID><cbc:LineExtensionAmount currencyID="EUR">5</cbc:LineExtensionAmount></cac:InvoiceLine>
</Invoice>`

func smallWith(extra string) string { return fmt.Sprintf(small, extra) }

func TestReadTakesWhatTheRulesAndAgentsNeed(t *testing.T) {
	d, err := Read(bytes.NewReader(file(t, everySum)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{
		"parties":     d.Seller + " to " + d.Buyer,
		"currencies":  d.Currency + " " + d.TaxCurrency,
		"second line": d.Lines[1].ID + " " + d.Lines[1].Name + " " + written(d.Lines[1].Net),
		"adjustments": fmt.Sprint(d.Adjustments),
		"VAT totals":  fmt.Sprint(d.TaxTotals),
		"rounding":    written(d.Totals.Rounding.Decimal),
	}
	want := map[string]string{
		"parties":     "Fiktiva Kontor AB to Nordlicht Büro GmbH",
		"currencies":  "SEK EUR",
		"second line": "2 Part B 400.00",
		"adjustments": "[{false 100} {false 20} {true 30}]",
		"VAT totals":  "[{SEK 278.1 [{{930 true} 232.5 S {25 true}} {{380 true} 45.6 S {12 true}} {{50 true} 0 E {0 true}}]} {EUR 25.03 []}]",
		"rounding":    "-0.10",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadAccepts(t *testing.T) {
	latin1 := `<?xml version="1.0" encoding="ISO-8859-1"?>` + smallWith("<cac:AccountingSupplierParty><cac:Party><cac:PartyName><cbc:Name>B\xfcro</cbc:Name></cac:PartyName></cac:Party></cac:AccountingSupplierParty>")
	for name, c := range map[string]struct {
		doc  string
		want func(d *Document) bool
	}{
		"the least document":              {smallWith(""), func(d *Document) bool { return d.ID == "A-1" && d.Kind == KindInvoice }},
		"a byte order mark":               {"\xEF\xBB\xBF" + smallWith(""), func(d *Document) bool { return d.ID == "A-1" }},
		"a byte order mark that agrees":   {"\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"utf-8\"?>" + smallWith(""), func(d *Document) bool { return d.ID == "A-1" }},
		"declared ISO-8859-1":             {latin1, func(d *Document) bool { return d.Seller == "Büro" }},
		"declared US-ASCII":               {`<?xml version="1.0" encoding="US-ASCII"?>` + smallWith(""), func(d *Document) bool { return d.ID == "A-1" }},
		"comments around and within":      {"<!-- a <b> -->" + smallWith("<cbc:IssueDate>2026-<!-- > -->01-05</cbc:IssueDate>") + "\n<!-- end -->\n", func(d *Document) bool { return d.IssueDate == "2026-01-05" }},
		"CDATA with markup in it":         {smallWith("<cbc:DueDate><![CDATA[<!DOCTYPE>]]></cbc:DueDate>"), func(d *Document) bool { return d.DueDate == "<!DOCTYPE>" }},
		"predefined entities":             {smallWith("<cbc:DueDate>&lt;&amp;&#65;</cbc:DueDate>"), func(d *Document) bool { return d.DueDate == "<&A" }},
		"other prefixes":                  {strings.NewReplacer("cbc:", "b:", "xmlns:cbc", "xmlns:b", "cac:", "a:", "xmlns:cac", "xmlns:a").Replace(smallWith("")), func(d *Document) bool { return d.ID == "A-1" }},
		"foreign elements, skipped":       {smallWith(`<x:ID xmlns:x="urn:x"><cbc:ID>B</cbc:ID></x:ID><ID>C</ID>`), func(d *Document) bool { return d.ID == "A-1" }},
		"a greater-than sign in a value":  {smallWith(`<cbc:Note a=">" b='">'>x</cbc:Note>`), func(d *Document) bool { return d.ID == "A-1" }},
		"white space around values":       {smallWith("<cbc:IssueDate>\n\t2026-01-05 \n</cbc:IssueDate>"), func(d *Document) bool { return d.IssueDate == "2026-01-05" }},
		"a charge indicator of 1":         {smallWith("<cac:AllowanceCharge><cbc:ChargeIndicator> 1 </cbc:ChargeIndicator><cbc:Amount>1</cbc:Amount></cac:AllowanceCharge>"), func(d *Document) bool { return d.Adjustments[0].Charge }},
		"a charge indicator of 0":         {smallWith("<cac:AllowanceCharge><cbc:ChargeIndicator>\n0</cbc:ChargeIndicator><cbc:Amount>1</cbc:Amount></cac:AllowanceCharge>"), func(d *Document) bool { return !d.Adjustments[0].Charge }},
		"the registered name over others": {smallWith("<cac:AccountingCustomerParty><cac:Party><cac:PartyName><cbc:Name>T</cbc:Name></cac:PartyName><cac:PartyLegalEntity><cbc:RegistrationName>R</cbc:RegistrationName></cac:PartyLegalEntity></cac:Party></cac:AccountingCustomerParty>"), func(d *Document) bool { return d.Buyer == "R" }},
		"a line's own allowances and charges are within its net amount": {strings.Replace(smallWith(""), "<cbc:ID>1<",
			lineAdjustment("false", "3.50")+lineAdjustment("true", "1")+"<cbc:ID>1<", 1), func(d *Document) bool {
			return len(d.Adjustments) == 0 && d.Lines[0].Adjusted.String() == "-2.5"
		}},
		"what a line counts and costs": {strings.Replace(smallWith(""), "<cbc:ID>1<",
			"<cbc:InvoicedQuantity>4</cbc:InvoicedQuantity><cac:Price><cbc:PriceAmount>10.50</cbc:PriceAmount><cbc:BaseQuantity>2</cbc:BaseQuantity></cac:Price><cbc:ID>1<", 1),
			func(d *Document) bool {
				l := d.Lines[0]
				return l.Quantity.Decimal.String() == "4" && l.Price.Decimal.String() == "10.5" && l.Base.Decimal.String() == "2"
			}},
		"the order, the first account and the tax registration": {smallWith(
			"<cac:OrderReference><cbc:ID>PO-1</cbc:ID></cac:OrderReference>" + account("DE1") + account("DE2") +
				"<cac:AccountingSupplierParty><cac:Party>" + registration("approved", "TAX") + registration("DE9", "VAT") + "</cac:Party></cac:AccountingSupplierParty>"),
			func(d *Document) bool { return d.OrderRef == "PO-1" && d.Account == "DE1" && d.SellerVAT == "DE9" }},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Read(strings.NewReader(c.doc))
			if err != nil {
				t.Fatal(err)
			}
			if !c.want(d) {
				t.Errorf("got %+v", d)
			}
		})
	}
}

func TestReadRefusesAndSaysWhere(t *testing.T) {
	payable := "<cbc:PayableAmount currencyID=\"EUR\">5<"
	swap := func(old, with string) string {
		if !strings.Contains(smallWith(""), old) {
			t.Fatalf("%q is not in the document", old)
		}
		return strings.Replace(smallWith(""), old, with, 1)
	}
	nested := strings.Repeat("<cac:A>", MaxDepth) + strings.Repeat("</cac:A>", MaxDepth)
	declared := func(enc string) string { return `<?xml version="1.0" encoding="` + enc + `"?>` + smallWith("") }
	for name, c := range map[string]struct {
		doc, want string
	}{
		"nothing":             {"", "line 1: there is no XML element"},
		"text":                {"Dear customer,", "line 1: there is text before the root element"},
		"JSON":                {`{"id": 1}`, "line 1: there is text before the root element"},
		"another vocabulary":  {"<Order xmlns='urn:o'/>", `line 1: /Order: the root element is "Order" of namespace "urn:o"`},
		"no namespace":        {"<Invoice/>", `the root element is "Invoice" of namespace ""`},
		"a mixed-up root":     {`<CreditNote xmlns="` + nsInvoice + `"/>`, "neither a UBL 2.1 Invoice nor a CreditNote"},
		"a cut-off document":  {smallWith("")[:strings.Index(smallWith(""), "A-1")+1], "line 2: /Invoice/cbc:ID: not well-formed XML: unexpected EOF"},
		"two documents":       {smallWith("") + smallWith(""), "line 7: a second root element follows"},
		"text after the root": {smallWith("") + "x", "line 7: text follows the root element"},
		"an unknown entity":   {smallWith("<cbc:DueDate>&bomb;</cbc:DueDate>"), "line 4: /Invoice/cbc:DueDate: not well-formed XML: invalid character entity &bomb;"},
		"a DOCTYPE":           {"<?xml version='1.0'?>\n<!DOCTYPE Invoice [<!ENTITY a 'b'>]>\n" + smallWith(""), "line 2: a document type declaration (<!DOCTYPE …>) is not accepted"},
		"a DOCTYPE later":     {smallWith("<!doctype x>"), "line 4: a document type declaration"},
		"UTF-16":              {"\xFF\xFE<\x00", "line 1: the document is UTF-16; convert it to UTF-8"},
		"declared UTF-16":     {declared("UTF-16"), `line 1: encoding "UTF-16" is not supported; convert the document to UTF-8`},
		"windows-1252":        {declared("windows-1252"), `encoding "windows-1252" is not supported`},
		"a mark that differs": {"\xEF\xBB\xBF" + declared("ISO-8859-1"), `the byte order mark says UTF-8, the XML declaration "ISO-8859-1"`},
		"bytes not UTF-8":     {smallWith("<cbc:DueDate>\xfc</cbc:DueDate>"), "line 4: /Invoice/cbc:DueDate: not well-formed XML: invalid UTF-8"},
		"US-ASCII that isn't": {strings.Replace(declared("us-ascii"), "A-1", "\xfc", 1), "not well-formed XML: invalid UTF-8"},
		"a declaration within": {smallWith(`<?xml version="1.0" encoding="latin1"?>`),
			"line 4: an XML declaration is not at the start of the document"},
		"two declarations": {`<?xml version="1.0" encoding="latin1"?>` + declared("latin1"), "an XML declaration is not at the start"},

		"no number":                       {swap("<cbc:ID>A-1</cbc:ID>", ""), "line 1: /Invoice: there is no cbc:ID; the element needs one"},
		"an empty number":                 {swap("A-1", " "), "line 1: /Invoice: there is no cbc:ID"},
		"two numbers":                     {smallWith("<cbc:ID>B</cbc:ID>"), "line 4: /Invoice/cbc:ID: the element is given twice; keep one"},
		"no currency":                     {swap("<cbc:DocumentCurrencyCode>EUR</cbc:DocumentCurrencyCode>", ""), "there is no cbc:DocumentCurrencyCode"},
		"no totals":                       {swap("LegalMonetaryTotal><cbc:PayableAmount currencyID=\"EUR\">5</cbc:PayableAmount></cac:LegalMonetaryTotal", "X></cac:X"), "/Invoice: there is no cac:LegalMonetaryTotal"},
		"two totals":                      {smallWith("<cac:LegalMonetaryTotal><cbc:PayableAmount>5</cbc:PayableAmount></cac:LegalMonetaryTotal>"), "line 5: /Invoice/cac:LegalMonetaryTotal: the element is given twice"},
		"no amount due":                   {swap("PayableAmount currencyID=\"EUR\">5</cbc:PayableAmount", "X>5</cbc:X"), "line 5: /Invoice/cac:LegalMonetaryTotal: there is no cbc:PayableAmount"},
		"two amounts due":                 {swap(payable, payable+"/cbc:PayableAmount>"+payable), "/Invoice/cac:LegalMonetaryTotal/cbc:PayableAmount: the element is given twice"},
		"no line":                         {swap("cac:InvoiceLine><cbc:ID>1</cbc:ID><cbc:LineExtensionAmount currencyID=\"EUR\">5</cbc:LineExtensionAmount></cac:InvoiceLine", "cac:X></cac:X"), "/Invoice: there is no cac:InvoiceLine"},
		"the wrong line":                  {strings.NewReplacer("<Invoice ", "<CreditNote ", "</Invoice>", "</CreditNote>", nsInvoice, nsCreditNote).Replace(smallWith("")), "/CreditNote: there is no cac:CreditNoteLine"},
		"a line, no amount":               {smallWith("<cac:InvoiceLine/>\n<cac:InvoiceLine><cbc:LineExtensionAmount>1</cbc:LineExtensionAmount></cac:InvoiceLine>"), "line 4: /Invoice/cac:InvoiceLine[1]: there is no cbc:LineExtensionAmount"},
		"a VAT total, empty":              {smallWith("<cac:TaxTotal/>"), "/Invoice/cac:TaxTotal[1]: there is no cbc:TaxAmount"},
		"a VAT row, empty":                {smallWith("<cac:TaxTotal><cac:TaxSubtotal/></cac:TaxTotal>"), "/Invoice/cac:TaxTotal[1]/cac:TaxSubtotal[1]: there is no cbc:TaxAmount"},
		"an adjustment without a sign":    {smallWith("<cac:AllowanceCharge><cbc:Amount>1</cbc:Amount></cac:AllowanceCharge>"), "/Invoice/cac:AllowanceCharge[1]: there is no cbc:ChargeIndicator"},
		"an adjustment without an amount": {smallWith("<cac:AllowanceCharge><cbc:ChargeIndicator>true</cbc:ChargeIndicator></cac:AllowanceCharge>"), "/Invoice/cac:AllowanceCharge[1]: there is no cbc:Amount"},
		"two indicators":                  {smallWith("<cac:AllowanceCharge><cbc:ChargeIndicator>true</cbc:ChargeIndicator><cbc:ChargeIndicator>true</cbc:ChargeIndicator></cac:AllowanceCharge>"), "cbc:ChargeIndicator: the element is given twice"},
		"a boolean in other words":        {smallWith("<cac:AllowanceCharge><cbc:ChargeIndicator>TRUE</cbc:ChargeIndicator></cac:AllowanceCharge>"), `/Invoice/cac:AllowanceCharge[1]/cbc:ChargeIndicator: "TRUE" is not a boolean; write true, false, 1 or 0`},
		"an element in a value":           {smallWith("<cbc:DueDate>2026<cbc:X/></cbc:DueDate>"), `/Invoice/cbc:DueDate: the element "X" is within a value`},

		"an amount with a comma":        {swap(payable, strings.Replace(payable, "5", "5,00", 1)), `line 5: /Invoice/cac:LegalMonetaryTotal/cbc:PayableAmount: "5,00" is not a decimal number; write digits`},
		"an amount with an exponent":    {swap(payable, strings.Replace(payable, "5", "1e999999999", 1)), `"1e999999999" is not a decimal number`},
		"an amount without digits":      {swap(payable, strings.Replace(payable, "5", "-.", 1)), `"-." is not a decimal number`},
		"an empty amount":               {swap(payable, strings.Replace(payable, "5", " ", 1)), `"" is not a decimal number`},
		"an amount with two signs":      {swap(payable, strings.Replace(payable, "5", "-+5", 1)), `"-+5" is not a decimal number`},
		"an amount that is no number":   {swap(payable, strings.Replace(payable, "5", "NaN", 1)), `"NaN" is not a decimal number`},
		"an amount of many digits":      {swap(payable, strings.Replace(payable, "5", strings.Repeat("9", MaxDigit+1), 1)), "PayableAmount: the number has 41 characters, more than the 40 allowed"},
		"an amount of a million digits": {swap(payable, strings.Replace(payable, "5", strings.Repeat("9", 1<<20), 1)), "PayableAmount: the value is longer than the 4096 bytes allowed"},
		"a long number":                 {smallWith("<cbc:DueDate>" + strings.Repeat("x", MaxText+1) + "</cbc:DueDate>"), "/Invoice/cbc:DueDate: the value is longer than the 4096 bytes allowed"},
		"a deep document":               {smallWith(nested), "elements are nested more than 64 deep"},
		"a tag of many attributes":      {smallWith("<cbc:Note" + strings.Repeat(" a=''", MaxTag/5+1) + ">x</cbc:Note>"), "line 4: a tag is longer than the 65536 bytes allowed"},
		"a tag that never ends":         {smallWith("<cbc:Note a='" + strings.Repeat("x", MaxTag)), "line 4: a tag is longer than the 65536 bytes allowed"},
		"too many bytes":                {smallWith(strings.Repeat(" ", MaxBytes)), "read UBL document: the document is larger than the 10485760 bytes allowed"},
		"too many lines":                {smallWith(strings.Repeat("<cac:InvoiceLine><cbc:LineExtensionAmount>0</cbc:LineExtensionAmount></cac:InvoiceLine>", MaxLines)), "/Invoice/cac:InvoiceLine[20001]: there are more than 20000 of these; split the document"},
		"too many adjustments":          {smallWith(strings.Repeat("<cac:AllowanceCharge><cbc:ChargeIndicator>1</cbc:ChargeIndicator><cbc:Amount>0</cbc:Amount></cac:AllowanceCharge>", MaxItems+1)), "/Invoice/cac:AllowanceCharge[10001]: there are more than 10000 of these"},
		"too many VAT totals":           {smallWith(strings.Repeat("<cac:TaxTotal><cbc:TaxAmount>0</cbc:TaxAmount></cac:TaxTotal>", MaxItems+1)), "/Invoice/cac:TaxTotal[10001]: there are more than 10000 of these"},
		"too many VAT rows, together":   {smallWith(strings.Repeat("<cac:TaxTotal><cbc:TaxAmount>0</cbc:TaxAmount>"+strings.Repeat("<cac:TaxSubtotal><cbc:TaxAmount>0</cbc:TaxAmount></cac:TaxSubtotal>", 101)+"</cac:TaxTotal>", 100)), "/Invoice/cac:TaxTotal[100]/cac:TaxSubtotal[2]: the VAT breakdowns have more than 10000 rows together"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Read(strings.NewReader(c.doc))
			var fault *Error
			if d != nil || !errors.As(err, &fault) {
				t.Fatalf("document %v, error %v; want an Error alone", d != nil, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q\n  want %q in it", err, c.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes quotes too much", len(err.Error()))
			}
		})
	}
}

func TestReadTellsAFaultOfTheReaderFromOneOfTheDocument(t *testing.T) {
	broken := errors.New("connection reset")
	_, err := Read(io.MultiReader(strings.NewReader(smallWith("")), iotest.ErrReader(broken)))
	var fault *Error
	if !errors.Is(err, broken) || errors.As(err, &fault) {
		t.Errorf("error %v, want the reader's own and no Error", err)
	}
}

func TestFileReadsTextOrBase64AndNamesItself(t *testing.T) {
	text, _ := json.Marshal(smallWith(""))
	latin1, _ := json.Marshal([]byte(`<?xml version="1.0" encoding="ISO-8859-1"?>` + strings.Replace(smallWith(""), "A-1", "\xc4-1", 1)))
	for name, c := range map[string]struct {
		input, wantID, wantErr string
	}{
		"text":           {`{"name":"a.xml","contentType":"application/xml","text":` + string(text) + `}`, "A-1", ""},
		"bytes":          {`{"name":"a.xml","base64":` + string(latin1) + `}`, "Ä-1", ""},
		"nothing":        {`{"name":"a.xml"}`, "", `file "a.xml": it is empty; give a UBL document as text or base64`},
		"both":           {`{"name":"a.xml","text":"x","base64":"eA=="}`, "", `file "a.xml": both text and base64 are given; give one`},
		"not an invoice": {`{"name":"a.xml","text":"<a/>"}`, "", `file "a.xml": read UBL document: line 1: /a: the root element is "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			var f File
			if err := json.Unmarshal([]byte(c.input), &f); err != nil {
				t.Fatal(err)
			}
			d, err := f.Read()
			switch {
			case c.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("error %v, want %q in it", err, c.wantErr)
				}
			case err != nil:
				t.Error(err)
			case d.ID != c.wantID:
				t.Errorf("id %q, want %q", d.ID, c.wantID)
			}
		})
	}
}

// FuzzRead wants no panic, and that what is read is within the bounds and can be
// checked, reported and summarized.
func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"testdata/*.xml", "../../examples/invoices/data/*.xml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds in %s (%v)", pattern, err)
		}
		for _, name := range files {
			f.Add(file(f, name))
		}
	}
	f.Add([]byte(smallWith("<cac:TaxTotal><cbc:TaxAmount>-0</cbc:TaxAmount><cac:TaxSubtotal><cbc:TaxAmount>.5</cbc:TaxAmount></cac:TaxSubtotal></cac:TaxTotal>")))
	f.Add([]byte(`<?xml version="1.0" encoding="latin1"?>` + smallWith("\xfc")))
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, err := Read(bytes.NewReader(doc))
		if err != nil {
			var fault *Error
			if d != nil || !errors.As(err, &fault) || len(err.Error()) > 10_000 {
				t.Fatalf("document %v, error %T of %d bytes", d != nil, err, len(err.Error()))
			}
			return
		}
		if d.ID == "" || d.Currency == "" || len(d.Lines) == 0 || len(d.Lines) > MaxLines || len(d.Adjustments) > MaxItems || len(d.TaxTotals) > MaxItems {
			t.Fatalf("a document outside the bounds was read: %+v", d)
		}
		report := Check(d)
		if len(report.Violations) > MaxViolations || report.Valid != (len(report.Violations) == 0) {
			t.Fatalf("%d violations, valid %t", len(report.Violations), report.Valid)
		}
		out, err := json.Marshal(report)
		if err != nil || len(out) > 1<<20 {
			t.Fatalf("a report of %d bytes: %v", len(out), err)
		}
		if diff := cmp.Diff(report, Check(d)); diff != "" {
			t.Fatalf("a second check differs: %s", diff)
		}
		Summarize(d)
	})
}

func lineAdjustment(charge, amount string) string {
	return "<cac:AllowanceCharge><cbc:ChargeIndicator>" + charge + "</cbc:ChargeIndicator><cbc:Amount>" + amount + "</cbc:Amount></cac:AllowanceCharge>"
}

func account(id string) string {
	return "<cac:PaymentMeans><cac:PayeeFinancialAccount><cbc:ID>" + id + "</cbc:ID></cac:PayeeFinancialAccount></cac:PaymentMeans>"
}

func registration(number, scheme string) string {
	return "<cac:PartyTaxScheme><cbc:CompanyID>" + number + "</cbc:CompanyID><cac:TaxScheme><cbc:ID>" + scheme + "</cbc:ID></cac:TaxScheme></cac:PartyTaxScheme>"
}
