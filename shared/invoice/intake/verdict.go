package intake

import (
	"fmt"
	"strings"
)

// What becomes of an invoice.
const (
	Pay       = "pay"       // a person approves the payment
	Dispute   = "dispute"   // the vendor is told what is wrong
	Duplicate = "duplicate" // it is in already
)

// maxNotes bounds what a person is told.
const maxNotes = 20

// DuplicateReport says whether the invoice is in already.
type DuplicateReport struct {
	Of       string   `json:"of"` // the run that has it; empty when it is new
	Findings []string `json:"findings"`
}

// Checks are the reports of all checks, by the name of their branch.
type Checks struct {
	Lines     []LineReport    `json:"lines"`
	Vendor    VendorReport    `json:"vendor"`
	Order     OrderReport     `json:"order"`
	Duplicate DuplicateReport `json:"duplicate"`
}

// A Payment is what a person approves, and what is posted.
type Payment struct {
	Invoice  string   `json:"invoice"`
	Vendor   string   `json:"vendor"` // by name
	VendorID string   `json:"vendorId"`
	Currency string   `json:"currency"`
	Amount   string   `json:"amount"`
	Account  string   `json:"account"`
	Due      string   `json:"due"`
	Order    string   `json:"order"`
	Notes    []string `json:"notes"` // what the approver should know
}

// A Verdict is what becomes of an invoice, and why.
type Verdict struct {
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons"`
	Payment Payment  `json:"payment"`
}

// Judge decides: what is in already is not paid again, an invoice that breaks the standard's arithmetic goes back to the
// vendor, and everything else is for a person, with notes on what does not fit. Lines are no reason of their own: the
// standard does not say how a net amount comes about, and some of its own examples do not reckon.
func Judge(e *Extract, c Checks) Verdict {
	out := Verdict{Verdict: Pay, Reasons: []string{}, Payment: Payment{
		Invoice: e.ID, Vendor: e.Seller, VendorID: c.Vendor.Vendor, Currency: e.Currency, Amount: e.Payable, Account: e.Account,
		Due: e.Due, Order: c.Order.Order, Notes: []string{},
	}}
	// 1. Arithmetic.
	for _, v := range e.Violations {
		out.Reasons = append(out.Reasons, fmt.Sprintf("%s: %s is given, %s is right (%s)", v.Rule, orNone(v.Found), orNone(v.Expected), v.Where))
	}
	// 2. What a person should know.
	notes := out.Payment.Notes
	for _, l := range c.Lines {
		notes = append(notes, l.Findings...)
	}
	notes = append(append(append(notes, c.Vendor.Findings...), c.Order.Findings...), c.Duplicate.Findings...)
	// 3. The first that applies.
	switch {
	case c.Duplicate.Of != "":
		out.Verdict, out.Reasons = Duplicate, []string{fmt.Sprintf("invoice %.60q of %.100q is in already: run %s", e.ID, e.Seller, c.Duplicate.Of)}
	case len(out.Reasons) > 0:
		out.Verdict = Dispute
	}
	out.Reasons, out.Payment.Notes = bounded(out.Reasons), bounded(notes)
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func bounded(lines []string) []string {
	if len(lines) > maxNotes {
		return append(lines[:maxNotes:maxNotes], fmt.Sprintf("and %d more", len(lines)-maxNotes))
	}
	return lines
}

// A Letter is what somebody is told about an invoice.
type Letter struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// Write is the letter for a verdict: to the vendor when the invoice is wrong or paid, to accounting when it is in already.
func Write(v Verdict) Letter {
	p := v.Payment
	switch v.Verdict {
	case Pay:
		return Letter{p.Vendor, "Invoice " + p.Invoice, fmt.Sprintf("We pay %s %s for your invoice %s.", p.Amount, p.Currency, p.Invoice)}
	case Dispute:
		return Letter{p.Vendor, "Invoice " + p.Invoice, "We cannot pay your invoice as it stands:\n- " + strings.Join(v.Reasons, "\n- ")}
	}
	return Letter{"accounting", "Invoice " + p.Invoice, strings.Join(v.Reasons, "\n")}
}
