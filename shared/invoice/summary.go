package invoice

import "github.com/shopspring/decimal"

// A Summary is what people ask about a document. Amounts have the decimals they
// were written with, and are empty where the document gives none.
type Summary struct {
	ID       string `json:"id"`
	Kind     Kind   `json:"kind"`
	Seller   string `json:"seller"`
	Buyer    string `json:"buyer"`
	Issued   string `json:"issued"`
	Due      string `json:"due"`
	Currency string `json:"currency"`
	Net      string `json:"net"`     // without VAT, BT-109
	VAT      string `json:"vat"`     // in Currency, BT-110
	Payable  string `json:"payable"` // BT-115
	Lines    int    `json:"lines"`
}

// Summarize takes d's figures as they stand; whether they agree is for [Check].
func Summarize(d *Document) Summary {
	s := Summary{
		ID: d.ID, Kind: d.Kind, Seller: d.Seller, Buyer: d.Buyer,
		Issued: d.IssueDate, Due: d.DueDate, Currency: d.Currency,
		Net: writtenOrNone(d.Totals.TaxExclusive), Payable: written(d.Totals.Payable),
		Lines: len(d.Lines),
	}
	for _, t := range d.TaxTotals {
		if t.Currency == d.Currency {
			s.VAT = written(t.Amount)
			break
		}
	}
	return s
}

func writtenOrNone(d decimal.NullDecimal) string {
	if !d.Valid {
		return ""
	}
	return written(d.Decimal)
}
