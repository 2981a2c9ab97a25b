// Package tally reconciles a set of documents: what each comes to, which of
// them cannot be relied on, and the totals of the rest.
//
// The work is split so that a run can record it piece by piece: [Split] into
// shards, [Examine] each document of a shard, and [Reconcile] all findings.
// Every result is a function of the documents alone.
//
// It imports package invoice and an exact decimal type.
package tally

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/errand-run/errand/shared/invoice"
)

// Bounds of one reconciliation.
const (
	MaxDocuments  = 1000
	MaxPerShard   = 100 // keeps what a shard found far below a durable step's limit
	DefaultShards = 10
	maxText       = 200 // bytes of a name or id in a finding
	maxProblem    = 500 // bytes
)

// A Finding is what one document comes to. Its size is bounded whatever the
// document holds.
type Finding struct {
	Name string `json:"name"`         // of the file
	ID   string `json:"id,omitempty"` // of the document
	// Unit is equal for documents that are the same: of one seller, with one id.
	Unit     string         `json:"unit,omitempty"`
	Currency string         `json:"currency,omitempty"`
	Amount   string         `json:"amount,omitempty"` // payable, exact; negative for a credit note
	Rules    []invoice.Rule `json:"rules,omitempty"`  // that it breaks, each once
	// Problem says why the document could not be read; the other fields but
	// Name are then empty.
	Problem string `json:"problem,omitempty"`
}

// A Report is the outcome of [Reconcile].
type Report struct {
	Shards    int               `json:"shards"`
	Documents int               `json:"documents"` // examined, the invalid ones among them
	Totals    map[string]string `json:"totals"`    // of the valid documents, by currency, exact
	Invalid   []Invalid         `json:"invalid"`   // in the order of the documents; never nil
}

// Invalid is a document that is in no total.
type Invalid struct {
	Name    string         `json:"name"`
	ID      string         `json:"id,omitempty"`
	Rules   []invoice.Rule `json:"rules,omitempty"`
	Problem string         `json:"problem"`
}

// Split cuts n documents into shards, as even as can be and in order, and
// returns where each ends. It takes the wanted number, DefaultShards for 0, but
// never empty shards, and more where one would exceed MaxPerShard. An error
// names the bound that n or wanted is beyond.
func Split(n, wanted int) (ends []int, err error) {
	switch {
	case n < 1 || n > MaxDocuments:
		return nil, fmt.Errorf("%d documents; want 1 to %d in one reconciliation", n, MaxDocuments)
	case wanted < 0 || wanted > MaxDocuments:
		return nil, fmt.Errorf("%d shards; want 1 to %d, or 0 for %d", wanted, MaxDocuments, DefaultShards)
	case wanted == 0:
		wanted = DefaultShards
	}
	shards := max(min(wanted, n), (n+MaxPerShard-1)/MaxPerShard)
	for k := range shards {
		ends = append(ends, n*(k+1)/shards)
	}
	return ends, nil
}

// Examine reads and checks one document. One that cannot be read is a finding
// too: a set is not worth less for it.
func Examine(f invoice.File) Finding {
	finding := Finding{Name: clip(f.Name, maxText)}
	d, err := f.Read()
	if err != nil {
		finding.Problem = clip(err.Error(), maxProblem)
		return finding
	}
	report := invoice.Check(d)
	for _, v := range report.Violations {
		if !slices.Contains(finding.Rules, v.Rule) {
			finding.Rules = append(finding.Rules, v.Rule)
		}
	}
	amount := d.Totals.Payable
	if d.Kind == invoice.KindCreditNote {
		amount = amount.Neg()
	}
	unit := sha256.Sum256([]byte(d.Seller + "\x00" + d.ID))
	finding.ID, finding.Unit = clip(d.ID, maxText), hex.EncodeToString(unit[:16])
	finding.Currency, finding.Amount = clip(d.Currency, maxText), amount.String()
	return finding
}

// Reconcile adds up what the shards found, in their order. A document that
// breaks a rule, that could not be read or that came before counts in no total
// and is listed. An error means that the findings are not those of Examine.
func Reconcile(shards [][]Finding) (Report, error) {
	report := Report{Shards: len(shards), Totals: map[string]string{}, Invalid: []Invalid{}}
	sums := make(map[string]decimal.Decimal)
	first := make(map[string]string) // name of the document, by unit
	for _, f := range slices.Concat(shards...) {
		report.Documents++
		before, again := first[f.Unit]
		again = again && f.Unit != ""
		if !again {
			first[f.Unit] = f.Name
		}
		problem := f.Problem
		switch {
		case problem != "":
		case again:
			problem = fmt.Sprintf("the same invoice as in %q", before)
		case len(f.Rules) > 0:
			problem = "its arithmetic is wrong"
		default:
			amount, err := decimal.NewFromString(f.Amount)
			if err != nil {
				return Report{}, fmt.Errorf("finding of %q: amount %.40q is no number", f.Name, f.Amount)
			}
			sums[f.Currency] = sums[f.Currency].Add(amount)
			continue
		}
		report.Invalid = append(report.Invalid, Invalid{Name: f.Name, ID: f.ID, Rules: f.Rules, Problem: problem})
	}
	for currency, sum := range sums {
		report.Totals[currency] = sum.StringFixed(max(2, -sum.Exponent()))
	}
	return report, nil
}

// clip shortens s to most bytes, at a letter's border.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const mark = "…"
	return strings.ToValidUTF8(s[:most-len(mark)], "") + mark
}
