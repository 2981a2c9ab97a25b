// Package invoice reads UBL 2.1 invoices and credit notes and checks their
// arithmetic against the European standard EN 16931. The agents of the worked
// example share it.
//
// It imports the standard library and an exact decimal type, nothing of this
// module: it knows documents, not runs. Nothing here logs, keeps state or
// touches the network, so every function is safe for concurrent use.
package invoice

import "github.com/shopspring/decimal"

// Bounds of what [Read] accepts. A document beyond one of them is refused with
// an [Error] that names the bound.
const (
	MaxBytes = 10 << 20 // size of a document as received
	MaxLines = 20_000   // invoice or credit note lines
	MaxItems = 10_000   // of document level allowances and charges, of tax totals and of VAT breakdown rows, each
	MaxDepth = 64       // nesting of elements
	MaxTag   = 64 << 10 // bytes in one tag with its attributes
	MaxText  = 4 << 10  // bytes in one value that is read
	MaxDigit = 40       // characters in one number
)

// Kind tells an invoice from a credit note.
type Kind string

// The kinds that [Read] knows, by the namespace of the root element.
const (
	KindInvoice    Kind = "invoice"
	KindCreditNote Kind = "creditnote"
)

// A Document is what the rules and the agents need of one UBL file. BT and BG
// numbers are the standard's names for business terms and groups. Amounts are
// exact. A NullDecimal that is not Valid stands for an element that is absent,
// which the standard does not always take for zero.
type Document struct {
	Kind        Kind
	ID          string // BT-1, never empty
	IssueDate   string // BT-2, as written
	DueDate     string // BT-9, as written; empty when absent
	Currency    string // BT-5, never empty
	TaxCurrency string // BT-6; empty when VAT is accounted in Currency
	OrderRef    string // BT-13, the buyer's purchase order; empty when none is named
	Seller      string // BT-27, else the trading name
	SellerVAT   string // BT-31, the seller's number for VAT; empty when none is given
	Buyer       string // BT-44, else the trading name
	Account     string // BT-84, the first account to pay to; empty when none is given
	Adjustments []Adjustment
	TaxTotals   []TaxTotal // in the order of the file
	Totals      Totals
	Lines       []Line // at least one
}

// An Adjustment is an allowance (BG-20) or a charge (BG-21) on the whole
// document. Those of a line are within the line's net amount already.
type Adjustment struct {
	Charge bool // false: an allowance, which lowers the total
	Amount decimal.Decimal
}

// A TaxTotal is the VAT of the document in one currency: BT-110 in the
// document's currency, BT-111 in the tax currency.
type TaxTotal struct {
	Currency  string // of Amount, as its currencyID says; empty when it says none
	Amount    decimal.Decimal
	Breakdown []TaxSubtotal
}

// A TaxSubtotal is one row of the VAT breakdown (BG-23).
type TaxSubtotal struct {
	Taxable  decimal.NullDecimal // BT-116
	Tax      decimal.Decimal     // BT-117
	Category string              // BT-118: S, Z, E, AE, K, G, O, L or M
	Percent  decimal.NullDecimal // BT-119; absent where VAT does not apply
}

// Totals are the document totals (BG-22).
type Totals struct {
	LineExtension decimal.NullDecimal // BT-106, sum of line net amounts
	Allowance     decimal.NullDecimal // BT-107
	Charge        decimal.NullDecimal // BT-108
	TaxExclusive  decimal.NullDecimal // BT-109
	TaxInclusive  decimal.NullDecimal // BT-112
	Prepaid       decimal.NullDecimal // BT-113
	Rounding      decimal.NullDecimal // BT-114
	Payable       decimal.Decimal     // BT-115
}

// A Line is one line of the document (BG-25).
type Line struct {
	ID   string          // BT-126
	Name string          // BT-153
	Net  decimal.Decimal // BT-131, after the line's own allowances and charges

	Quantity decimal.NullDecimal // BT-129
	Price    decimal.NullDecimal // BT-146, of Base pieces
	Base     decimal.NullDecimal // BT-149; one when absent
	Adjusted decimal.Decimal     // BT-141 less BT-136: the line's own charges less its allowances
}
