package invoice

import (
	"fmt"
	"strings"

	"github.com/shopspring/decimal"
)

// xmlSpace is white space as XML Schema collapses it before it reads a value.
const xmlSpace = " \t\r\n"

// parseDecimal reads an xs:decimal: an optional sign, digits, an optional
// point; no exponent, no grouping. The length is checked before any number is
// built, so the cost of a hostile value is that of looking at it.
func parseDecimal(s string) (decimal.Decimal, error) {
	s = strings.Trim(s, xmlSpace)
	if len(s) > MaxDigit {
		return decimal.Decimal{}, fmt.Errorf("the number has %d characters, more than the %d allowed", len(s), MaxDigit)
	}
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(s, "-"), "+"), ".")
	signs := len(s) - len(strings.TrimLeft(s, "+-"))
	digits := whole + fraction
	if signs > 1 || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return decimal.Decimal{}, fmt.Errorf("%q is not a decimal number; write digits with an optional sign and point, as in -1234.50", s)
	}
	return decimal.NewFromString(s)
}

// parseBool reads an xs:boolean, which has four spellings.
func parseBool(s string) (bool, error) {
	switch s = strings.Trim(s, xmlSpace); s {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("%q is not a boolean; write true, false, 1 or 0", clip(s, 40))
}

// round2 rounds to two decimals, a half upwards (towards plus infinity), which
// is how XPath rounds and so how the standard's published tests do.
func round2(d decimal.Decimal) decimal.Decimal {
	if d.Exponent() >= -2 {
		return d
	}
	return roundUnit(d.Shift(2)).Shift(-2)
}

// roundUnit rounds to a whole number as round2 does.
func roundUnit(d decimal.Decimal) decimal.Decimal {
	return d.Add(half).Floor()
}

var half = decimal.New(5, -1)

// written formats d with the decimals that its text in the document had.
func written(d decimal.Decimal) string {
	return d.StringFixed(max(0, -d.Exponent()))
}

// money formats d with two decimals, more only where it has more.
func money(d decimal.Decimal) string {
	return d.StringFixed(max(2, -d.Exponent()))
}

func some(d decimal.Decimal) decimal.NullDecimal { return decimal.NewNullDecimal(d) }

// clip shortens what an error quotes from a document to most bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
