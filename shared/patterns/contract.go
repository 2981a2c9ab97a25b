package patterns

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Parallel: the clauses of a contract are read one by one at the same time, and two experts judge the whole.

type clause struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

type clauseRead struct {
	Number int      `json:"number"`
	Flags  []string `json:"flags"`
	Words  int      `json:"words"`
}

// flags are words that a clause is marked for.
var flags = []struct{ flag, words string }{
	{"unlimited liability", `unlimited|without limit`},
	{"automatic renewal", `renews? automatically|automatic(ally)? renew`},
	{"one side decides", `sole discretion|at any time without notice`},
	{"penalty", `penalt(y|ies)`},
}

var flagPatterns = func() (patterns []*regexp.Regexp) {
	for _, f := range flags {
		patterns = append(patterns, regexp.MustCompile(`(?i)\b(`+f.words+`)\b`))
	}
	return patterns
}()

// readClause marks one clause. One without a text fails for good: the stage says how many of those it bears.
func readClause(_ context.Context, _ *agent.Run, in clause) (clauseRead, error) {
	out := clauseRead{Number: in.Number, Flags: []string{}, Words: len(strings.Fields(in.Text))}
	if out.Words == 0 {
		return out, agent.Fail("ClauseEmpty", fmt.Errorf("clause %d has no text", in.Number))
	}
	for i, p := range flagPatterns {
		if p.MatchString(in.Text) {
			out.Flags = append(out.Flags, flags[i].flag)
		}
	}
	return out, nil
}

type contract struct {
	Clauses []clause `json:"clauses"`
}

type judgment struct {
	Findings []string `json:"findings"`
	Risk     int      `json:"risk"`
	Summary  string   `json:"summary"`
}

// judgeLegal weighs what the flags of all clauses come to.
func judgeLegal(_ context.Context, _ *agent.Run, in contract) (judgment, error) {
	out := judgment{Findings: []string{}}
	for _, c := range in.Clauses {
		for i, p := range flagPatterns {
			if p.MatchString(c.Text) {
				out.Findings = append(out.Findings, fmt.Sprintf("clause %d: %s", c.Number, flags[i].flag))
				out.Risk += len(flags) - i
			}
		}
	}
	out.Summary = fmt.Sprintf("%d findings in %d clauses", len(out.Findings), len(in.Clauses))
	return out, nil
}

var termPattern = regexp.MustCompile(`(?i)\bwithin ([0-9]{1,3}) days\b`)

// usualTerm is how many days one has to pay when nothing is agreed, by the directive on late payment.
const usualTerm = 30

// judgePayment looks for terms of payment that are shorter than usual.
func judgePayment(_ context.Context, _ *agent.Run, in contract) (judgment, error) {
	out := judgment{Findings: []string{}, Summary: "no term of payment is given"}
	for _, c := range in.Clauses {
		for _, found := range termPattern.FindAllStringSubmatch(c.Text, -1) {
			days, err := strconv.Atoi(found[1])
			if err != nil {
				continue
			}
			out.Summary = "terms of payment are given"
			if days < usualTerm {
				out.Findings = append(out.Findings, fmt.Sprintf("clause %d: due within %d days, %d are usual", c.Number, days, usualTerm))
				out.Risk++
			}
		}
	}
	return out, nil
}
