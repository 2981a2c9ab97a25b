package book_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/invoice/book"
)

func posting(id, currency, amount, vendor string) book.Posting {
	return book.Posting{ID: id, Entry: book.Entry{Currency: currency, Amount: amount, Vendor: vendor}}
}

func TestOneInvoiceIsEnteredOnce(t *testing.T) {
	for name, c := range map[string]struct {
		again       book.Posting
		wantChanged bool
		wantErr     error
		want        book.Entry
	}{
		"the same again changes nothing":                {posting("A-1", "EUR", "10.50", "Ost GmbH"), false, nil, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"the same amount, written longer, changes none": {posting("A-1", "EUR", "10.5000", ""), false, nil, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"another amount is a conflict":                  {posting("A-1", "EUR", "10.51", ""), false, book.ErrConflict, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"the amount given back is a conflict":           {posting("A-1", "EUR", "-10.50", ""), false, book.ErrConflict, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"another currency is a conflict":                {posting("A-1", "SEK", "10.50", ""), false, book.ErrConflict, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"another vendor is a conflict":                  {posting("A-1", "EUR", "10.50", "West AB"), false, book.ErrConflict, book.Entry{"EUR", "10.50", "Ost GmbH"}},
		"another invoice leaves it alone":               {posting("A-2", "EUR", "99", "West AB"), true, nil, book.Entry{"EUR", "10.50", "Ost GmbH"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b book.Book
			if changed, err := b.Post(posting("A-1", "EUR", "10.50", "Ost GmbH")); !changed || err != nil {
				t.Fatalf("first posting: changed %t, error %v", changed, err)
			}
			changed, err := b.Post(c.again)
			if changed != c.wantChanged || !errors.Is(err, c.wantErr) {
				t.Errorf("changed %t, error %v; want %t, %v", changed, err, c.wantChanged, c.wantErr)
			}
			if diff := cmp.Diff(c.want, b.Entries["A-1"]); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnUnknownVendorIsFilledIn(t *testing.T) {
	var b book.Book
	for i, want := range []bool{true, true, false} {
		vendor := []string{"", "Ost GmbH", "Ost GmbH"}[i]
		changed, err := b.Post(posting("A-1", "EUR", []string{"1.50", "1.5", "1.5"}[i], vendor))
		if changed != want || err != nil {
			t.Errorf("posting %d: changed %t, error %v; want %t", i+1, changed, err, want)
		}
	}
	if diff := cmp.Diff(book.Entry{"EUR", "1.50", "Ost GmbH"}, b.Entries["A-1"]); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
}

func TestAPostingIsRefusedWithWhatWouldBeRight(t *testing.T) {
	for name, c := range map[string]struct {
		posting book.Posting
		want    string // part of the message
	}{
		"without an id":                 {posting("", "EUR", "1", ""), "want the invoice's number"},
		"with an endless id":            {posting(strings.Repeat("x", book.MaxText+1), "EUR", "1", ""), "want the invoice's number"},
		"with an id that is no text":    {posting("\xff", "EUR", "1", ""), "want the invoice's number"},
		"with a currency in words":      {posting("A", "euro", "1", ""), "want three capital letters"},
		"with an amount with an E":      {posting("A", "EUR", "1e9", ""), "want a decimal number"},
		"with an amount with a comma":   {posting("A", "EUR", "1,50", ""), "want a decimal number"},
		"with an amount without digits": {posting("A", "EUR", "-", ""), "want a decimal number"},
		"with an amount with a newline": {posting("A", "EUR", "1\n", ""), "want a decimal number"},
		"with an endless amount":        {posting("A", "EUR", strings.Repeat("9", 25), ""), "want a decimal number"},
		"with an endless vendor":        {posting("A", "EUR", "1", strings.Repeat("x", book.MaxText+1)), "vendor"},
	} {
		t.Run(name, func(t *testing.T) {
			var b book.Book
			changed, err := b.Post(c.posting)
			if changed || !errors.Is(err, book.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("changed %t, error %v; want an invalid posting with %q", changed, err, c.want)
			}
			if len(b.Entries) != 0 {
				t.Errorf("the book holds %v", b.Entries)
			}
			if len(fmt.Sprint(err)) > 300 {
				t.Errorf("the message has %d bytes", len(fmt.Sprint(err)))
			}
		})
	}
}

func TestABalanceIsExactAndOfOneCurrency(t *testing.T) {
	for name, c := range map[string]struct {
		amounts     []string
		want        string
		wantEntries int
	}{
		"nothing is 0.00":                          {nil, "0.00", 0},
		"tenths add up to one":                     {strings.Fields(strings.Repeat("0.1 ", 10)), "1.00", 10},
		"what is given back is taken off":          {[]string{"100", "-30.25"}, "69.75", 2},
		"parts of a cent stay":                     {[]string{"0.001", "1"}, "1.001", 2},
		"amounts beyond any float keep each digit": {[]string{"123456789012345678901234.99", "0.01"}, "123456789012345678901235.00", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var b book.Book
			for i, amount := range c.amounts {
				if _, err := b.Post(posting(fmt.Sprint(i), "EUR", amount, "")); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.Post(posting("foreign", "SEK", "1000", "")); err != nil {
				t.Fatal(err)
			}
			sum, entries, err := b.Balance("EUR")
			if sum != c.want || entries != c.wantEntries || err != nil {
				t.Errorf("balance %s of %d, error %v; want %s of %d", sum, entries, err, c.want, c.wantEntries)
			}
		})
	}
	if _, _, err := new(book.Book).Balance("eur"); !errors.Is(err, book.ErrInvalid) {
		t.Errorf("balance in eur: error %v", err)
	}
}

func TestABookIsReadAsItWasWritten(t *testing.T) {
	for _, state := range []string{`null`, `{"entries":null}`, `{}`} {
		var b book.Book
		if err := json.Unmarshal([]byte(state), &b); err != nil || len(b.Entries) != 0 {
			t.Errorf("read %s: %v, error %v; want an empty book", state, b, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var b book.Book
		for i := range rapid.IntRange(0, 20).Draw(t, "entries") {
			amount := decimal.New(rapid.Int64().Draw(t, "digits"), -rapid.Int32Range(0, 9).Draw(t, "places")).String()
			_, err := b.Post(posting(fmt.Sprintf("%s-%d", rapid.StringN(0, 10, 40).Draw(t, "id"), i),
				rapid.StringMatching("[A-Z]{3}").Draw(t, "currency"), amount, rapid.StringN(0, 10, 40).Draw(t, "vendor")))
			if err != nil {
				t.Fatal(err)
			}
		}
		state := encode(t, b)
		var again book.Book
		if err := json.Unmarshal([]byte(state), &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, again); diff != "" {
			t.Fatalf("read back (-wrote +read):\n%s", diff)
		}
		if twice := encode(t, again); state != twice {
			t.Fatalf("the same book is written as %s and as %s", state, twice)
		}
	})
}

func encode(t rapid.TB, b book.Book) string {
	state, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(state)
}

func TestABookThatNobodyPostedIsRefused(t *testing.T) {
	for _, state := range []string{
		`{"entries":{"A":{"currency":"EUR","amount":"NaN"}}}`, `{"entries":{"":{"currency":"EUR","amount":"1"}}}`,
		`{"entries":[]}`, `[]`,
	} {
		var b book.Book
		if err := json.Unmarshal([]byte(state), &b); err == nil {
			t.Errorf("read %s: %v, without an error", state, b)
		}
	}
}

func TestABookIsBoundedAndSurvivesItsBound(t *testing.T) {
	// A book that holds all but a few bytes of what it may: entries of a known size, and one that fills up.
	b := book.Book{Entries: map[string]book.Entry{}}
	unnamed := posting("small", "EUR", "2", "")
	b.Entries["small"], b.Entries["0000"] = unnamed.Entry, book.Entry{Currency: "EUR", Amount: "1"}
	size := len(encode(t, b))
	vendor := strings.Repeat("v", book.MaxText)
	each := len(`,"0000":{"currency":"EUR","amount":"1","vendor":""}`) + book.MaxText
	for i := 1; size+each <= book.MaxBytes; i++ {
		b.Entries[fmt.Sprintf("%04d", i)] = book.Entry{Currency: "EUR", Amount: "1", Vendor: vendor}
		size += each
	}
	if filled := book.MaxBytes - size - len(`,"vendor":""`); filled > 0 {
		b.Entries["0000"] = book.Entry{Currency: "EUR", Amount: "1", Vendor: vendor[:min(filled, book.MaxText)]}
	}
	before := encode(t, b)
	for name, p := range map[string]book.Posting{
		"a new invoice":              posting("new", "EUR", "1", vendor),
		"a vendor that gets too big": posting("small", "EUR", "2", vendor),
	} {
		if changed, err := b.Post(p); changed || !errors.Is(err, book.ErrFull) {
			t.Errorf("%s: changed %t, error %v; want a full book", name, changed, err)
		}
		if encode(t, b) != before {
			t.Fatalf("%s: the book is no longer as it was", name)
		}
	}
	if changed, err := b.Post(unnamed); changed || err != nil {
		t.Errorf("what is posted already: changed %t, error %v; want it to be known", changed, err)
	}
}
