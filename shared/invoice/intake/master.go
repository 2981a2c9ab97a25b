package intake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/shopspring/decimal"
)

// Bounds of a file of master data.
const (
	maxMaster  = 16 << 20 // bytes
	maxRecords = 100_000
)

// A Vendor is whom one buys from.
type Vendor struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	VAT      string   `json:"vat"`
	Accounts []string `json:"accounts"` // that may be paid to
}

// An Order is what was bought.
type Order struct {
	ID       string `json:"id"`
	Vendor   string `json:"vendor"` // its ID
	Currency string `json:"currency"`
	Net      string `json:"net"` // without VAT, at most
}

// ReadMaster reads a list of vendors or orders. The error says what is wrong with it.
func ReadMaster[T Vendor | Order](src io.Reader) ([]T, error) {
	text, err := io.ReadAll(io.LimitReader(src, maxMaster+1))
	if err != nil {
		return nil, fmt.Errorf("read master data: %w", err)
	}
	if len(text) > maxMaster {
		return nil, fmt.Errorf("read master data: more than %d bytes", maxMaster)
	}
	var all []T
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("read master data: %w", err)
	}
	if len(all) > maxRecords {
		return nil, fmt.Errorf("read master data: %d records; at most %d", len(all), maxRecords)
	}
	return all, nil
}

// A VendorReport is the outcome of [MatchVendor].
type VendorReport struct {
	Vendor   string   `json:"vendor"` // its ID; empty when it is not known
	Findings []string `json:"findings"`
}

// MatchVendor finds who sent the invoice, by the tax registration, else by the name, and whether the account is one of
// theirs: an account that changed is the oldest trick of all.
func MatchVendor(vendors []Vendor, e *Extract) VendorReport {
	out := VendorReport{Findings: []string{}}
	at := slices.IndexFunc(vendors, func(v Vendor) bool {
		if e.VAT != "" && v.VAT != "" {
			return plain(v.VAT) == plain(e.VAT)
		}
		return plain(v.Name) == plain(e.Seller)
	})
	if at < 0 {
		out.Findings = append(out.Findings, fmt.Sprintf("vendor %.100q is not known", e.Seller))
		return out
	}
	v := vendors[at]
	out.Vendor = v.ID
	if plain(v.Name) != plain(e.Seller) {
		out.Findings = append(out.Findings, fmt.Sprintf("vendor %s is known as %.100q, the invoice says %.100q", v.ID, v.Name, e.Seller))
	}
	if e.Account != "" && !slices.ContainsFunc(v.Accounts, func(a string) bool { return plain(a) == plain(e.Account) }) {
		out.Findings = append(out.Findings, fmt.Sprintf("account %.40q is none that is known of vendor %s", e.Account, v.ID))
	}
	return out
}

// An OrderReport is the outcome of [MatchOrder].
type OrderReport struct {
	Order    string   `json:"order"` // empty when there is none
	Findings []string `json:"findings"`
}

// MatchOrder finds what was ordered, and whether more is charged.
func MatchOrder(orders []Order, vendors []Vendor, e *Extract) OrderReport {
	out := OrderReport{Findings: []string{}}
	find := func(format string, args ...any) { out.Findings = append(out.Findings, fmt.Sprintf(format, args...)) }
	if e.Order == "" {
		find("no purchase order is named")
		return out
	}
	at := slices.IndexFunc(orders, func(o Order) bool { return plain(o.ID) == plain(e.Order) })
	if at < 0 {
		find("purchase order %.60q is not known", e.Order)
		return out
	}
	o := orders[at]
	out.Order = o.ID
	if v := MatchVendor(vendors, e).Vendor; v != "" && v != o.Vendor {
		find("purchase order %s is of vendor %s, the invoice of %s", o.ID, o.Vendor, v)
	}
	limit, err := decimal.NewFromString(o.Net)
	net, netErr := decimal.NewFromString(e.Net)
	switch {
	case err != nil || netErr != nil:
		find("purchase order %s: %q and %q cannot be compared", o.ID, o.Net, e.Net)
	case o.Currency != e.Currency:
		find("purchase order %s is in %s, the invoice in %s", o.ID, o.Currency, e.Currency)
	case net.GreaterThan(limit):
		find("purchase order %s is over %s %s, the invoice over %s", o.ID, limit, o.Currency, net)
	}
	return out
}
