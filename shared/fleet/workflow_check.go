package fleet

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// Validate returns every problem of the workflow that shows in itself. Whether its expressions compile, and whether
// what it names is declared and fits, is for package workflow.
func (w *Workflow) Validate() []Problem {
	c := new(check)
	c.meta(&w.Meta)
	c.schema("spec.input.schema", w.Input)
	c.expression("spec.output", w.Output)
	c.budget(&w.Budget)
	c.length("spec.timeouts.queue", w.Timeouts.Queue)
	c.length("spec.timeouts.run", w.Timeouts.Run)
	c.names("spec.permissions.call", w.Permissions.Call)
	if w.Retain != Forever {
		c.length("spec.retain", w.Retain)
	}
	switch n := len(w.Stages); {
	case n == 0:
		c.add("spec.stages", "stages are required: at least one")
	case n > MaxStages:
		c.add("spec.stages", "%d stages are too many; want at most %d", n, MaxStages)
	default:
		c.stages(w)
	}
	return c.problems
}

func (c *check) stages(w *Workflow) {
	// 1. Names, and each stage for itself.
	at := make(map[string]int, len(w.Stages))
	for i := range w.Stages {
		s, path := &w.Stages[i], At("spec.stages", i)
		c.name(path+".name", s.Name)
		if first, ok := at[s.Name]; ok {
			c.add(path+".name", "stage `%s` is already given at spec.stages[%d]; rename or remove one", clip(s.Name), first)
		} else {
			at[s.Name] = i
		}
		c.stage(path, s)
	}
	before := len(c.problems)
	// 2. Where they lead.
	for i := range w.Stages {
		c.leads(w, at, i)
	}
	if !slices.ContainsFunc(w.Stages, func(s Stage) bool { return !s.Branch }) {
		c.add("spec.stages", "every stage is a branch, so the workflow has no beginning; leave branch out of the first one")
	}
	// 3. The whole, where its parts are good: every stage can be reached, and no cycle is without a cap.
	if len(c.problems) == before {
		c.flow(w)
	}
}

func (c *check) stage(path string, s *Stage) {
	c.expression(path+".when", s.When)
	c.expression(path+".input", s.Input)
	c.ref(path+".next", s.Next)
	c.count(path+".maxVisits", int64(s.MaxVisits), MaxVisits)

	var given []string
	for _, p := range []struct {
		field string
		set   bool
	}{
		{"agent", s.Agent != ""}, {"workflow", s.Workflow != ""}, {"parallel", s.Parallel != nil},
		{"route", s.Route != nil}, {"loop", s.Loop != nil}, {"gate", s.Gate != nil},
	} {
		if p.set {
			given = append(given, p.field)
		}
	}
	switch {
	case len(given) == 0:
		c.add(path, "a stage needs one of agent, workflow, parallel, route, loop, gate, to say what it does")
		for _, f := range []string{"agent", "workflow", "parallel", "route", "loop", "gate"} {
			c.relate(path + "." + f)
		}
	case len(given) > 1:
		c.add(path+"."+given[1], "%s exclude each other; make a stage of each", strings.Join(given, " and "))
	}

	c.ref(path+".agent", s.Agent)
	c.ref(path+".workflow", s.Workflow)
	c.ref(path+".compensate", s.Compensate)
	if s.Compensate != "" && s.Agent == "" && s.Workflow == "" {
		c.add(path+".compensate", "only a stage with agent or workflow can be compensated; the agents of other stages undo what they did by themselves")
	}
	c.parallel(path+".parallel", s.Parallel)
	c.route(path+".route", s.Route)
	if s.Route != nil && s.MaxVisits != 0 {
		c.add(path+".maxVisits", "a route has its own: write route.maxVisits")
	}
	if s.Route != nil && s.Next != "" {
		c.add(path+".next", "a route says itself what follows; give its branches a next")
	}
	c.loop(path+".loop", s.Loop)
	c.gate(path+".gate", s.Gate)
}

// callee checks that exactly one of agent and workflow is named.
func (c *check) callee(path, agent, workflow string) {
	switch {
	case agent == "" && workflow == "":
		c.add(path+".agent", "required: the agent to call, or in its place workflow")
		c.relate(path + ".workflow")
	case agent != "" && workflow != "":
		c.add(path+".workflow", "agent and workflow exclude each other; keep one")
	}
	c.ref(path+".agent", agent)
	c.ref(path+".workflow", workflow)
}

func (c *check) parallel(path string, p *Parallel) {
	if p == nil {
		return
	}
	switch {
	case p.ForEach == "" && len(p.Branches) == 0:
		c.add(path, "want forEach and agent (one call for each item of a list), or branches")
		c.relate(path+".forEach", path+".branches")
	case p.ForEach != "" && len(p.Branches) > 0:
		c.add(path+".branches", "forEach and branches exclude each other; make a stage of each")
	case p.ForEach != "":
		c.callee(path, p.Agent, p.Workflow)
	case p.Agent != "" || p.Workflow != "":
		c.add(path, "agent and workflow here go with forEach; a branch names its own")
	}
	c.expression(path+".forEach", p.ForEach)
	c.expression(path+".input", p.Input)
	c.count(path+".max", int64(p.Max), MaxFanOut)
	if t := p.Tolerate; !(t >= 0 && t <= MaxFanOut) || t > 1 && t != math.Trunc(t) {
		c.add(path+".tolerate", "%v is neither a share below 1 nor a whole number up to %d", t, MaxFanOut)
	}
	if len(p.Branches) > MaxBranches {
		c.add(path+".branches", "%d branches are too many; want at most %d", len(p.Branches), MaxBranches)
		return
	}
	first := make(map[string]int)
	for i, b := range p.Branches {
		at := At(path, "branches", i)
		c.name(at+".name", b.Name)
		if j, ok := first[b.Name]; ok {
			c.add(at+".name", "branch `%s` is already given at [%d]; rename or remove one", clip(b.Name), j)
		} else {
			first[b.Name] = i
		}
		c.callee(at, b.Agent, b.Workflow)
		c.expression(at+".input", b.Input)
		c.expression(at+".when", b.When)
	}
	c.merge(path+".merge", p)
}

func (c *check) merge(path string, p *Parallel) {
	m := &p.Merge
	kind := m.kind()
	oneOf(c, path+".rule", m.Rule, MergeCollect, MergeFirst, MergeVote, MergeQuorum, MergeAgent, MergeFields)
	for _, f := range []struct {
		name  string
		set   bool
		rules []MergeRule
	}{
		{"quorum", m.Quorum != 0, []MergeRule{MergeQuorum}},
		{"agent", m.Agent != "", []MergeRule{MergeAgent}},
		{"on", m.On != "", []MergeRule{MergeVote, MergeQuorum}},
		{"fields", len(m.Fields) > 0, []MergeRule{MergeFields}},
	} {
		if f.set && !slices.Contains(f.rules, kind) {
			c.add(path+"."+f.name, "goes with rule %s; this merge's is %s", list(f.rules), kind)
		}
	}
	c.ref(path+".agent", m.Agent)
	c.expression(path+".on", m.On)
	switch kind {
	case MergeQuorum:
		most := MaxFanOut
		if len(p.Branches) > 0 {
			most = len(p.Branches)
		}
		if m.Quorum < 1 || m.Quorum > most {
			c.add(path+".quorum", "%d is outside 1 to %d, as many as there are to call", m.Quorum, most)
		}
	case MergeAgent:
		if m.Agent == "" {
			c.add(path+".agent", "required: the agent that merges")
		}
	case MergeFields:
		if len(p.Branches) == 0 && p.ForEach != "" {
			c.add(path+".fields", "fields are merged of branches; for the items of a list write collect, and take it apart with an expression")
		}
		c.fieldRules(path+".fields", m.Fields)
	}
}

func (c *check) fieldRules(path string, rules map[string]FieldRule) {
	if len(rules) > MaxFieldRules {
		c.add(path, "%d fields are too many; want at most %d", len(rules), MaxFieldRules)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(rules)) {
		at := At(path, Key(k))
		c.text(at, k, MaxTextLength)
		if rules[k] == "" {
			c.add(at, "a rule is required: append, sum, max, min, first, byBranch")
		}
		oneOf(c, at, rules[k], FieldAppend, FieldSum, FieldMax, FieldMin, FieldFirst, FieldByBranch)
	}
}

func (c *check) route(path string, r *Route) {
	if r == nil {
		return
	}
	switch {
	case r.On == "" && r.By == nil:
		c.add(path, "want on (an expression that gives the answer) or by: {agent: NAME}")
		c.relate(path+".on", path+".by")
	case r.On != "" && r.By != nil:
		c.add(path+".by", "on and by exclude each other; keep one")
	case r.On != "" && len(r.Cases) == 0:
		c.add(path+".cases", "required: the branches by answer")
	}
	c.expression(path+".on", r.On)
	if r.By != nil {
		c.name(path+".by.agent", r.By.Agent)
		c.expression(path+".by.input", r.By.Input)
	}
	c.count(path+".maxVisits", int64(r.MaxVisits), MaxVisits)
	if len(r.Cases) > MaxBranches {
		c.add(path+".cases", "%d cases are too many; want at most %d", len(r.Cases), MaxBranches)
		return
	}
	keys := slices.Sorted(maps.Keys(r.Cases))
	for i, k := range keys {
		at := At(path, "cases", Key(k))
		c.text(at, k, MaxTextLength)
		for _, other := range keys[:i] {
			if strings.EqualFold(strings.TrimSpace(k), strings.TrimSpace(other)) {
				c.add(at, "answers are matched without regard to case and outer blanks, so this case is `%s` again; remove one", clip(other))
			}
		}
	}
}

func (c *check) loop(path string, l *Loop) {
	if l == nil {
		return
	}
	c.callee(path, l.Agent, l.Workflow)
	c.ref(path+".critic", l.Critic)
	if l.CriticInput != "" && l.Critic == "" {
		c.add(path+".criticInput", "there is no critic to give it to")
		c.relate(path + ".critic")
	}
	c.expression(path+".criticInput", l.CriticInput)
	if l.Until == "" {
		c.add(path+".until", "required: when the loop is done, like \"last.score >= 0.9\"")
	}
	c.expression(path+".until", l.Until)
	c.expression(path+".score", l.Score)
	if l.Max < 1 || l.Max > MaxRounds {
		c.add(path+".max", "%d rounds are outside 1 to %d", l.Max, MaxRounds)
	}
	oneOf(c, path+".onLimit", l.OnLimit, LimitFail, LimitBest, LimitGate)
	if l.Score != "" && l.OnLimit != LimitBest {
		c.add(path+".score", "a score goes with onLimit: best")
		c.relate(path + ".onLimit")
	}
	if l.Gate != nil && l.OnLimit != LimitGate {
		c.add(path+".gate", "a gate goes with onLimit: gate")
		c.relate(path + ".onLimit")
	}
	c.gate(path+".gate", l.Gate)
}

func (c *check) gate(path string, g *Gate) {
	if g == nil {
		return
	}
	if strings.TrimSpace(g.Title) == "" {
		c.add(path+".title", "a title is required: what is asked, like \"Pay {{.vendor}}\"")
	}
	c.text(path+".title", g.Title, MaxTitleLength)
	if bad, ok := TitleFields(g.Title); !ok {
		c.add(path+".title", "%q is not a place for a value; write {{.FIELD}} or {{.FIELD.FIELD}}", clip(bad))
	}
	c.expression(path+".action", g.Action)
	c.approvers(path+".approvers", g.Approvers)
	c.count(path+".quorum", int64(g.Quorum), MaxGateQuorum)
	c.length(path+".expires", g.Expires)
	c.length(path+".remind", g.Remind)
	oneOf(c, path+".onExpiry", g.OnExpiry, ExpiryReject, ExpiryApprove, ExpiryEscalate)
	if g.OnExpiry == ExpiryEscalate && g.Escalate == nil {
		c.add(path+".onExpiry", "escalate needs escalate: {after, to}, to say whom to ask then")
		c.relate(path + ".escalate")
	}
	if e := g.Escalate; e != nil {
		c.length(path+".escalate.after", e.After)
		if e.After == 0 {
			c.add(path+".escalate.after", "required: after what time others are asked too, like 24h")
		}
		if e.After > 0 && g.Expires > 0 && e.After >= g.Expires {
			c.add(path+".escalate.after", "%s is not before the gate expires, after %s", e.After, g.Expires)
			c.relate(path + ".expires")
		}
		if len(e.To) == 0 {
			c.add(path+".escalate.to", "required: who is asked then, like [\"group:cfo\"]")
		}
		c.approvers(path+".escalate.to", e.To)
	}
}

func (c *check) approvers(path string, values []string) {
	items(c, path, values, MaxApprovers, func(path, s string) {
		c.text(path, s, MaxTextLength)
		if kind, name, _ := strings.Cut(s, ":"); name == "" || kind != "user" && kind != "group" && kind != "role" {
			c.add(path, "%q names nobody; want user:NAME, group:NAME or role:NAME", clip(s))
		}
	})
}

// TitleFields splits the places of a title, and reports the first that is none.
func TitleFields(title string) (bad string, ok bool) {
	for rest := title; ; {
		_, after, found := strings.Cut(rest, "{{")
		if !found {
			return "", true
		}
		place, next, closed := strings.Cut(after, "}}")
		path := strings.TrimSpace(place)
		if !closed || !strings.HasPrefix(path, ".") {
			return place, false
		}
		for part := range strings.SplitSeq(path[1:], ".") {
			if part == "" || strings.ContainsAny(part, " \t|(){}\"'") {
				return place, false
			}
		}
		rest = next
	}
}
