// Package patterns holds the agents of the fleets in examples/patterns: one file for each pattern, and one program,
// services/patterns, that is all of them. An agent knows by its run what it is asked to be.
//
// What an agent says is computed, or comes from a language model behind an address; without one a script answers (see
// package model). Each question to a model is a durable step: an attempt that is run again asks nothing twice.
package patterns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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

type handler func(ctx context.Context, r *agent.Run, in json.RawMessage) (any, error)

// handlers are the agents, by name.
var handlers = map[string]handler{
	// sequential
	"mail-redact": typed(redact),
	"mail-topic":  typed(topic),
	"mail-reply":  typed(reply),
	// parallel
	"contract-clause":  typed(readClause),
	"contract-legal":   typed(judgeLegal),
	"contract-payment": typed(judgePayment),
	// loop
	"text-trim": typed(trim),
	// review and critique
	"press-writer":   typed(write),
	"press-reviewer": typed(review),
	// iterative refinement
	"tour-improve": typed(improveTour),
	// coordinator
	"desk":           typed(coordinate),
	"desk-billing":   typed(answerBilling),
	"desk-shipping":  typed(answerShipping),
	"desk-technical": typed(answerTechnical),
	// hierarchical
	"study-lead":   typed(leadStudy),
	"study-region": typed(studyRegion),
	"study-shop":   typed(studyShop),
	// swarm
	"care-reception": typed(careFor("care-reception")),
	"care-billing":   typed(careFor("care-billing")),
	"care-technical": typed(careFor("care-technical")),
	// group chat
	"chat-chair":      typed(chair),
	"chat-sales":      typed(speakForSales),
	"chat-production": typed(speakForProduction),
	"chat-finance":    typed(speakForFinance),
	// magentic
	"incident-lead":    typed(leadIncident),
	"incident-logs":    typed(searchLogs),
	"incident-metrics": typed(searchMetrics),
	"incident-deploys": typed(searchDeploys),
	// human in the loop
	"refund-quote": typed(quoteRefund),
	"refund-pay":   typed(payRefund),
	// custom
	"order-fulfil":  typed(fulfil),
	"carrier-quote": typed(quoteCarrier),
	"order-supply":  typed(supply),
}

// Names are the agents that the program can be, sorted.
func Names() []string { return slices.Sorted(maps.Keys(handlers)) }

// Work is the handler of services/patterns: it is the agent that the run is of.
func Work(ctx context.Context, r *agent.Run, in json.RawMessage) (any, error) {
	h := handlers[r.Agent]
	if h == nil {
		return nil, agent.Fail(CodeInputInvalid, fmt.Errorf("agent %q: this program is %s", r.Agent, strings.Join(Names(), ", ")))
	}
	out, err := h(ctx, r, in)
	var child *agent.ChildError
	if errors.As(err, &child) {
		// The child was tried as often as its own policy says, and its end is on record: another attempt changes nothing.
		return out, agent.Fail(cmp.Or(child.Code, child.Reason), err)
	}
	return out, err
}

// typed lets a handler have types of its own. What does not fit them fails for good.
func typed[In, Out any](h agent.Handler[In, Out]) handler {
	return func(ctx context.Context, r *agent.Run, raw json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, agent.Fail(CodeInputInvalid, fmt.Errorf("input of agent %s does not fit %T", r.Agent, in))
		}
		return h(ctx, r, in)
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
