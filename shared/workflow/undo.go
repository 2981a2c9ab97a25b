package workflow

import (
	"encoding/json"

	"github.com/errand-run/errand/shared/run"
)

// Undo is a completed stage that is to be compensated.
type Undo struct {
	Step  string // the outcome of the stage's visit
	Stage string
	Agent string // that undoes it
	Run   string // the child that did it
	At    run.Instant
	Input json.RawMessage
}

// Undo lists what is to be compensated of a run that failed or was canceled, in the order in which to do it: what was
// done last comes first. A stage that was skipped, or that has not ended, is none.
func (p *Plan) Undo(s Progress) []Undo {
	w := p.trailOf(s)
	var list []Undo
	for i := len(w.trail) - 1; i >= 0; i-- {
		v := w.trail[i]
		st := &p.stages[v.stage]
		if st.Compensate == "" || v.outcome.State != Succeeded {
			continue
		}
		list = append(list, Undo{
			Step: v.name, Stage: st.Name, Agent: st.Compensate, Run: v.outcome.Run, At: v.outcome.At,
			Input: encode(map[string]json.RawMessage{"input": orNull(v.outcome.Input), "output": orNull(v.outcome.Output)}),
		})
	}
	return list
}

func (p *Plan) trailOf(s Progress) *walker {
	w := p.walk(s)
	for w.at.Stage < len(p.stages) && w.step() == nil {
	}
	return w
}

// Visit is one entry of a stage.
type Visit struct {
	Stage string
	Name  string // of its outcome
}

// Visits are the entries of stages of a run so far, in order: those that have ended, and then the one that is at work.
func (p *Plan) Visits(s Progress) []Visit {
	w := p.trailOf(s)
	list := make([]Visit, 0, len(w.trail)+1)
	for _, v := range w.trail {
		list = append(list, Visit{p.stages[v.stage].Name, v.name})
	}
	if i := w.at.Stage; i < len(p.stages) {
		list = append(list, Visit{p.stages[i].Name, Name(p.stages[i].Name, w.visits[i])})
	}
	return list
}
