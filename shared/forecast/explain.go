package forecast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
)

// Side is a fleet and what came of it.
type Side struct {
	Name    string // for people: where the fleet was read from
	Objects []fleet.Object
	Result  *Result
}

// Finding says something about a tenant in plain sentences.
type Finding struct {
	Tenant string `json:"tenant"`
	Text   string `json:"text"`
}

// Difference is a field that two fleets declare differently. A value that one does not have is empty.
type Difference struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Field string `json:"field,omitempty"` // empty when only one of the fleets has the object
	A     string `json:"a"`
	B     string `json:"b"`
}

// String is the difference as a sentence without an end.
func (d Difference) String() string {
	who := strings.ToLower(d.Kind) + " " + d.Name
	switch {
	case d.Field == "" && d.A == "":
		return who + " is in B only"
	case d.Field == "":
		return who + " is in A only"
	}
	none := func(s string) string { return cmp.Or(s, "unset") }
	return fmt.Sprintf("%s of %s is %s under A and %s under B", strings.TrimPrefix(d.Field, "spec."), who, none(d.A), none(d.B))
}

// Comparison is two forecasts of the same arrivals side by side.
type Comparison struct {
	Findings    []Finding    `json:"findings"` // the largest differences first
	Differences []Difference `json:"differences"`
}

// Bounds on what is told.
const (
	maxFindings    = 30
	maxDifferences = 200
	// noticeable is the wait from which on there is something to explain.
	noticeable = Span(100e6)
)

// Explain says of each tenant that waited, was turned away or could not be placed, what for: the longest waits first.
func Explain(s Side) []Finding {
	var list []Finding
	rows := slices.Clone(s.Result.Tenants)
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Wait.P95, a.Wait.P95) })
	for i := range rows {
		r := &rows[i]
		var parts []string
		if r.Wait.P95 >= noticeable || r.Wait.Max >= 10*noticeable {
			half := "up to " + r.Wait.P50.String()
			if r.Wait.P50 == 0 {
				half = "not at all"
			}
			parts = append(parts, fmt.Sprintf("%s waited: half of its runs %s, 95 %% up to %s, the longest %s", r.Tenant, half, r.Wait.P95, r.Wait.Max)+why(s, r))
		}
		parts = append(parts, troubles(s, r)...)
		if len(parts) > 0 && len(list) < maxFindings {
			list = append(list, Finding{r.Tenant, strings.Join(parts, " ")})
		}
	}
	return list
}

// why continues a sentence about waiting with its main causes.
func why(s Side, r *Row) string {
	all := r.Waited()
	if all <= 0 {
		return "."
	}
	var parts []string
	for _, c := range ranked(r.Causes) {
		share := float64(r.Causes[c] / all)
		if len(parts) == 2 || share < 0.1 && len(parts) > 0 {
			break
		}
		text := percent(share) + " "
		if len(parts) == 0 {
			text += "of its waiting was "
		}
		parts = append(parts, text+s.cause(r, c))
	}
	return "; " + strings.Join(parts, " and ") + "."
}

// troubles are sentences about what was turned away, ended in the queue, or fit nowhere.
func troubles(s Side, r *Row) []string {
	var list []string
	if r.ShedByQuota > 0 {
		list = append(list, fmt.Sprintf("%s (%d) of %s's runs were turned away by its quota.queued of %d.",
			percent(share(r.ShedByQuota, r.Arrived)), r.ShedByQuota, r.Tenant, s.tenant(r.Tenant).Quota.Queued))
	}
	if r.ShedByBackpressure > 0 {
		list = append(list, fmt.Sprintf("%s (%d) of %s's runs were turned away by the backpressure of their agents.",
			percent(share(r.ShedByBackpressure, r.Arrived)), r.ShedByBackpressure, r.Tenant))
	}
	if r.Expired > 0 {
		list = append(list, fmt.Sprintf("%d of its runs ended in the queue, by timeouts.queue.", r.Expired))
	}
	if r.Unschedulable > 0 {
		list = append(list, fmt.Sprintf("%d of its runs found no target that could take them, for %s in all: %s.",
			r.Unschedulable, r.UnschedulableTime, strings.TrimSuffix(r.UnschedulableReason, ".")))
	}
	return list
}

// ranked lists the causes, the largest first.
func ranked(m map[Cause]Sum) []Cause {
	list := slices.Clone(Causes)
	list = slices.DeleteFunc(list, func(c Cause) bool { return m[c] <= 0 })
	slices.SortStableFunc(list, func(a, b Cause) int { return cmp.Compare(m[b], m[a]) })
	return list
}

// cause says what a cause was, with the declared value that binds.
func (s Side) cause(r *Row, c Cause) string {
	switch c {
	case CauseQuota:
		return fmt.Sprintf("behind its own quota of %s at once", runs(s.tenant(r.Tenant).Quota.Running))
	case CausePerTenant:
		a := s.worst(r, c)
		return fmt.Sprintf("behind concurrency.perTenant %d of agent %s", a.Concurrency.PerTenant, a.Name())
	case CauseConcurrency:
		a := s.worst(r, c)
		return fmt.Sprintf("behind concurrency.max %d of agent %s, which all tenants share", a.Concurrency.Max, a.Name())
	case CauseShare:
		text := "for slots held by other tenants"
		if len(r.Behind) > 0 {
			most := r.Behind[0]
			text += fmt.Sprintf(" (%s of that by %s)", percent(float64(most.For/r.Causes[c])), most.Tenant)
		}
		return text
	case CauseOwn:
		return "for slots held by its own runs"
	case CauseCapacity:
		return "for room that nobody held: no worker was there, or what was free was too small"
	case CauseSession:
		return "for the turn before in its session"
	case CauseUnschedulable:
		return "without a target that could take it"
	case CauseBackoff:
		return "backing off after failures"
	}
	return string(c)
}

// worst is the agent at which a tenant waited most for a cause.
func (s Side) worst(r *Row, c Cause) *fleet.Agent {
	name, most := r.Agent, Sum(-1)
	for i := range s.Result.Pairs {
		if p := &s.Result.Pairs[i]; r.Agent == "" && p.Tenant == r.Tenant && p.Causes[c] > most {
			name, most = p.Agent, p.Causes[c]
		}
	}
	for _, o := range s.Objects {
		if a, ok := o.(*fleet.Agent); ok && a.Name() == name {
			return a
		}
	}
	return new(fleet.Agent)
}

// tenant is the declared tenant, or one with every default.
func (s Side) tenant(name string) *fleet.Tenant {
	for _, o := range s.Objects {
		if t, ok := o.(*fleet.Tenant); ok && t.Name() == name {
			return t
		}
	}
	t := &fleet.Tenant{Meta: fleet.Meta{Name: name}}
	t.SetDefaults()
	return t
}

// Compare says which tenants fared differently under two fleets, and why. Both results are of the same arrivals.
func Compare(a, b Side) (Comparison, error) {
	differences, err := Differences(a.Objects, b.Objects)
	if err != nil {
		return Comparison{}, err
	}
	c := Comparison{Differences: differences[:min(len(differences), maxDifferences)]}
	// 1. Tenants that waited differently, by how much.
	type change struct {
		a, b *Row
		by   Span
	}
	var changes []change
	var same []string
	for i := range a.Result.Tenants {
		ra := &a.Result.Tenants[i]
		rb := rowOf(b.Result.Tenants, ra.Tenant)
		if rb == nil || ra.Arrived == 0 {
			continue
		}
		x := change{ra, rb, max(ra.Wait.P95, rb.Wait.P95) - min(ra.Wait.P95, rb.Wait.P95)}
		if differs(ra, rb) {
			changes = append(changes, x)
		} else {
			same = append(same, ra.Tenant)
		}
	}
	slices.SortStableFunc(changes, func(x, y change) int { return cmp.Compare(y.by, x.by) })
	// 2. A few sentences for each.
	for _, x := range changes[:min(len(changes), maxFindings)] {
		c.Findings = append(c.Findings, Finding{x.a.Tenant, compareRows(a, b, x.a, x.b, differences)})
	}
	if len(same) > 0 && len(changes) > 0 {
		c.Findings = append(c.Findings, Finding{Text: listed(same) + " fared about the same under both."})
	}
	return c, nil
}

func rowOf(rows []Row, tenant string) *Row {
	for i := range rows {
		if rows[i].Tenant == tenant {
			return &rows[i]
		}
	}
	return nil
}

// differs reports whether a tenant noticed the difference: half as much again, or other runs turned away.
func differs(a, b *Row) bool {
	few := func(x, y int64) bool { return math.Abs(share(x, a.Arrived)-share(y, b.Arrived)) < 0.01 }
	return apart(a.Wait.P95, b.Wait.P95) || !few(a.Shed, b.Shed) || !few(a.Failed, b.Failed) || !few(a.Waiting, b.Waiting)
}

// apart reports whether two waits differ by half as much again.
func apart(x, y Span) bool {
	return max(x, y) >= noticeable && float64(max(x, y)) >= 1.5*float64(min(x, y))
}

// compareRows is the story of one tenant.
func compareRows(sa, sb Side, a, b *Row, differences []Difference) string {
	var text []string
	worse, better, side, lWorse, lBetter := a, b, sa, "A", "B"
	if b.Wait.P95 > a.Wait.P95 {
		worse, better, side, lWorse, lBetter = b, a, sb, "B", "A"
	}
	// 1. How long, and what for under the fleet where it waited longer.
	main := CauseOwn
	if causes := ranked(worse.Causes); len(causes) > 0 {
		main = causes[0]
	}
	waited := apart(a.Wait.P95, b.Wait.P95)
	if waited {
		text = append(text, fmt.Sprintf("%s waited p95 %s under %s%s", worse.Tenant, worse.Wait.P95, lWorse, why(side, worse)))
		if better.Wait.P95 >= noticeable {
			text = append(text, fmt.Sprintf("Under %s it waited p95 %s.", lBetter, better.Wait.P95))
		} else {
			text = append(text, fmt.Sprintf("Under %s it hardly waited (p95 %s, the longest %s).", lBetter, better.Wait.P95, better.Wait.Max))
		}
	} else {
		text = append(text, fmt.Sprintf("%s waited about as long under both (p95 %s and %s).", a.Tenant, a.Wait.P95, b.Wait.P95))
	}
	// 2. What else became of its runs.
	for _, x := range []struct {
		what string
		a, b int64
	}{
		{"were turned away by quota.queued", a.ShedByQuota, b.ShedByQuota},
		{"were turned away by backpressure", a.ShedByBackpressure, b.ShedByBackpressure},
		{"ended in the queue, by timeouts.queue", a.Expired, b.Expired},
		{"ended at their deadline", a.Late, b.Late},
		{"found no target that could take them", a.Unschedulable, b.Unschedulable},
		{"still waited at the end", a.Waiting, b.Waiting},
	} {
		if math.Abs(share(x.a, a.Arrived)-share(x.b, b.Arrived)) >= 0.01 {
			text = append(text, fmt.Sprintf("%d of its %d runs %s under A, %d under B.", x.a, a.Arrived, x.what, x.b))
		}
	}
	// 3. The declarations that explain it.
	if list := relevant(main, worse, a.Shed != b.Shed, differences); len(list) > 0 {
		names := make([]string, len(list))
		for i, d := range list {
			names[i] = d.String()
		}
		text = append(text, "What differs: "+strings.Join(names, "; ")+".")
	} else if len(differences) == 1 {
		text = append(text, "All that differs: "+differences[0].String()+".")
	} else if waited {
		text = append(text, "No field that bears on it differs by itself: see all differences.")
	}
	return strings.Join(text, " ")
}

// maxRelevant bounds the differences that a finding names.
const maxRelevant = 4

// relevant are the differences that bear on a cause, those nearest to it first.
func relevant(main Cause, r *Row, shed bool, all []Difference) []Difference {
	type scored struct {
		Difference
		score int
	}
	var list []scored
	for _, d := range all {
		score := 0
		tenant := d.Kind == fleet.KindTenant
		own := tenant && d.Name == r.Tenant
		holder := -1
		for i, h := range r.Behind {
			if tenant && h.Tenant == d.Name {
				holder = i
			}
		}
		field := func(prefixes ...string) bool {
			return d.Field == "" || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(d.Field, p) })
		}
		switch main {
		case CauseQuota:
			if own && field("spec.quota.running", "spec.borrow") {
				score = 10
			}
		case CausePerTenant, CauseConcurrency, CauseSession:
			if d.Kind == fleet.KindAgent && field("spec.concurrency", "spec.shape") {
				score = 10
			}
		case CauseBackoff:
			if d.Kind == fleet.KindAgent && field("spec.retry") {
				score = 10
			}
		case CauseUnschedulable:
			if d.Kind == fleet.KindTarget || d.Kind == fleet.KindAgent && field("spec.needs", "spec.shape") {
				score = 10
			}
		default: // slots
			switch {
			case tenant && holder >= 0 && field("spec.quota.running", "spec.weight", "spec.borrow"):
				score = 10 - holder
			case own && field("spec.quota.running", "spec.weight"):
				score = 8
			case d.Kind == fleet.KindTarget && field("spec.capacity", "spec.drain", "spec.tenants", "spec.shapes"):
				score = 7
			case d.Kind == fleet.KindAgent && field("spec.concurrency", "spec.needs"):
				score = 5
			case tenant && field("spec.weight", "spec.quota.running"):
				score = 3
			}
		}
		if shed && own && field("spec.quota.queued") || shed && d.Kind == fleet.KindAgent && field("spec.backpressure") {
			score = max(score, 9)
		}
		if score > 0 {
			list = append(list, scored{d, score})
		}
	}
	slices.SortStableFunc(list, func(x, y scored) int { return y.score - x.score })
	out := make([]Difference, 0, maxRelevant)
	for _, x := range list[:min(len(list), maxRelevant)] {
		out = append(out, x.Difference)
	}
	return out
}

// ignored are fields that decide nothing about when and where a run starts.
var ignored = []string{"metadata.", "spec.run.", "spec.input", "spec.output", "spec.retain", "spec.permissions", "spec.evaluate"}

// Differences lists what two fleets declare differently, of what can bear on a forecast, by kind and name.
func Differences(a, b []fleet.Object) ([]Difference, error) {
	fa, err := flatten(a)
	if err != nil {
		return nil, err
	}
	fb, err := flatten(b)
	if err != nil {
		return nil, err
	}
	var list []Difference
	// A tenant that is not declared has every default.
	for _, x := range [][2]map[[2]string]map[string]string{{fa, fb}, {fb, fa}} {
		for k := range x[0] {
			if k[0] == fleet.KindTenant && x[1][k] == nil {
				t := &fleet.Tenant{Meta: fleet.Meta{Name: k[1]}}
				t.SetDefaults()
				def, err := flatten([]fleet.Object{t})
				if err != nil {
					return nil, err
				}
				x[1][k] = def[k]
			}
		}
	}
	keys := make(map[[2]string]bool, len(fa)+len(fb))
	for k := range fa {
		keys[k] = true
	}
	for k := range fb {
		keys[k] = true
	}
	order := slices.SortedFunc(maps.Keys(keys), func(x, y [2]string) int {
		return cmp.Or(strings.Compare(x[0], y[0]), strings.Compare(x[1], y[1]))
	})
	for _, k := range order {
		oa, ina := fa[k]
		ob, inb := fb[k]
		if !ina || !inb {
			d := Difference{Kind: k[0], Name: k[1], A: "declared"}
			if !ina {
				d.A, d.B = "", "declared"
			}
			list = append(list, d)
			continue
		}
		fields := make(map[string]bool, len(oa))
		for f := range oa {
			fields[f] = true
		}
		for f := range ob {
			fields[f] = true
		}
		for _, f := range slices.Sorted(maps.Keys(fields)) {
			if oa[f] != ob[f] {
				list = append(list, Difference{k[0], k[1], f, oa[f], ob[f]})
			}
		}
	}
	return list, nil
}

// flatten writes each object as its fields by path.
func flatten(objects []fleet.Object) (map[[2]string]map[string]string, error) {
	out := make(map[[2]string]map[string]string, len(objects))
	for _, o := range objects {
		text, err := fleet.Encode(o)
		if err != nil {
			return nil, fmt.Errorf("compare %s %s: %w", o.Kind(), o.Name(), err)
		}
		var tree map[string]any
		if err := json.Unmarshal(text, &tree); err != nil {
			return nil, fmt.Errorf("compare %s %s: %w", o.Kind(), o.Name(), err)
		}
		fields := make(map[string]string)
		leaves("", tree, fields)
		out[[2]string{o.Kind(), o.Name()}] = fields
	}
	return out, nil
}

func leaves(path string, v any, out map[string]string) {
	if slices.ContainsFunc(ignored, func(p string) bool { return strings.HasPrefix(path+".", p) || strings.HasPrefix(path, p) }) {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			leaves(strings.TrimPrefix(path+"."+k, "."), x, out)
		}
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			text, _ := json.Marshal(x) // it was decoded from JSON
			parts[i] = string(text)
		}
		out[path] = "[" + strings.Join(parts, ", ") + "]"
	case string:
		out[path] = v
	default:
		text, _ := json.Marshal(v) // it was decoded from JSON
		out[path] = string(text)
	}
}

func share(n, of int64) float64 { return float64(n) / float64(max(of, 1)) }

// percent is a share for people.
func percent(share float64) string {
	switch p := 100 * share; {
	case p > 0 && p < 1:
		return "less than 1 %"
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// runs is a number of runs for people.
func runs(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}
