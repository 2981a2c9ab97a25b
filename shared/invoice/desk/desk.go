// Package desk answers questions about one document: what is payable and when,
// its VAT, who sent it to whom, and whether its arithmetic is right. It finds
// out what is asked by keywords, without a model: the same question about the
// same document gets the same answer.
//
// It imports package invoice and an exact decimal type.
package desk

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/shopspring/decimal"

	"github.com/errand-run/errand/shared/invoice"
)

// MaxQuestion is the length of a question in bytes.
const MaxQuestion = 2000

// Bounds of an answer's text; what goes beyond is counted in it.
const (
	maxNamed = 5   // violations and rows of VAT
	maxText  = 200 // bytes of one text from the document
)

// ErrQuestion is wrapped by the errors of Answer.
var ErrQuestion = errors.New("question cannot be answered")

// A Topic is something that can be asked about.
type Topic string

// The topics, in the order of their answers.
const (
	TopicParties    Topic = "parties"
	TopicPayable    Topic = "payable"
	TopicDue        Topic = "due"
	TopicVAT        Topic = "vat"
	TopicViolations Topic = "violations"
)

var topics = []struct {
	topic    Topic
	keywords []string
	answer   func(*invoice.Document, invoice.Summary, invoice.Report) string
}{
	{TopicParties, []string{"who", "whom", "seller", "vendor", "supplier", "buyer", "customer", "from"}, parties},
	{TopicPayable, []string{"payable", "pay", "paid", "amount", "total", "owe", "owed", "much", "cost", "costs", "sum"}, payable},
	{TopicDue, []string{"due", "when", "date", "deadline", "overdue", "late"}, due},
	{TopicVAT, []string{"vat", "tax", "taxes", "rate", "rates"}, vat},
	{TopicViolations, []string{"violation", "violations", "valid", "invalid", "wrong", "error", "errors", "rule", "rules",
		"broken", "correct", "right", "arithmetic", "check"}, violations},
}

// A Reply answers a question. Without a document it has an Answer alone, which
// asks for one.
type Reply struct {
	Answer string           `json:"answer"` // sentences, one line for each topic
	Topics []Topic          `json:"topics"` // that the question was found to be about; all where none was; never nil
	Facts  *invoice.Summary `json:"facts,omitempty"`
	Valid  *bool            `json:"valid,omitempty"` // whether the arithmetic is right
}

// Answer answers a question about d, or asks for a document where d is nil. A
// question without any keyword is answered with all that is known. An error
// wraps ErrQuestion.
func Answer(question string, d *invoice.Document) (Reply, error) {
	switch {
	case strings.TrimSpace(question) == "":
		return Reply{}, fmt.Errorf("%w: it is empty; ask for instance: what is payable, and when?", ErrQuestion)
	case len(question) > MaxQuestion:
		return Reply{}, fmt.Errorf("%w: it has %d bytes, more than the %d allowed", ErrQuestion, len(question), MaxQuestion)
	case d == nil:
		return Reply{Topics: []Topic{}, Answer: "Which invoice? Send it along as document. " +
			"Then ask who it is from, what is payable, when it is due, what VAT it has, or whether its arithmetic is right."}, nil
	}
	asked := words(question)
	facts, report := invoice.Summarize(d), invoice.Check(d)
	reply := Reply{Facts: &facts, Valid: &report.Valid}
	var all, answers []string
	var known []Topic
	for _, t := range topics {
		answer := t.answer(d, facts, report)
		all, known = append(all, answer), append(known, t.topic)
		if asked.any(t.keywords) {
			answers, reply.Topics = append(answers, answer), append(reply.Topics, t.topic)
		}
	}
	if len(answers) == 0 {
		answers, reply.Topics = all, known
	}
	reply.Answer = strings.Join(answers, "\n")
	return reply, nil
}

type wordSet map[string]bool

func words(text string) wordSet {
	set := make(wordSet)
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		set[word] = true
	}
	return set
}

func (s wordSet) any(keywords []string) bool {
	for _, k := range keywords {
		if s[k] {
			return true
		}
	}
	return false
}

func parties(_ *invoice.Document, f invoice.Summary, _ invoice.Report) string {
	return fmt.Sprintf("%s %s is from %s to %s, issued on %s.", kind(f), clip(f.ID), name(f.Seller), name(f.Buyer), day(f.Issued))
}

func payable(d *invoice.Document, f invoice.Summary, _ invoice.Report) string {
	payer, payee := f.Buyer, f.Seller
	if refund := d.Totals.Payable.IsNegative(); refund != (f.Kind == invoice.KindCreditNote) {
		payer, payee = payee, payer
	}
	return fmt.Sprintf("%s owes %s %s %s.", name(payer), name(payee), clip(f.Currency), strings.TrimPrefix(f.Payable, "-"))
}

func due(_ *invoice.Document, f invoice.Summary, _ invoice.Report) string {
	if f.Due == "" {
		return "It names no due date."
	}
	return fmt.Sprintf("It is due on %s.", clip(f.Due))
}

func vat(d *invoice.Document, f invoice.Summary, _ invoice.Report) string {
	if f.VAT == "" {
		return fmt.Sprintf("It gives no VAT in %s.", clip(f.Currency))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "VAT is %s %s", clip(f.Currency), f.VAT)
	if f.Net != "" {
		fmt.Fprintf(&b, " on %s without VAT", f.Net)
	}
	rows := breakdown(d)
	for i, row := range rows[:min(len(rows), maxNamed)] {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		fmt.Fprintf(&b, "%s at ", money(row.Tax))
		if row.Percent.Valid {
			fmt.Fprintf(&b, "%s %% ", row.Percent.Decimal)
		}
		fmt.Fprintf(&b, "in category %s", clip(row.Category))
	}
	if more := len(rows) - maxNamed; more > 0 {
		fmt.Fprintf(&b, "; and %d rows more", more)
	}
	return b.String() + "."
}

// breakdown is that of the VAT in the document's currency.
func breakdown(d *invoice.Document) []invoice.TaxSubtotal {
	for _, t := range d.TaxTotals {
		if t.Currency == d.Currency {
			return t.Breakdown
		}
	}
	return nil
}

func violations(_ *invoice.Document, _ invoice.Summary, r invoice.Report) string {
	if r.Valid {
		return "Its arithmetic is right: it keeps the rules BR-CO-10 to BR-CO-17."
	}
	named := make([]string, 0, maxNamed)
	for _, v := range r.Violations[:min(len(r.Violations), maxNamed)] {
		named = append(named, fmt.Sprintf("%s at %s (found %s, expected %s)", v.Rule, v.Where, orNothing(v.Found), orNothing(v.Expected)))
	}
	text := "Its arithmetic is wrong: " + strings.Join(named, "; ")
	if more := len(r.Violations) + r.Omitted - len(named); more > 0 {
		text += fmt.Sprintf("; and %d violations more", more)
	}
	return text + "."
}

func money(d decimal.Decimal) string { return d.StringFixed(max(2, -d.Exponent())) }

func kind(f invoice.Summary) string {
	if f.Kind == invoice.KindCreditNote {
		return "Credit note"
	}
	return "Invoice"
}

func name(s string) string {
	if s == "" {
		return "somebody unnamed"
	}
	return clip(s)
}

func day(s string) string {
	if s == "" {
		return "a day unnamed"
	}
	return clip(s)
}

func orNothing(amount string) string {
	if amount == "" {
		return "nothing"
	}
	return amount
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
