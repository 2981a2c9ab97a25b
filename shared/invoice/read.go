package invoice

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/shopspring/decimal"
)

// Read reads one UBL 2.1 Invoice or CreditNote, told apart by the namespace of
// the root element, and takes what the rules and the agents need; the rest is
// skipped unread, within the bounds of this package. The encoding is UTF-8, with
// or without a byte order mark, or a declared ISO-8859-1 or US-ASCII.
//
// What UBL's schema requires of the parts that are read must be there: the
// document's number and currency, its totals with the payable amount, a line,
// and the amount of each part. What only the standard's rules require may be
// missing: that is for [Check] to report.
//
// A fault of the document is an [*Error], and a second reading finds it again.
// Any other error is that of src.
func Read(src io.Reader) (*Document, error) {
	// 1. Take the bytes, no more than allowed.
	raw, err := io.ReadAll(io.LimitReader(src, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read UBL document: %w", err)
	}
	if len(raw) > MaxBytes {
		return nil, &Error{Problem: fmt.Sprintf("the document is larger than the %d bytes allowed", MaxBytes)}
	}

	// 2. Refuse what could hurt the parser.
	if err := guard(raw); err != nil {
		return nil, err
	}
	w, err := newWalker(raw)
	if err != nil {
		return nil, err
	}

	// 3. See what it is.
	if err := w.root(); err != nil {
		return nil, err
	}
	d := &Document{}
	switch root := w.start.Name; {
	case root.Space == nsInvoice && root.Local == "Invoice":
		d.Kind = KindInvoice
	case root.Space == nsCreditNote && root.Local == "CreditNote":
		d.Kind = KindCreditNote
	default:
		return nil, w.fail("the root element is %q of namespace %q, which is neither a UBL 2.1 Invoice nor a CreditNote",
			clip(root.Local, 40), clip(root.Space, 100))
	}

	// 4. Read it, to the end.
	rd := &reader{walker: w, doc: d}
	if err := rd.document(); err != nil {
		return nil, err
	}
	if err := w.finish(); err != nil {
		return nil, err
	}
	return d, nil
}

// A reader fills a document from a walk. Each of its methods reads the current
// element and leaves it.
type reader struct {
	*walker
	doc  *Document
	rows int // of all VAT breakdowns so far
}

func (r *reader) document() error {
	d, depth := r.doc, len(r.path)
	line := "cac:InvoiceLine"
	if d.Kind == KindCreditNote {
		line = "cac:CreditNoteLine"
	}
	totals := false
	err := r.children(func(name string) error {
		switch name {
		case "cbc:ID":
			return r.text(&d.ID)
		case "cbc:IssueDate":
			return r.text(&d.IssueDate)
		case "cbc:DueDate":
			return r.text(&d.DueDate)
		case "cbc:DocumentCurrencyCode":
			return r.text(&d.Currency)
		case "cbc:TaxCurrencyCode":
			return r.text(&d.TaxCurrency)
		case "cac:OrderReference":
			return r.first("cbc:ID", &d.OrderRef)
		case "cac:AccountingSupplierParty":
			return r.party(&d.Seller, &d.SellerVAT)
		case "cac:AccountingCustomerParty":
			return r.party(&d.Buyer, new(string))
		case "cac:PaymentMeans":
			return r.account()
		case "cac:AllowanceCharge":
			return r.adjustments()
		case "cac:TaxTotal":
			return r.taxTotal()
		case "cac:LegalMonetaryTotal":
			if totals {
				return r.fail("%s", errTwice)
			}
			totals = true
			return r.totals()
		case line:
			return r.line()
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case d.ID == "":
		return r.missing(depth, "cbc:ID")
	case d.Currency == "":
		return r.missing(depth, "cbc:DocumentCurrencyCode")
	case !totals:
		return r.missing(depth, "cac:LegalMonetaryTotal")
	case len(d.Lines) == 0:
		return r.missing(depth, line)
	}
	return nil
}

// party reads the name of a party: that it is registered under, else the one it
// trades under; and its registration for tax.
func (r *reader) party(name, tax *string) error {
	var registered, trading string
	err := r.children(func(n string) error {
		if n != "cac:Party" {
			return nil
		}
		return r.children(func(n string) error {
			switch n {
			case "cac:PartyLegalEntity":
				return r.first("cbc:RegistrationName", &registered)
			case "cac:PartyName":
				return r.first("cbc:Name", &trading)
			case "cac:PartyTaxScheme":
				return r.registration(tax)
			}
			return nil
		})
	})
	*name = registered
	if registered == "" {
		*name = trading
	}
	return err
}

// registration reads the number that a party has for VAT; others go by another scheme.
func (r *reader) registration(tax *string) error {
	var number, scheme string
	err := r.children(func(name string) error {
		switch name {
		case "cbc:CompanyID":
			return r.text(&number)
		case "cac:TaxScheme":
			return r.first("cbc:ID", &scheme)
		}
		return nil
	})
	if *tax == "" && strings.EqualFold(scheme, "VAT") {
		*tax = number
	}
	return err
}

// account reads the account of a means of payment.
func (r *reader) account() error {
	return r.children(func(name string) error {
		if name != "cac:PayeeFinancialAccount" {
			return nil
		}
		return r.first("cbc:ID", &r.doc.Account)
	})
}

// adjustments reads a document level allowance or charge.
func (r *reader) adjustments() error {
	if err := r.number(len(r.doc.Adjustments)+1, MaxItems); err != nil {
		return err
	}
	a, err := r.adjustment()
	if err == nil {
		r.doc.Adjustments = append(r.doc.Adjustments, a)
	}
	return err
}

// adjustment reads an allowance or charge.
func (r *reader) adjustment() (a Adjustment, err error) {
	depth := len(r.path)
	var amount decimal.NullDecimal
	indicated := false
	err = r.children(func(name string) error {
		switch name {
		case "cbc:ChargeIndicator":
			return r.value(func(text string) (err error) {
				if indicated {
					return errTwice
				}
				indicated = true
				a.Charge, err = parseBool(text)
				return err
			})
		case "cbc:Amount":
			return r.amount(&amount)
		}
		return nil
	})
	switch {
	case err != nil:
		return a, err
	case !indicated:
		return a, r.missing(depth, "cbc:ChargeIndicator")
	case !amount.Valid:
		return a, r.missing(depth, "cbc:Amount")
	}
	a.Amount = amount.Decimal
	return a, nil
}

// taxTotal reads a VAT total with its breakdown.
func (r *reader) taxTotal() error {
	depth := len(r.path)
	if err := r.number(len(r.doc.TaxTotals)+1, MaxItems); err != nil {
		return err
	}
	var t TaxTotal
	var amount decimal.NullDecimal
	err := r.children(func(name string) error {
		switch name {
		case "cbc:TaxAmount":
			t.Currency = r.attribute("currencyID")
			return r.amount(&amount)
		case "cac:TaxSubtotal":
			return r.taxSubtotal(&t)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !amount.Valid {
		return r.missing(depth, "cbc:TaxAmount")
	}
	t.Amount = amount.Decimal
	r.doc.TaxTotals = append(r.doc.TaxTotals, t)
	return nil
}

// taxSubtotal reads a row of the VAT breakdown of t.
func (r *reader) taxSubtotal(t *TaxTotal) error {
	depth := len(r.path)
	if err := r.number(len(t.Breakdown)+1, MaxItems); err != nil {
		return err
	}
	if r.rows++; r.rows > MaxItems {
		return r.fail("the VAT breakdowns have more than %d rows together", MaxItems)
	}
	var s TaxSubtotal
	var tax decimal.NullDecimal
	err := r.children(func(name string) error {
		switch name {
		case "cbc:TaxableAmount":
			return r.amount(&s.Taxable)
		case "cbc:TaxAmount":
			return r.amount(&tax)
		case "cac:TaxCategory":
			return r.children(func(name string) error {
				switch name {
				case "cbc:ID":
					return r.text(&s.Category)
				case "cbc:Percent":
					return r.amount(&s.Percent)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !tax.Valid {
		return r.missing(depth, "cbc:TaxAmount")
	}
	s.Tax = tax.Decimal
	t.Breakdown = append(t.Breakdown, s)
	return nil
}

// totals reads the document totals.
func (r *reader) totals() error {
	t, depth := &r.doc.Totals, len(r.path)
	var payable decimal.NullDecimal
	err := r.children(func(name string) error {
		switch name {
		case "cbc:LineExtensionAmount":
			return r.amount(&t.LineExtension)
		case "cbc:TaxExclusiveAmount":
			return r.amount(&t.TaxExclusive)
		case "cbc:TaxInclusiveAmount":
			return r.amount(&t.TaxInclusive)
		case "cbc:AllowanceTotalAmount":
			return r.amount(&t.Allowance)
		case "cbc:ChargeTotalAmount":
			return r.amount(&t.Charge)
		case "cbc:PrepaidAmount":
			return r.amount(&t.Prepaid)
		case "cbc:PayableRoundingAmount":
			return r.amount(&t.Rounding)
		case "cbc:PayableAmount":
			return r.amount(&payable)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !payable.Valid {
		return r.missing(depth, "cbc:PayableAmount")
	}
	t.Payable = payable.Decimal
	return nil
}

// line reads an invoice or credit note line.
func (r *reader) line() error {
	depth := len(r.path)
	if err := r.number(len(r.doc.Lines)+1, MaxLines); err != nil {
		return err
	}
	var l Line
	var net decimal.NullDecimal
	adjustments := 0
	err := r.children(func(name string) error {
		switch name {
		case "cbc:ID":
			return r.text(&l.ID)
		case "cbc:InvoicedQuantity", "cbc:CreditedQuantity":
			return r.amount(&l.Quantity)
		case "cbc:LineExtensionAmount":
			return r.amount(&net)
		case "cac:AllowanceCharge":
			if adjustments++; adjustments > MaxItems {
				return r.fail("the line has more than %d allowances and charges", MaxItems)
			}
			a, err := r.adjustment()
			if !a.Charge {
				a.Amount = a.Amount.Neg()
			}
			l.Adjusted = l.Adjusted.Add(a.Amount)
			return err
		case "cac:Item":
			return r.first("cbc:Name", &l.Name)
		case "cac:Price":
			return r.price(&l)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !net.Valid {
		return r.missing(depth, "cbc:LineExtensionAmount")
	}
	l.Net = net.Decimal
	r.doc.Lines = append(r.doc.Lines, l)
	return nil
}

// price reads what a line's pieces cost.
func (r *reader) price(l *Line) error {
	return r.children(func(name string) error {
		switch name {
		case "cbc:PriceAmount":
			return r.amount(&l.Price)
		case "cbc:BaseQuantity":
			return r.amount(&l.Base)
		}
		return nil
	})
}

// first reads the text of the child with this name, if there is one and into is
// still empty.
func (r *reader) first(name string, into *string) error {
	return r.children(func(n string) error {
		if n != name || *into != "" {
			return nil
		}
		return r.text(into)
	})
}

// text reads a text that may be given once.
func (r *reader) text(into *string) error {
	return r.value(func(text string) error {
		if *into != "" {
			return errTwice
		}
		*into = text
		return nil
	})
}

// amount reads a number that may be given once.
func (r *reader) amount(into *decimal.NullDecimal) error {
	return r.value(func(text string) error {
		if into.Valid {
			return errTwice
		}
		d, err := parseDecimal(text)
		*into = some(d)
		return err
	})
}

var errTwice = errors.New("the element is given twice; keep one")
