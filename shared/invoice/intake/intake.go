// Package intake is what an office does with an invoice that comes in: take from it what the checks need, compare that
// with vendors and orders, and decide what becomes of it. The agents of the invoice-intake workflow are made of it.
//
// It imports package invoice and an exact decimal type. Nothing here keeps state, blocks or logs.
package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/errand-run/errand/shared/invoice"
)

// MaxLines bounds what is taken in: each line is checked by itself.
const MaxLines = 2_000

// An Extract is what is taken from a document. Amounts are text, exact, and empty where the document gives none.
type Extract struct {
	invoice.Summary
	Lines      []Line              `json:"items"`
	Order      string              `json:"order"`
	VAT        string              `json:"sellerVAT"`
	Account    string              `json:"account"`
	Violations []invoice.Violation `json:"violations"`
}

// A Line is one line of the document.
type Line struct {
	Number   int    `json:"number"` // from 1
	ID       string `json:"id"`
	Name     string `json:"name"`
	Net      string `json:"net"`
	Quantity string `json:"quantity"`
	Price    string `json:"price"` // of Base pieces
	Base     string `json:"base"`
	Adjusted string `json:"adjusted"` // the line's own charges less its allowances
}

// FromDocument takes from a document what the checks need.
func FromDocument(d *invoice.Document) (Extract, error) {
	if len(d.Lines) > MaxLines {
		return Extract{}, fmt.Errorf("invoice %.60q has %d lines; at most %d are taken in", d.ID, len(d.Lines), MaxLines)
	}
	out := Extract{Summary: invoice.Summarize(d), Order: d.OrderRef, VAT: d.SellerVAT, Account: d.Account, Violations: invoice.Check(d).Violations}
	for i, l := range d.Lines {
		out.Lines = append(out.Lines, Line{
			Number: i + 1, ID: l.ID, Name: l.Name, Net: l.Net.String(), Quantity: orEmpty(l.Quantity), Price: orEmpty(l.Price),
			Base: orEmpty(l.Base), Adjusted: l.Adjusted.String(),
		})
	}
	return out, nil
}

func orEmpty(d decimal.NullDecimal) string {
	if !d.Valid {
		return ""
	}
	return d.Decimal.String()
}

// Key names the invoice of a vendor the same way however it is written: by its number, in letters and digits alone.
func (e *Extract) Key() string { return digest(e.vendor(), plain(e.ID), string(e.Kind)) }

// LookAlike names what one vendor charges on one day at one price, whatever number it has.
func (e *Extract) LookAlike() string { return digest(e.vendor(), e.Issued, e.Currency, e.Payable) }

func (e *Extract) vendor() string {
	if e.VAT != "" {
		return plain(e.VAT)
	}
	return plain(e.Seller)
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// plain is a text in lower-case letters and digits, so that RE-1 and re 1 are one number.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case strings.ContainsRune(" -/._\t", r):
			return -1
		}
		return r
	}, s)
}

// A LineReport is the outcome of [CheckLine].
type LineReport struct {
	Number   int      `json:"number"`
	Findings []string `json:"findings"`
}

// slack is what a line may be off by, as in the rule PEPPOL-EN16931-R120.
var slack = decimal.New(2, -2)

// CheckLine recomputes a line: quantity times price, with its own charges and allowances, is its net amount within two
// hundredths. A line without a price is not reckoned. An error says which figure is no number.
func CheckLine(l Line) (LineReport, error) {
	out := LineReport{Number: l.Number, Findings: []string{}}
	// 1. The figures.
	net, err := number("net", l.Net)
	if err != nil {
		return out, err
	}
	adjusted, err := number("adjusted", orZero(l.Adjusted))
	if err != nil {
		return out, err
	}
	if l.Price == "" || l.Quantity == "" {
		return out, nil
	}
	price, err := number("price", l.Price)
	if err != nil {
		return out, err
	}
	quantity, err := number("quantity", l.Quantity)
	if err != nil {
		return out, err
	}
	base := decimal.NewFromInt(1)
	if l.Base != "" {
		if base, err = number("base", l.Base); err != nil {
			return out, err
		}
	}
	// 2. Compared without a division, which would not be exact.
	if base.Sign() <= 0 {
		out.Findings = append(out.Findings, fmt.Sprintf("line %d: its price is for %s pieces; want more than none", l.Number, base))
		return out, nil
	}
	off := quantity.Mul(price).Add(adjusted.Mul(base)).Sub(net.Mul(base))
	if off.Abs().GreaterThan(slack.Mul(base)) {
		out.Findings = append(out.Findings, fmt.Sprintf("line %d: %s at %s each %s comes to %s, and %s is charged",
			l.Number, quantity, price, base, quantity.Mul(price).DivRound(base, 2).Add(adjusted), net))
	}
	return out, nil
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

func number(field, text string) (decimal.Decimal, error) {
	if len(text) == 0 || len(text) > invoice.MaxDigit || strings.ContainsAny(text, "eE") {
		return decimal.Decimal{}, fmt.Errorf("%s %.50q: want a decimal number as text, such as \"12.50\"", field, text)
	}
	d, err := decimal.NewFromString(text)
	if err != nil {
		return decimal.Decimal{}, fmt.Errorf("%s %.50q: want a decimal number as text, such as \"12.50\"", field, text)
	}
	return d, nil
}
