// Package book is the ledger of the worked example: one amount for each
// invoice, and what they come to. A book is a value that its keeper saves as a
// whole; nothing here keeps state, blocks or logs.
//
// It imports the standard library and an exact decimal type.
package book

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/shopspring/decimal"
)

// Bounds of a book and of what is posted to it.
const (
	MaxBytes = 1 << 20 // of a book as JSON: what a session holds unless its agent says otherwise
	MaxText  = 200     // bytes of an invoice's id, and of a vendor
)

// Faults of a posting. None of them goes away when it is tried again.
var (
	ErrInvalid  = errors.New("posting is not valid")
	ErrConflict = errors.New("the invoice is posted with another amount or vendor")
	ErrFull     = errors.New("the book is full")
)

// A Posting is an invoice to be entered.
type Posting struct {
	ID string `json:"id"` // of the invoice
	Entry
}

// An Entry is what the book holds under an invoice's id.
type Entry struct {
	Currency string `json:"currency"`         // three capital letters
	Amount   string `json:"amount"`           // exact, such as -1234.50, as it was posted
	Vendor   string `json:"vendor,omitempty"` // empty when unknown
}

// A Book holds one entry for each invoice, and is kept as JSON: equal books are
// written alike, and reading refuses what Post would not have entered. The zero
// Book is empty.
type Book struct {
	Entries map[string]Entry `json:"entries"` // by invoice id
}

var (
	amounts    = regexp.MustCompile(`^-?[0-9]{1,24}(\.[0-9]{1,12})?$`)
	currencies = regexp.MustCompile(`^[A-Z]{3}$`)
)

// UnmarshalJSON reads a book.
func (b *Book) UnmarshalJSON(state []byte) error {
	type plain Book
	if err := json.Unmarshal(state, (*plain)(b)); err != nil {
		return fmt.Errorf("book of %d bytes: %w", len(state), err)
	}
	for id, e := range b.Entries {
		if err := (Posting{id, e}).check(); err != nil {
			return fmt.Errorf("book: entry %.60q: %w", id, err)
		}
	}
	return nil
}

// Post enters an invoice, and reports whether that changed anything: posting
// the same again does not, and neither does leaving out the vendor. A vendor
// that was unknown is filled in. An error wraps ErrInvalid, ErrConflict or
// ErrFull, and leaves the book as it was.
func (b *Book) Post(p Posting) (changed bool, err error) {
	// 1. What the book says already.
	if err := p.check(); err != nil {
		return false, err
	}
	old, posted := b.Entries[p.ID]
	switch {
	case !posted:
	case old.Currency != p.Currency || !old.amount().Equal(p.amount()):
		return false, fmt.Errorf("%w: invoice %q stands at %s %s, the posting says %s %s; correct it with a posting under an id of its own",
			ErrConflict, p.ID, old.Currency, old.Amount, p.Currency, p.Amount)
	case p.Vendor == "" || p.Vendor == old.Vendor:
		return false, nil
	case old.Vendor != "":
		return false, fmt.Errorf("%w: invoice %q is of vendor %q, the posting says %q; an id means one invoice",
			ErrConflict, p.ID, old.Vendor, p.Vendor)
	default:
		p.Amount = old.Amount
	}
	// 2. What it would say, if there is room.
	if b.Entries == nil {
		b.Entries = make(map[string]Entry)
	}
	b.Entries[p.ID] = p.Entry
	state, err := json.Marshal(b)
	if err == nil && len(state) <= MaxBytes {
		return true, nil
	}
	delete(b.Entries, p.ID)
	if posted {
		b.Entries[p.ID] = old
	}
	if err != nil {
		return false, fmt.Errorf("post invoice %q: %w", p.ID, err)
	}
	return false, fmt.Errorf("%w: with invoice %q its %d entries would take %d bytes, more than the %d allowed; continue in another session",
		ErrFull, p.ID, len(b.Entries), len(state), MaxBytes)
}

// Balance adds up all that is posted in a currency, exactly, with two decimals
// or as many as it takes. Without any posting it is 0.00. An error wraps
// ErrInvalid.
func (b *Book) Balance(currency string) (sum string, entries int, err error) {
	if !currencies.MatchString(currency) {
		return "", 0, fmt.Errorf("%w: currency %.20q; want three capital letters, such as EUR", ErrInvalid, currency)
	}
	var total decimal.Decimal
	for _, e := range b.Entries {
		if e.Currency == currency {
			total = total.Add(e.amount())
			entries++
		}
	}
	return total.StringFixed(max(2, -total.Exponent())), entries, nil
}

func (p Posting) check() error {
	switch {
	case !isText(p.ID) || p.ID == "":
		return fmt.Errorf("%w: id %.60q; want the invoice's number, 1 to %d bytes of text", ErrInvalid, p.ID, MaxText)
	case !currencies.MatchString(p.Currency):
		return fmt.Errorf("%w: currency %.20q; want three capital letters, such as EUR", ErrInvalid, p.Currency)
	case !amounts.MatchString(p.Amount):
		return fmt.Errorf("%w: amount %.60q; want a decimal number as text, such as \"-1234.50\"", ErrInvalid, p.Amount)
	case !isText(p.Vendor):
		return fmt.Errorf("%w: vendor %.60q; want up to %d bytes of text", ErrInvalid, p.Vendor, MaxText)
	}
	return nil
}

func isText(s string) bool { return len(s) <= MaxText && utf8.ValidString(s) }

// amount is exact; check has seen the text.
func (e Entry) amount() decimal.Decimal { return decimal.RequireFromString(e.Amount) }
