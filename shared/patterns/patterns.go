// Package patterns holds the agents of the fleets in examples/patterns: one file for each pattern, and one program,
// services/patterns, that is all of them.
//
// What an agent says is computed, or comes from a language model behind an address; without one a script answers (see
// package model). Each question to a model is a durable step: an attempt that is run again asks nothing twice.
package patterns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/patterns/model"
)

// CodeModelRefused is how a run fails whose model gave no answer, and CodeAnswerUnusable of one whose answer is not in
// the form that was asked for.
const (
	CodeModelRefused   = "ModelRefused"
	CodeAnswerUnusable = "AnswerUnusable"
	CodeInputInvalid   = agent.CodeInputInvalid
)

// Agents are what services/patterns is, by name.
func Agents() map[string]agent.Agent {
	return map[string]agent.Agent{
		// sequential
		"mail-redact": agent.Of(redact),
		"mail-topic":  agent.Of(topic),
		"mail-reply":  agent.Of(reply),
		// parallel
		"contract-clause":  agent.Of(readClause),
		"contract-legal":   agent.Of(judgeLegal),
		"contract-payment": agent.Of(judgePayment),
		// loop
		"text-trim": agent.Of(trim),
		// review and critique
		"press-writer":   agent.Of(write),
		"press-reviewer": agent.Of(review),
		// iterative refinement
		"tour-improve": agent.Of(improveTour),
		// coordinator
		"desk":           agent.Of(coordinate),
		"desk-billing":   agent.Of(answerBilling),
		"desk-shipping":  agent.Of(answerShipping),
		"desk-technical": agent.Of(answerTechnical),
		// hierarchical
		"study-lead":   agent.Of(leadStudy),
		"study-region": agent.Of(studyRegion),
		"study-shop":   agent.Of(studyShop),
		// swarm
		"care-reception": agent.Of(care),
		"care-billing":   agent.Of(care),
		"care-technical": agent.Of(care),
		// group chat
		"chat-chair":      agent.Of(chair),
		"chat-sales":      agent.Of(speakForSales),
		"chat-production": agent.Of(speakForProduction),
		"chat-finance":    agent.Of(speakForFinance),
		// magentic
		"incident-lead":    agent.Of(leadIncident),
		"incident-logs":    agent.Of(searchLogs),
		"incident-metrics": agent.Of(searchMetrics),
		"incident-deploys": agent.Of(searchDeploys),
		// human in the loop
		"refund-quote": agent.Of(quoteRefund),
		"refund-pay":   agent.Of(payRefund),
		// custom
		"order-fulfil":  agent.Of(fulfil),
		"carrier-quote": agent.Of(quoteCarrier),
		"order-supply":  agent.Of(supply),
	}
}

// theModel is that of the environment, looked up once.
var theModel = sync.OnceValues(func() (model.Model, error) { return model.FromEnvironment(os.Getenv) })

// ask puts a question to the model, once for the run: the step keeps the answer.
func ask(ctx context.Context, r *agent.Run, step, role, question string) (string, error) {
	return agent.Step(ctx, r, step, func(ctx context.Context) (string, error) {
		m, err := theModel()
		if err != nil {
			return "", agent.Fail(CodeModelRefused, err)
		}
		answer, err := m.Answer(ctx, []model.Message{{Role: "system", Content: role}, {Role: "user", Content: question}})
		var refused *model.Error
		switch {
		case err == nil:
		case !errors.As(err, &refused):
			return "", err
		case refused.Status == 429:
			return "", fmt.Errorf("%w: %w", refused, agent.Throttled(refused.After))
		case refused.Passing:
			return "", fmt.Errorf("%w: %w", refused, agent.Retry(refused.After))
		default:
			return "", agent.Fail(CodeModelRefused, refused)
		}
		r.Usage(agent.Usage{InputTokens: answer.InputTokens, OutputTokens: answer.OutputTokens, Model: answer.Model})
		return answer.Text, nil
	})
}

// askJSON is ask for an answer that is one JSON document, which a model may have put between other words.
func askJSON[T any](ctx context.Context, r *agent.Run, step, role, question string) (T, error) {
	var out T
	text, err := ask(ctx, r, step, role, question)
	if err != nil {
		return out, err
	}
	from, to := strings.Index(text, "{"), strings.LastIndex(text, "}")
	if from < 0 || to < from || json.Unmarshal([]byte(text[from:to+1]), &out) != nil {
		return out, agent.Fail(CodeAnswerUnusable, fmt.Errorf("step %q: the model's answer of %d bytes holds no JSON that fits %T", step, len(text), out))
	}
	return out, nil
}

func invalid(format string, args ...any) error {
	return agent.Fail(CodeInputInvalid, fmt.Errorf(format, args...))
}
