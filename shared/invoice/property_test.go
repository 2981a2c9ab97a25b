package invoice

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A draft is a consistent document in whole cents, computed with integers and
// written as XML: a model of the arithmetic that shares no code with Check.
type draft struct {
	credit      bool
	lines       []cents // by the rate with the same index modulo len(rates)
	adjustments []adjustmentDraft
	rates       []int // percent, without repetition
	sums        bool  // whether sums of zero are written too
	prepaid     cents
	rounding    cents
}

type cents int64

type adjustmentDraft struct {
	charge bool
	amount cents
	rate   int // index into rates
}

func (c cents) String() string {
	sign := ""
	if c < 0 {
		sign, c = "-", -c
	}
	return fmt.Sprintf("%s%d.%02d", sign, c/100, c%100)
}

func (c cents) abs() cents { return max(c, -c) }

// An amountAt is one amount of a written draft with the rules that a change of
// it by that many cents breaks.
type amountAt struct {
	path   string
	value  cents
	breaks func(by cents) string
}

func always(rules string) func(cents) string { return func(cents) string { return rules } }

// write gives the document and all its amounts at document level.
func (d draft) write() (string, []amountAt) {
	root, line, ns := "Invoice", "InvoiceLine", nsInvoice
	if d.credit {
		root, line, ns = "CreditNote", "CreditNoteLine", nsCreditNote
	}
	var amounts []amountAt
	amount := func(path string, c cents, breaks func(cents) string) string {
		amounts = append(amounts, amountAt{"/" + root + path, c, breaks})
		name := path[strings.LastIndex(path, ":")+1:]
		return fmt.Sprintf("<cbc:%s currencyID=\"EUR\">%s</cbc:%s>\n", name, c, name)
	}
	taxable := make([]cents, len(d.rates))
	var b strings.Builder
	fmt.Fprintf(&b, "<%s xmlns=%q xmlns:cac=%q xmlns:cbc=%q>\n<cbc:ID>P</cbc:ID><cbc:DocumentCurrencyCode>EUR</cbc:DocumentCurrencyCode>\n", root, ns, nsAggregate, nsBasic)

	var allowances, charges cents
	for i, a := range d.adjustments {
		rule := "BR-CO-11"
		if a.charge {
			rule = "BR-CO-12"
			charges += a.amount
			taxable[a.rate] += a.amount
		} else {
			allowances += a.amount
			taxable[a.rate] -= a.amount
		}
		fmt.Fprintf(&b, "<cac:AllowanceCharge><cbc:ChargeIndicator>%t</cbc:ChargeIndicator>%s</cac:AllowanceCharge>\n",
			a.charge, amount(fmt.Sprintf("/cac:AllowanceCharge[%d]/cbc:Amount", i+1), a.amount, always(rule)))
	}
	var net cents
	for i, l := range d.lines {
		net += l
		taxable[i%len(d.rates)] += l
	}

	var vat cents
	var rows strings.Builder
	for i, rate := range d.rates {
		tax := (taxable[i].abs()*cents(rate) + 50) / 100
		if taxable[i] < 0 {
			tax = -tax
		}
		vat += tax
		path := fmt.Sprintf("/cac:TaxTotal[1]/cac:TaxSubtotal[%d]/cbc:", i+1)
		off := func(tax, taxable cents) bool {
			if rate == 0 {
				return tax < -50 || tax >= 50
			}
			return (tax.abs() - (taxable.abs()*cents(rate)+50)/100).abs() >= 100
		}
		fmt.Fprintf(&rows, "<cac:TaxSubtotal>%s%s<cac:TaxCategory><cbc:Percent>%d</cbc:Percent></cac:TaxCategory></cac:TaxSubtotal>\n",
			amount(path+"TaxableAmount", taxable[i], func(by cents) string {
				if off(tax, taxable[i]+by) {
					return "BR-CO-17"
				}
				return ""
			}),
			amount(path+"TaxAmount", tax, func(by cents) string {
				if off(tax+by, taxable[i]) {
					return "BR-CO-14 BR-CO-17"
				}
				return "BR-CO-14"
			}), rate)
	}
	fmt.Fprintf(&b, "<cac:TaxTotal>%s%s</cac:TaxTotal>\n", amount("/cac:TaxTotal[1]/cbc:TaxAmount", vat, always("BR-CO-14 BR-CO-15")), rows.String())

	total := func(name string, c cents, breaks string) {
		b.WriteString(amount("/cac:LegalMonetaryTotal/cbc:"+name, c, always(breaks)))
	}
	has := func(charge bool) bool {
		for _, a := range d.adjustments {
			if a.charge == charge {
				return true
			}
		}
		return d.sums
	}
	b.WriteString("<cac:LegalMonetaryTotal>\n")
	total("LineExtensionAmount", net, "BR-CO-10 BR-CO-13")
	total("TaxExclusiveAmount", net-allowances+charges, "BR-CO-13 BR-CO-15")
	total("TaxInclusiveAmount", net-allowances+charges+vat, "BR-CO-15 BR-CO-16")
	if has(false) {
		total("AllowanceTotalAmount", allowances, "BR-CO-11 BR-CO-13")
	}
	if has(true) {
		total("ChargeTotalAmount", charges, "BR-CO-12 BR-CO-13")
	}
	if d.sums || d.prepaid != 0 {
		total("PrepaidAmount", d.prepaid, "BR-CO-16")
	}
	if d.sums || d.rounding != 0 {
		total("PayableRoundingAmount", d.rounding, "BR-CO-16")
	}
	total("PayableAmount", net-allowances+charges+vat-d.prepaid+d.rounding, "BR-CO-16")
	b.WriteString("</cac:LegalMonetaryTotal>\n")
	for i, l := range d.lines {
		fmt.Fprintf(&b, "<cac:%s>%s</cac:%s>\n", line, amount(fmt.Sprintf("/cac:%s[%d]/cbc:LineExtensionAmount", line, i+1), l, always("BR-CO-10")), line)
	}
	fmt.Fprintf(&b, "</%s>\n", root)
	return b.String(), amounts
}

var drafts = rapid.Custom(func(t *rapid.T) draft {
	money := rapid.Map(rapid.Int64Range(-10_000_000, 10_000_000), func(n int64) cents { return cents(n) })
	rates := rapid.SliceOfNDistinct(rapid.SampledFrom([]int{0, 1, 7, 12, 19, 25, 100}), 1, 4, rapid.ID).Draw(t, "rates")
	return draft{
		credit: rapid.Bool().Draw(t, "credit"),
		lines:  rapid.SliceOfN(money, 1, 6).Draw(t, "lines"),
		adjustments: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) adjustmentDraft {
			return adjustmentDraft{rapid.Bool().Draw(t, "charge"), money.Draw(t, "amount"), rapid.IntRange(0, len(rates)-1).Draw(t, "rate")}
		}), 0, 4).Draw(t, "adjustments"),
		rates:    rates,
		sums:     rapid.Bool().Draw(t, "sums"),
		prepaid:  rapid.OneOf(rapid.Just(cents(0)), money).Draw(t, "prepaid"),
		rounding: cents(rapid.Int64Range(-50, 50).Draw(t, "rounding")),
	}
})

func TestAConsistentDocumentIsCleanAndEachChangeIsSeen(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		doc, amounts := drafts.Draw(r, "document").write()
		if report := check(t, []byte(doc)); !report.Valid {
			r.Fatalf("violations %+v of a consistent document:\n%s", report.Violations, doc)
		}
		a := rapid.SampledFrom(amounts).Draw(r, "amount")
		by := cents(rapid.OneOf(rapid.Int64Range(1, 200), rapid.Int64Range(-200, -1), rapid.Int64Range(1, 1_000_000)).Draw(r, "by"))
		report := check(t, set(t, []byte(doc), a.path, (a.value+by).String()))
		if got, want := rules(report), a.breaks(by); got != want {
			r.Fatalf("%s from %s to %s breaks %q, want %q:\n%s", a.path, a.value, a.value+by, got, want, doc)
		}
		for _, v := range report.Violations {
			find(t, []byte(doc), v.Where)
		}
	})
}
