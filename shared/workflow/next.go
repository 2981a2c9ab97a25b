package workflow

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Limits of a run of a workflow.
const (
	MaxOutcomes   = 10_000   // outcomes of one run; one more ends it with LoopLimit
	MaxCallsBytes = 64 << 20 // of the inputs of one fan-out
	maxAnswer     = 200      // bytes of a route's answer that are kept
)

// Progress is how far a run is.
type Progress struct {
	Input    json.RawMessage // of the workflow
	Run      Run
	Outcomes map[string]*Outcome // by name
}

// Run is what expressions see of the run itself.
type Run struct {
	ID, Workflow, Tenant string
	Labels               map[string]string
}

// Next says what is to be done. Asked again with the same progress it says the same; asked with the outcome of what it
// said it goes on.
func (p *Plan) Next(s Progress) Action {
	w := p.walk(s)
	for w.at.Stage < len(p.stages) {
		if a := w.step(); a != nil {
			return *a
		}
	}
	return w.finish()
}

// walker goes the way of a run from its beginning, by the outcomes that there are.
type walker struct {
	*Plan
	Progress
	at     fleet.Position
	visits []int
	past   []passed        // by stage; the zero one has not been entered
	last   json.RawMessage // the last output of a stage that makes one
	trail  []visit
}

// passed is the newest visit of a stage.
type passed struct {
	outcome *Outcome
	visits  int
}

// visit is one entry of the way so far.
type visit struct {
	stage   int
	name    string
	outcome *Outcome
}

func (p *Plan) walk(s Progress) *walker {
	return &walker{
		Plan: p, Progress: s, at: p.flow.Start(), last: s.Input,
		visits: make([]int, len(p.stages)), past: make([]passed, len(p.stages)),
	}
}

// step goes past the stage where the walk stands, or says what that needs.
func (w *walker) step() *Action {
	i := w.at.Stage
	s := &w.stages[i]
	// 1. Bounds.
	w.visits[i]++
	if most := s.Visits(); most > 0 && w.visits[i] > most {
		return w.fail(s, run.LoopLimit, "stage %s was to be entered once more after %d visits, which are its maxVisits", s.Name, most)
	}
	// 2. Its outcome, or what leads to it.
	name := Name(s.Name, w.visits[i])
	o := w.Outcomes[name]
	if o == nil {
		if len(w.Outcomes) >= MaxOutcomes {
			return w.fail(s, run.LoopLimit, "the run has gone through %d stages and rounds, the most that there are", MaxOutcomes)
		}
		a := w.begin(s, name)
		a.Stage, a.Visit = s.Name, w.visits[i]
		return a
	}
	if s.Gate != nil && o.State == Succeeded && o.Choice != Approved {
		return w.refused(s, name, o)
	}
	if o.State == Failed {
		return w.fail(s, o.Reason, "%s", o.Message)
	}
	// 3. Go on.
	w.trail = append(w.trail, visit{i, name, o})
	w.past[i] = passed{o, w.visits[i]}
	skipped := o.State == Skipped
	if !skipped && s.Route == nil && s.Gate == nil {
		w.last = o.Output
	}
	if s.Route != nil && !skipped {
		if j := w.flow.Place(o.Choice); j < 0 || !w.stages[j].Branch {
			return w.fail(s, run.RouteUnmatched, "%s: on record is branch %q, which the workflow does not have", name, o.Choice)
		}
		w.at = w.flow.Choose(w.at, o.Choice)
		return nil
	}
	w.at = w.flow.Follow(w.at, skipped)
	return nil
}

func (w *walker) fail(s *stage, reason run.Reason, format string, args ...any) *Action {
	a := &Action{Do: DoFail, Reason: reason, Message: run.Clip(fmt.Sprintf(format, args...), run.MaxMessage)}
	if s != nil {
		a.Stage, a.Visit = s.Name, w.visits[w.at.Stage]
	}
	return a
}

// broken is the end of a run because an expression has no value of use.
func (w *walker) broken(s *stage, f *function, err error) *Action {
	return w.fail(s, run.NonRetryable, "%s: %v", f.path, err)
}

func record(step string, o *Outcome) *Action { return &Action{Do: DoRecord, Step: step, Outcome: o} }

// refused is the end of a run that a person said no to, or that nobody answered.
func (w *walker) refused(s *stage, step string, o *Outcome) *Action {
	var said struct {
		Comment string   `json:"comment"`
		By      []string `json:"by"`
	}
	_ = json.Unmarshal(o.Output, &said) // without a comment it says less
	if o.Choice == Expired {
		return w.fail(s, run.GateExpired, "%s: nobody decided in time", step)
	}
	text := step + ": rejected"
	if len(said.By) > 0 {
		text += " by " + strings.Join(said.By, ", ")
	}
	if said.Comment != "" {
		text += ": " + said.Comment
	}
	return w.fail(s, run.Rejected, "%s", text)
}

// begin is what a stage needs that has no outcome yet.
func (w *walker) begin(s *stage, name string) *Action {
	if s.when != nil {
		ok, err := w.truth(s.when, w.scope(s.when, nil))
		if err != nil {
			return w.broken(s, s.when, err)
		}
		if !ok {
			return record(name, &Outcome{State: Skipped})
		}
	}
	switch {
	case s.Parallel != nil:
		return w.fanOut(s, name)
	case s.Route != nil:
		return w.route(s, name)
	case s.Loop != nil:
		return w.loop(s, name)
	case s.Gate != nil:
		return w.ask(s, name)
	}
	return w.call(s, name)
}

// given is what a person gave a stage to work on, in a run that repeats another from there.
func (w *walker) given(name string) (json.RawMessage, bool) {
	if o := w.Outcomes[name+"/input"]; o != nil {
		return o.Output, true
	}
	return nil, false
}

// input is what a stage works on: what a person gave, else the expression's value, else what there was last.
func (w *walker) input(s *stage, name string, fs ...*function) (json.RawMessage, *Action) {
	if raw, ok := w.given(name); ok {
		return raw, nil
	}
	for _, f := range fs {
		if f == nil {
			continue
		}
		raw, err := w.json(f, w.scope(f, nil))
		if err != nil {
			return nil, w.broken(s, f, err)
		}
		return raw, nil
	}
	return w.last, nil
}

// call is a stage of one agent or workflow.
func (w *walker) call(s *stage, name string) *Action {
	input, broken := w.input(s, name, s.input)
	if broken != nil {
		return broken
	}
	a := &Action{Do: DoCall, Step: name, Group: name, Calls: []Call{{Agent: s.Agent, Workflow: s.Workflow, Input: input}}}
	a.settle = func(results []Result) *Outcome {
		o := &Outcome{State: Succeeded, Output: results[0].Output, Run: results[0].Run}
		if s.Compensate != "" {
			o.Input = input
		}
		return o
	}
	return a
}

// ask is a gate.
func (w *walker) ask(s *stage, name string) *Action {
	value, broken := w.input(s, name, s.action, s.input)
	if broken != nil {
		return broken
	}
	return w.gate(s, name, s.Gate, value)
}

func (w *walker) gate(s *stage, step string, g *fleet.Gate, value json.RawMessage) *Action {
	v, err := w.language.From(value)
	if err != nil {
		return w.fail(s, run.NonRetryable, "%s: what is decided on cannot be read: %v", step, err)
	}
	return &Action{Do: DoAsk, Step: step, Gate: g, Title: title(g.Title, v), Value: value}
}

// route chooses a branch, or asks who does.
func (w *walker) route(s *stage, name string) *Action {
	if s.Route.By == nil {
		raw, ok := w.given(name)
		if !ok {
			var err error
			if raw, err = w.json(s.on, w.scope(s.on, nil)); err != nil {
				return w.broken(s, s.on, err)
			}
		}
		return record(name, w.choose(s, raw))
	}
	input, broken := w.input(s, name, s.byInput, s.input)
	if broken != nil {
		return broken
	}
	a := &Action{Do: DoCall, Step: name, Group: name, Calls: []Call{{Agent: s.Route.By.Agent, Input: input}}}
	a.settle = func(results []Result) *Outcome {
		raw := results[0].Output
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) == nil && len(object["next"]) > 0 {
			raw = object["next"]
		}
		o := w.choose(s, raw)
		o.Run = results[0].Run
		return o
	}
	return a
}

// choose matches an answer to the branches of a route: without outer blanks, and without regard to case.
func (w *walker) choose(s *stage, raw json.RawMessage) *Outcome {
	text := string(raw)
	var word string
	if json.Unmarshal(raw, &word) == nil {
		text = word
	}
	text = strings.TrimSpace(text)
	o := &Outcome{State: Succeeded, Answer: run.Clip(text, maxAnswer)}
	r := s.Route
	for answer, target := range r.Cases { // one at most fits: Validate saw to it
		if strings.EqualFold(strings.TrimSpace(answer), text) {
			o.Choice = target
		}
	}
	if len(r.Cases) == 0 {
		for _, target := range w.flow.Targets(s.Stage) {
			if strings.EqualFold(target, text) {
				o.Choice = target
			}
		}
	}
	if o.Choice == "" {
		o.Choice = r.Default
	}
	if o.Choice == "" {
		*o = *failure(run.RouteUnmatched, "", "stage %s: the answer %q fits no case, and there is no default", s.Name, o.Answer)
		o.Answer = run.Clip(text, maxAnswer)
		return o
	}
	o.Output = encode(map[string]any{"choice": o.Choice, "answer": o.Answer})
	return o
}

// loop calls the agent and its critic in turns.
func (w *walker) loop(s *stage, name string) *Action {
	l := s.Loop
	var said []any // what the rounds gave, as expressions see it
	var outputs []json.RawMessage
	for n := 1; ; n++ {
		step := name + "/" + strconv.Itoa(n)
		o := w.Outcomes[step]
		if o == nil {
			return w.round(s, name, step, said, outputs)
		}
		if o.State == Failed {
			return record(name, o)
		}
		output, err := w.language.From(orNull(o.Output))
		if err != nil {
			return w.fail(s, run.NonRetryable, "%s: its output cannot be read: %v", step, err)
		}
		heard := output
		if l.Critic != "" {
			critic := w.Outcomes[step+"/critic"]
			if critic == nil {
				return w.criticize(s, step, n, append(said, said1(n, nil, output, nil)), o.Output)
			}
			if critic.State == Failed {
				return record(name, critic)
			}
			if heard, err = w.language.From(orNull(critic.Output)); err != nil {
				return w.fail(s, run.NonRetryable, "%s/critic: its output cannot be read: %v", step, err)
			}
			said = append(said, said1(n, heard, output, heard))
		} else {
			said = append(said, said1(n, heard, output, nil))
		}
		outputs = append(outputs, o.Output)
		// Is it done? A round that another followed was not.
		if n < l.Max && w.Outcomes[name+"/"+strconv.Itoa(n+1)] != nil {
			continue
		}
		done, err := w.truth(s.until, w.scope(s.until, turn(said)))
		switch {
		case err != nil:
			return w.broken(s, s.until, err)
		case done:
			return record(name, &Outcome{State: Succeeded, Output: o.Output, Rounds: n, Best: n})
		case n >= l.Max:
			return w.limit(s, name, said, outputs)
		}
	}
}

// said1 is a round as expressions see it: the fields of what was heard, with the round's own beside them.
func said1(n int, heard, output, critique any) map[string]any {
	v := make(map[string]any)
	if fields, ok := heard.(map[string]any); ok {
		for k, x := range fields {
			v[k] = x
		}
	}
	v["round"], v["output"], v["critique"] = int64(n), output, critique
	return v
}

// turn are the variables of a loop's expressions.
func turn(said []any) map[string]any {
	v := map[string]any{"last": map[string]any{}, "messages": []any{}}
	if len(said) > 0 {
		v["last"], v["messages"] = said[len(said)-1], said
	}
	return v
}

// round is the call of the agent. It gets the expression's value; without one what the stage works on, from the second
// round on with what became of it.
func (w *walker) round(s *stage, name, step string, said []any, outputs []json.RawMessage) *Action {
	input, changed := w.given(name)
	switch {
	case changed && len(said) == 0:
	case s.input != nil:
		raw, err := w.json(s.input, w.scope(s.input, turn(said)))
		if err != nil {
			return w.broken(s, s.input, err)
		}
		input = raw
	default:
		if !changed {
			input = w.last
		}
		if len(said) > 0 {
			last := said[len(said)-1].(map[string]any)
			input = encode(map[string]any{"input": orNull(input), "output": orNull(outputs[len(outputs)-1]), "critique": last["critique"]})
		}
	}
	a := &Action{Do: DoCall, Step: step, Group: step, Calls: []Call{{Agent: s.Loop.Agent, Workflow: s.Loop.Workflow, Input: input}}}
	a.settle = func(results []Result) *Outcome {
		return &Outcome{State: Succeeded, Output: results[0].Output, Run: results[0].Run}
	}
	return a
}

func (w *walker) criticize(s *stage, step string, n int, said []any, output json.RawMessage) *Action {
	input := orNull(output)
	if s.criticInput != nil {
		raw, err := w.json(s.criticInput, w.scope(s.criticInput, turn(said)))
		if err != nil {
			return w.broken(s, s.criticInput, err)
		}
		input = raw
	}
	step += "/critic"
	a := &Action{Do: DoCall, Step: step, Group: step, Calls: []Call{{Agent: s.Loop.Critic, Input: input}}}
	a.settle = func(results []Result) *Outcome {
		return &Outcome{State: Succeeded, Output: results[0].Output, Run: results[0].Run}
	}
	return a
}

// limit is what becomes of a loop that is not done when its rounds are over.
func (w *walker) limit(s *stage, name string, said []any, outputs []json.RawMessage) *Action {
	last := len(outputs)
	switch s.Loop.OnLimit {
	case fleet.LimitBest:
		best, most := 0, math.Inf(-1)
		for i := range said {
			v, err := s.score.Value(w.scope(s.score, turn(said[:i+1])))
			if err != nil {
				return w.broken(s, s.score, fmt.Errorf("round %d: %w", i+1, err))
			}
			score, ok := float(v)
			if !ok {
				return w.broken(s, s.score, fmt.Errorf("round %d: the score is no number", i+1))
			}
			if score > most {
				best, most = i, score
			}
		}
		return record(name, &Outcome{State: Succeeded, Output: outputs[best], Rounds: last, Best: best + 1})
	case fleet.LimitGate:
		o := w.Outcomes[name+"/gate"]
		switch {
		case o == nil:
			return w.askAtLimit(s, name, said, outputs[last-1])
		case o.Choice == Approved:
			return record(name, &Outcome{State: Succeeded, Output: outputs[last-1], Rounds: last, Best: last})
		}
		return w.refused(s, name+"/gate", o)
	}
	return w.fail(s, run.LoopLimit, "stage %s: not done after %d rounds, the most that it may have", s.Name, last)
}

func (w *walker) askAtLimit(s *stage, name string, said []any, output json.RawMessage) *Action {
	g := s.Loop.Gate
	if g == nil {
		g = &fleet.Gate{
			Title:  fmt.Sprintf("Stage %s is not done after %d rounds. Go on with what it has?", s.Name, len(said)),
			Quorum: 1, Expires: fleet.DefaultGateExpires, OnExpiry: fleet.ExpiryReject,
		}
	}
	value := orNull(output)
	if s.limitAction != nil {
		raw, err := w.json(s.limitAction, w.scope(s.limitAction, turn(said)))
		if err != nil {
			return w.broken(s, s.limitAction, err)
		}
		value = raw
	}
	return w.gate(s, name+"/gate", g, value)
}

// finish is the end of a run that has gone all its way.
func (w *walker) finish() Action {
	output := orNull(w.last)
	if w.output != nil {
		raw, err := w.json(w.output, w.scope(w.output, nil))
		if err != nil {
			return *w.broken(nil, w.output, err)
		}
		output = raw
	}
	return Action{Do: DoFinish, Output: output}
}
