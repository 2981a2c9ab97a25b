package patterns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Magentic: the lead keeps a ledger of what is known, what is planned and how far it got, lets specialists work off the
// plan, and makes another one when it stalls. A guard ends what gets nowhere.

// Bounds of an incident.
const (
	maxStalls  = 2  // turns in a row without anything new before another plan is made
	maxReplans = 2  // before it is left to a person
	maxLead    = 16 // turns in all
	maxPlan    = 6  // steps of one plan
	maxRecords = 10_000
	// window is how long before its symptom a cause is looked for, in minutes.
	window = 30
)

type incident struct {
	ID      string   `json:"id"`
	Report  string   `json:"report"`
	Logs    []logged `json:"logs"`
	Metrics []series `json:"metrics"`
	Deploys []deploy `json:"deploys"`
}

type logged struct {
	At      int    `json:"at"` // minute
	Service string `json:"service"`
	Text    string `json:"text"`
}

type series struct {
	Service string    `json:"service"`
	Errors  []float64 `json:"errors"` // by minute
}

type deploy struct {
	At      int    `json:"at"`
	Service string `json:"service"`
	Change  string `json:"change"`
}

// Kinds of facts.
const (
	factSymptom = "symptom"
	factLog     = "log"
	factChange  = "change"
)

type fact struct {
	Kind    string `json:"kind"`
	Service string `json:"service"`
	At      int    `json:"at"`
	Text    string `json:"text"`
}

type task struct {
	Agent string `json:"agent"`
	Ask   string `json:"ask"`
}

// ledger is all that the lead knows. Each turn adds a line to its progress.
type ledger struct {
	Facts    []fact   `json:"facts"`
	Plan     []task   `json:"plan"` // what is left of it
	Plans    int      `json:"plans"`
	Stalls   int      `json:"stalls"` // turns in a row without a new fact
	Progress []string `json:"progress"`
}

type assignment struct {
	Ask      string   `json:"ask"`
	Incident incident `json:"incident"`
	Facts    []fact   `json:"facts"`
}

type findings struct {
	Facts []fact `json:"facts"`
}

type resolution struct {
	Cause  string `json:"cause"`
	Undo   string `json:"undo"` // what is proposed
	Ledger ledger `json:"ledger"`
}

// investigators are whom the lead may send.
var investigators = []string{"incident-logs", "incident-metrics", "incident-deploys"}

const leadRole = `You lead the investigation of an incident. incident-logs finds lines that hold a word, incident-metrics finds services whose errors rise, ` +
	`incident-deploys finds changes just before a symptom that is known. You are told the report, the facts so far, and, after a plan that got nowhere, ` +
	`"Failed:" with its steps. Answer with JSON alone: {"plan":[{"agent":"NAME","ask":"WORD"}]}`

func leadIncident(ctx context.Context, r *agent.Run, in incident) (resolution, error) {
	if n := len(in.Logs) + len(in.Metrics) + len(in.Deploys); n > maxRecords {
		return resolution{}, invalid("an incident of %d logs, metrics and deploys; at most %d", n, maxRecords)
	}
	l := ledger{Facts: []fact{}}
	var tried []task
	for turn := 1; turn <= maxLead; turn++ {
		// 1. A plan, where there is none that gets on.
		if len(l.Plan) == 0 || l.Stalls >= maxStalls {
			if l.Plans > maxReplans {
				break
			}
			if err := replan(ctx, r, in, &l, tried); err != nil {
				return resolution{}, err
			}
		}
		// 2. Its next step.
		next := l.Plan[0]
		l.Plan = l.Plan[1:]
		tried = append(tried, next)
		found, err := agent.Call[findings](ctx, r, next.Agent, assignment{next.Ask, in, l.Facts})
		if err != nil {
			return resolution{}, err
		}
		// 3. What that adds to the ledger.
		news := l.add(found.Facts)
		l.Stalls++
		if news > 0 {
			l.Stalls = 0
		}
		l.Progress = append(l.Progress, fmt.Sprintf("%s %q: %d new", next.Agent, next.Ask, news))
		r.Progress(float64(turn)/maxLead, l.Progress[len(l.Progress)-1])
		// 4. Done, when a change explains a symptom.
		if cause, ok := l.cause(); ok {
			return resolution{Cause: cause.Text, Undo: fmt.Sprintf("roll %s back to before minute %d", cause.Service, cause.At), Ledger: l}, nil
		}
	}
	return resolution{}, agent.Fail("Stalled", fmt.Errorf("%d plans and %d turns found %d facts and no cause, the last ones %s: a person has to look",
		l.Plans, len(l.Progress), len(l.Facts), strings.Join(l.Progress[max(0, len(l.Progress)-3):], "; ")))
}

// replan asks for another plan and counts it.
func replan(ctx context.Context, r *agent.Run, in incident, l *ledger, tried []task) error {
	var q strings.Builder
	fmt.Fprintf(&q, "Report: %s\n", in.Report)
	for _, f := range l.Facts {
		fmt.Fprintf(&q, "Fact: %s\n", f.Text)
	}
	for _, t := range tried {
		fmt.Fprintf(&q, "Failed: %s %s\n", t.Agent, t.Ask)
	}
	l.Plans++
	made, err := askJSON[struct{ Plan []task }](ctx, r, fmt.Sprintf("plan %d", l.Plans), leadRole, q.String())
	if err != nil {
		return err
	}
	if len(made.Plan) == 0 || len(made.Plan) > maxPlan {
		return agent.Fail(CodeAnswerUnusable, fmt.Errorf("plan %d has %d steps; want 1 to %d", l.Plans, len(made.Plan), maxPlan))
	}
	for _, t := range made.Plan {
		if !slices.Contains(investigators, t.Agent) {
			return agent.Fail(CodeAnswerUnusable, fmt.Errorf("plan %d sends %q, who is none of %s", l.Plans, cut(t.Agent, 40), strings.Join(investigators, ", ")))
		}
	}
	l.Plan, l.Stalls = made.Plan, 0
	return nil
}

// add takes the facts that are new, and counts them.
func (l *ledger) add(facts []fact) (news int) {
	for _, f := range facts {
		if !slices.Contains(l.Facts, f) {
			l.Facts = append(l.Facts, f)
			news++
		}
	}
	return news
}

// cause is the last change of a service before its first symptom.
func (l *ledger) cause() (cause fact, ok bool) {
	for _, symptom := range l.Facts {
		for _, change := range l.Facts {
			if symptom.Kind == factSymptom && change.Kind == factChange && change.Service == symptom.Service &&
				change.At <= symptom.At && symptom.At-change.At <= window && (!ok || change.At > cause.At) {
				cause, ok = change, true
			}
		}
	}
	return cause, ok
}

// searchLogs finds services whose lines hold a word.
func searchLogs(_ context.Context, _ *agent.Run, in assignment) (findings, error) {
	out := findings{Facts: []fact{}}
	if in.Ask == "" {
		return out, invalid("ask: want a word to look for")
	}
	count, first := map[string]int{}, map[string]int{}
	var services []string
	for _, line := range in.Incident.Logs {
		if !strings.Contains(strings.ToLower(line.Text), strings.ToLower(in.Ask)) {
			continue
		}
		if count[line.Service]++; count[line.Service] == 1 {
			first[line.Service] = line.At
			services = append(services, line.Service)
		}
	}
	for _, s := range services {
		out.Facts = append(out.Facts, fact{factLog, s, first[s], fmt.Sprintf("%d lines of %s hold %q, the first at minute %d", count[s], s, in.Ask, first[s])})
	}
	return out, nil
}

// searchMetrics finds services whose errors rise to more than three times what they were at first.
func searchMetrics(_ context.Context, _ *agent.Run, in assignment) (findings, error) {
	out := findings{Facts: []fact{}}
	for _, s := range in.Incident.Metrics {
		for minute, errors := range s.Errors {
			if usual := max(s.Errors[0], 1); errors > 3*usual {
				out.Facts = append(out.Facts, fact{factSymptom, s.Service, minute, fmt.Sprintf("errors of %s rise at minute %d, from %g to %g", s.Service, minute, s.Errors[0], errors)})
				break
			}
		}
	}
	return out, nil
}

// searchDeploys finds changes just before the symptoms that are known.
func searchDeploys(_ context.Context, _ *agent.Run, in assignment) (findings, error) {
	out := findings{Facts: []fact{}}
	for _, d := range in.Incident.Deploys {
		before := slices.ContainsFunc(in.Facts, func(f fact) bool {
			return f.Kind == factSymptom && f.Service == d.Service && d.At <= f.At && f.At-d.At <= window
		})
		if before {
			out.Facts = append(out.Facts, fact{factChange, d.Service, d.At, fmt.Sprintf("%s was changed at minute %d: %s", d.Service, d.At, d.Change)})
		}
	}
	return out, nil
}
