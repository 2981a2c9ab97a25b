package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// runView shows runs.
func (a *app) runView() render.View[api.Run] {
	type r = api.Run
	return render.View[r]{
		Name: func(r r) string { return r.ID },
		Columns: []render.Column[r]{
			{Head: "RUN", Cell: func(r r) string { return r.ID }},
			{Head: "NAME", Cell: func(r r) string { return r.Name() }},
			{Head: "TENANT", Cell: func(r r) string { return r.Tenant }},
			{Head: "STATE", Cell: func(r r) string { return r.State }},
			{Head: "REASON", Cell: func(r r) string { return render.Dash(r.Reason) }},
			{Head: "ATTEMPT", Cell: func(r r) string { return strconv.Itoa(r.Attempt) }},
			{Head: "AGE", Cell: func(r r) string { return render.Age(a.now(), r.CreatedAt.Time) }},
			{Head: "TOOK", Cell: func(r r) string { return took(a.now(), r) }},
			{Head: "TARGET", Wide: true, Cell: func(r r) string { return render.Dash(targetOf(r)) }},
			{Head: "PRIORITY", Wide: true, Cell: func(r r) string { return strconv.Itoa(r.Priority) }},
			{Head: "COST", Wide: true, Cell: func(r r) string { return cost(r.Cost) }},
			{Head: "FAMILY-COST", Wide: true, Cell: func(r r) string { return render.Dash(familyCost(r)) }},
			{Head: "KEY", Wide: true, Cell: func(r r) string { return render.Dash(r.Key) }},
			{Head: "MESSAGE", Wide: true, Cell: func(r r) string { return render.Dash(r.Message) }},
		},
		Detail: a.describeRun,
	}
}

// took is how long the run has been going since its first start, or went.
func took(now time.Time, r api.Run) string {
	switch {
	case r.StartedAt == nil || r.StartedAt.IsZero():
		return "-"
	case r.EndedAt != nil && !r.EndedAt.IsZero():
		return render.Span(r.EndedAt.Sub(r.StartedAt.Time))
	}
	return render.Span(now.Sub(r.StartedAt.Time))
}

func targetOf(r api.Run) string {
	if r.Placement == nil {
		return ""
	}
	if r.Placement.Worker != "" && r.Placement.Worker != r.Placement.Target {
		return r.Placement.Target + "/" + r.Placement.Worker
	}
	return r.Placement.Target
}

func cost(c api.Cost) string {
	var parts []string
	if c.USD > 0 {
		parts = append(parts, fmt.Sprintf("$%.4f", c.USD))
	}
	if c.Tokens > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens", c.Tokens))
	}
	return render.Dash(strings.Join(parts, " "))
}

// familyCost is what the run and those below it have cost; "" where there are none, or nobody asked.
func familyCost(r api.Run) string {
	f := r.Family
	if f == nil || f.Runs < 2 {
		return ""
	}
	text := fmt.Sprintf("%s in %d runs", cost(f.Cost), f.Runs)
	if f.Truncated {
		text += ", and there are more"
	}
	return text
}

func instant(t *api.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

// describeRun shows all of one run.
func (a *app) describeRun(w io.Writer, r api.Run) error {
	d := render.NewDetail(w)
	d.Field("Run", r.ID)
	d.Field("Name", r.Name())
	d.Field("Version", r.Version)
	d.Field("Tenant", r.Tenant)
	d.Field("State", strings.TrimSpace(r.State+" "+parenthesised(r.Reason)))
	d.Field("Message", r.Message)
	if w := r.WaitsFor; w != nil {
		d.Field("Waits for", strings.TrimSpace(w.On+" "+w.Name)+until(w.Until))
	}
	d.Field("Target", targetOf(r))
	d.Field("Priority", strconv.Itoa(r.Priority))
	d.Field("Labels", labels(r.Labels))
	d.Field("Key", r.Key)
	d.Field("Session", r.Session)
	d.Field("At stage", r.CurrentStage)
	d.Field("Parent", r.Parent)
	d.Field("Retry of", r.RetryOf)
	d.Field("Created", instant(&r.CreatedAt))
	d.Field("Started", instant(r.StartedAt))
	d.Field("Ended", instant(r.EndedAt))
	d.Field("Kept until", instant(r.ExpiresAt))
	if !r.Terminal() {
		d.Field("Next look", instant(r.WakeAt))
		d.Field("Deadline", instant(r.Deadline))
	}
	if r.Cost != (api.Cost{}) {
		d.Field("Cost", cost(r.Cost))
	}
	d.Field("Family cost", familyCost(r))
	if r.Score != nil {
		d.Field("Score", strconv.FormatFloat(*r.Score, 'g', 4, 64))
	}
	if len(r.Attempts) > 0 {
		d.Heading("Attempts")
		if err := render.List(render.Printer{W: d.Indented(), Format: render.Wide}, attemptView, r.Attempts); err != nil {
			return err
		}
	}
	d.JSON("Input", r.Input)
	d.JSON("Output", r.Output)
	return d.Err()
}

func parenthesised(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func until(t *api.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return " until " + instant(t)
}

func labels(m map[string]string) string {
	var pairs []string
	for k, v := range m {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, " ")
}

var attemptView = render.View[api.Attempt]{
	Name: func(t api.Attempt) string { return t.ID },
	Columns: []render.Column[api.Attempt]{
		{Head: "N", Cell: func(t api.Attempt) string { return strconv.Itoa(t.N) }},
		{Head: "STATE", Cell: func(t api.Attempt) string { return t.State }},
		{Head: "TARGET", Cell: func(t api.Attempt) string { return render.Dash(t.Target) }},
		{Head: "STARTED", Cell: func(t api.Attempt) string { return render.Dash(instant(t.StartedAt)) }},
		{Head: "ENDED", Cell: func(t api.Attempt) string { return render.Dash(instant(t.EndedAt)) }},
		{Head: "CLASS", Cell: func(t api.Attempt) string { return render.Dash(t.Class) }},
		{Head: "CODE", Cell: func(t api.Attempt) string { return render.Dash(t.Code) }},
		{Head: "MESSAGE", Wide: true, Cell: func(t api.Attempt) string { return render.Dash(t.Message) }},
	},
}

// objectView shows declared objects of one kind.
func (a *app) objectView(k kind) render.View[api.Object] {
	type o = api.Object
	spec := func(field string) func(o) string {
		return func(x o) string { return render.Dash(textAt(x.Spec, field)) }
	}
	status := func(f func(*api.Status) string) func(o) string {
		return func(x o) string {
			if x.Status == nil {
				return "-"
			}
			return f(x.Status)
		}
	}
	queued := render.Column[o]{Head: "QUEUED", Cell: status(func(s *api.Status) string { return strconv.Itoa(s.Queued) })}
	running := render.Column[o]{Head: "RUNNING", Cell: status(func(s *api.Status) string { return strconv.Itoa(s.Running) })}
	updated := render.Column[o]{Head: "CHANGED", Cell: status(func(s *api.Status) string {
		if s.UpdatedAt == nil {
			return "-"
		}
		return render.Age(a.now(), s.UpdatedAt.Time)
	})}
	revision := render.Column[o]{Head: "REVISION", Wide: true, Cell: status(func(s *api.Status) string {
		return strconv.FormatInt(s.Revision, 10)
	})}

	columns := []render.Column[o]{{Head: strings.ToUpper(k.name), Cell: objectName}}
	switch k.name {
	case "Agent":
		columns = append(columns,
			render.Column[o]{Head: "SHAPE", Cell: spec("shape")}, queued, running,
			render.Column[o]{Head: "PAUSED", Cell: status(func(s *api.Status) string { return yesNo(s.Paused) })},
			updated, revision,
			render.Column[o]{Head: "PROTOCOL", Wide: true, Cell: spec("run.protocol")})
	case "Target":
		columns = append(columns,
			render.Column[o]{Head: "RUNTIME", Cell: spec("runtime")}, running,
			render.Column[o]{Head: "CAPACITY", Cell: status(func(s *api.Status) string {
				if s.Capacity == 0 {
					return "-"
				}
				return strconv.Itoa(s.Capacity)
			})},
			render.Column[o]{Head: "WORKERS", Cell: status(func(s *api.Status) string { return strconv.Itoa(len(s.Workers)) })},
			render.Column[o]{Head: "DRAIN", Cell: func(x o) string { return yesNo(textAt(x.Spec, "drain") == "true") }},
			updated, revision,
			render.Column[o]{Head: "REGION", Wide: true, Cell: spec("region")})
	case "Tenant":
		columns = append(columns,
			render.Column[o]{Head: "WEIGHT", Cell: spec("weight")}, queued, running,
			render.Column[o]{Head: "SHARE", Cell: status(func(s *api.Status) string { return fmt.Sprintf("%.0f%%", 100*s.Share) })},
			updated, revision)
	case "Trigger":
		columns = append(columns,
			render.Column[o]{Head: "TOPIC", Cell: spec("pubsub.topic")},
			render.Column[o]{Head: "PATH", Cell: spec("http.path")},
			render.Column[o]{Head: "RUNS", Cell: func(x o) string {
				return render.Dash(textAt(x.Spec, "run.agent") + textAt(x.Spec, "run.workflow"))
			}},
			updated, revision)
	case "Workflow":
		columns = append(columns,
			render.Column[o]{Head: "STAGES", Cell: func(x o) string { return strconv.Itoa(len(stageNames(x.Spec))) }},
			running, updated, revision,
			render.Column[o]{Head: "ORDER", Wide: true, Cell: func(x o) string { return render.Dash(strings.Join(stageNames(x.Spec), " ")) }})
	}
	return render.View[o]{
		Name:    objectName,
		Columns: columns,
		// A manifest that apply takes back as it is: without status and version.
		YAML: func(x o) any {
			x.Status, x.Etag = nil, ""
			return x
		},
	}
}

// stageNames are those of a workflow's spec.
func stageNames(spec json.RawMessage) []string {
	var w struct {
		Stages []struct {
			Name string `json:"name"`
		} `json:"stages"`
	}
	if json.Unmarshal(spec, &w) != nil {
		return nil
	}
	names := make([]string, len(w.Stages))
	for i, s := range w.Stages {
		names[i] = s.Name
	}
	return names
}

func objectName(o api.Object) string { return textAt(o.Metadata, "name") }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// textAt is the scalar under a dotted path of a JSON object, as text; "" if there is none.
func textAt(doc json.RawMessage, path string) string {
	for name := range strings.SplitSeq(path, ".") {
		var fields map[string]json.RawMessage
		if json.Unmarshal(doc, &fields) != nil {
			return ""
		}
		doc = fields[name]
	}
	var text string
	if json.Unmarshal(doc, &text) == nil {
		return text
	}
	if len(doc) == 0 || doc[0] == '{' || doc[0] == '[' || string(doc) == "null" {
		return ""
	}
	return string(doc)
}
