package sim

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// families are who called whom, as the written records say.
type families struct {
	of    map[string][]string // children by parent, as they came
	place map[string]string   // child by PARENT/STAGE/ITEM
	fired map[string]bool     // RUN/STEP whose children were joined
}

func newFamilies() families {
	return families{of: map[string][]string{}, place: map[string]string{}, fired: map[string]bool{}}
}

func placeOf(parent, stage string, item int) string {
	return fmt.Sprintf("%s/%s/%d", parent, stage, item)
}

// callsFor reports whether a unit makes a child of a run. Who calls may be fenced before that is written: the child of
// a run that has ended ends, too.
func callsFor(u *store.Unit, parent string) bool {
	for i := range u.Writes {
		if d := &u.Writes[i]; d.Kind == store.KindRun && d.Expect == 0 && d.Index != nil && d.Index.Parent == parent {
			return true
		}
	}
	return false
}

// called: a run was made that another one called.
func (l *ledger) called(c *run.Record) {
	w := l.w
	place := placeOf(c.Parent, c.Stage, c.Item)
	other, k := l.family.place[place], l.runs[c.Parent]
	if other != "" && (other != c.ID || k != nil && !k.rec.State.Terminal()) { // the last call of a run that has ended may come late
		w.fail("there is one child for each call", "%s is run %s and run %s", place, other, c.ID)
	}
	l.family.place[place] = c.ID
	l.family.of[c.Parent] = append(l.family.of[c.Parent], c.ID)
	w.saw("child called")
	l.calledToUndo(c)
	if k == nil {
		w.fail("a child has a parent", "run %s: there is no run %s", c.ID, c.Parent)
	}
	p := k.rec
	root := p.Root
	if root == "" {
		root = p.ID
	}
	switch {
	case c.Tenant != p.Tenant, c.Root != root, c.Depth != p.Depth+1, c.Requester != p.Requester, c.Depth > run.MaxDepth:
		w.fail("a child is of its parent's family", "run %s of tenant %s, root %s, depth %d, asked for by %s; its parent %s: %s, %s, %d, %s",
			c.ID, c.Tenant, c.Root, c.Depth, c.Requester, p.ID, p.Tenant, root, p.Depth, p.Requester)
	case p.Latest != 0 && (c.Latest == 0 || c.Latest > p.Latest || c.Deadline > c.Latest) && !p.State.Terminal() && p.State != run.Compensating:
		w.fail("a child has no more time than its parent's submitter gave", "run %s until %d, its parent %s until %d", c.ID, c.Deadline, p.ID, p.Latest)
	}
	if p.Kind == run.KindWorkflow && !w.temper.two && k.steps[p.ID+"/"+c.Stage] != "" {
		w.fail("a stage that has ended is not run again", "run %s of stage %s of run %s", c.ID, c.Stage, p.ID)
	}
	if agent := w.fleet.agents[revisionOf(p)]; p.Kind == run.KindAgent && c.Mode == "" && (agent == nil || !contains(agent.Permissions.Call, c.Agent)) {
		w.fail("nobody is called without permission", "run %s of %s called %s", p.ID, p.Agent, c.Agent)
	}
}

// acknowledged: an attempt was told that its children are there.
func (l *ledger) acknowledged(c *control.ChildCalls, out []control.Child) {
	for i, x := range out {
		k := l.runs[x.Run]
		switch {
		case k == nil && l.runs[c.Run] != nil && !l.runs[c.Run].rec.State.Terminal():
			l.w.fail("what is acknowledged is durable", "child %d of step %s of run %s", x.Item, c.Step, c.Run)
		case k == nil: // all of it is removed already
		case k.rec.Parent != c.Run, k.rec.Stage != c.Step, k.rec.Item != c.First+i, x.Item != c.First+i, k.rec.Agent != c.Calls[i].Agent+c.Calls[i].Workflow,
			!bytes.Equal(k.rec.Input.Inline, c.Calls[i].Input) && len(c.Calls[i].Input) > 0:
			l.w.fail("what is acknowledged is what was asked", "child %d of step %s of run %s is run %s, item %d of %s of run %s", x.Item, c.Step, c.Run, x.Run, k.rec.Item, k.rec.Stage, k.rec.Parent)
		}
	}
}

// group is how the children stand that a parked run waits for.
type group struct{ there, ended, won, lost int }

func (l *ledger) group(parent string, park *run.Park) (g group) {
	for item := range park.Size {
		k := l.runs[l.family.place[placeOf(parent, park.Step, item)]]
		if k == nil {
			continue
		}
		g.there++
		switch s := k.rec.State; {
		case s == run.Succeeded:
			g.won++
			g.ended++
		case s.Terminal():
			g.lost++
			g.ended++
		}
	}
	return g
}

// isDecided is when a parked run goes on, in plain words: when all have ended, when those are enough that succeeded, or
// when more failed than may.
func (g group) isDecided(park *run.Park) bool {
	may := park.Tolerate
	if park.Need > 0 && park.Size-park.Need > may {
		may = park.Size - park.Need
	}
	return g.ended == park.Size || park.Need > 0 && g.won >= park.Need || g.lost > may
}

// resultIn finds the record of a step in a unit.
func resultIn(u *store.Unit, id, step string) (json.RawMessage, bool) {
	for i := range u.Writes {
		if d := &u.Writes[i]; d.Kind == store.KindStep && d.ID == id+"/"+step {
			var s runtime.Step
			if json.Unmarshal(d.Body, &s) != nil {
				return nil, false
			}
			return s.Result, true
		}
	}
	return nil, false
}

// joined: a run that waited for children goes on.
func (l *ledger) joined(parent *run.Record) {
	w, park := l.w, parent.Park
	name := parent.ID + "/" + park.Step
	if l.family.fired[name] {
		w.fail("a fan-in fires once", "%s", name)
	}
	l.family.fired[name] = true
	w.saw("fan-in")
	// 1. It is decided.
	g := l.group(parent.ID, park)
	if !g.isDecided(park) || g.there < park.Size {
		w.fail("a fan-in fires when it is decided", "%s: %+v of %+v", name, g, park)
	}
	if g.ended < park.Size {
		w.saw("fan-in that was decided before all children ended")
	}
	// 2. What the run is given, in the order of its calls. Those that it does not need have not failed.
	body, there := resultIn(l.unit, parent.ID, park.Step)
	var x struct {
		Size, Succeeded, Failed int
		Children                []struct {
			Run    string
			State  run.State
			Output json.RawMessage
		}
	}
	if !there || json.Unmarshal(body, &x) != nil {
		w.fail("a fan-in gives results", "%s: %s", name, body)
	}
	if x.Size != park.Size || len(x.Children) != park.Size || !w.temper.two && (x.Succeeded != g.won || x.Failed > g.lost) {
		w.fail("a fan-in gives results", "%s: %d children of %d, %d succeeded, %d failed; records say %+v", name, len(x.Children), x.Size, x.Succeeded, x.Failed, g)
	}
	for item, c := range x.Children {
		id := l.family.place[placeOf(parent.ID, park.Step, item)]
		k := l.runs[id]
		switch {
		case c.Run != id:
			w.fail("results come in the order of the calls", "%s, item %d: run %s, want %s", name, item, c.Run, id)
		case c.State != k.rec.State && c.State.Terminal():
			w.fail("a fan-in gives results", "%s, item %d: %s, run %s is %s", name, item, c.State, id, k.rec.State)
		case c.State == run.Succeeded && !bytes.Equal(c.Output, k.rec.Output.Inline):
			w.fail("a fan-in gives results", "%s, item %d: %s, run %s gave %s", name, item, c.Output, id, k.rec.Output.Inline)
		case !c.State.Terminal() && c.State != run.Canceling && c.State != run.Compensating:
			w.fail("what a decided group does not need ends", "%s, item %d: run %s is %s", name, item, id, c.State)
		}
	}
}

// given: an attempt looks at the result of a step of its program.
func (l *ledger) given(a *attempt, p *part, result json.RawMessage) {
	switch p.on {
	case run.OnChildren:
		if !l.family.fired[a.Run+"/"+p.step] {
			l.w.fail("a fan-in gives results", "attempt %s was given %s for step %s, which never fired", a.ID(), result, p.step)
		}
	case run.OnGate:
		l.gaveDecision(a, p, result)
	}
}

// families checks a process that has nothing more to do and whose store has met no fault lately: whoever waits for
// children that are decided goes on, and children end with who called them.
func (l *ledger) families() {
	w := l.w
	for _, id := range l.order {
		k := l.runs[id]
		if k == nil {
			continue
		}
		r := k.rec
		if r.State == run.Waiting && r.Park.On == run.OnChildren {
			if g := l.group(id, r.Park); g.isDecided(r.Park) || g.there < r.Park.Size {
				w.fail("a decided group wakes its run", "run %s waits for %+v: %+v", id, r.Park, g)
			}
		}
		if r.Parent == "" || r.State.Terminal() || r.State == run.Canceling || r.State == run.Compensating || r.Mode != "" {
			continue
		}
		if p := l.runs[r.Parent]; p == nil || p.rec.State.Terminal() || p.rec.State == run.Canceling {
			state := run.State("removed")
			if p != nil {
				state = p.rec.State
			}
			w.fail("children end with who called them", "run %s is %s, its parent %s is %s", id, r.State, r.Parent, state)
		}
	}
}
