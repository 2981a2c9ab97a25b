package dashboard

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

var functions = template.FuncMap{
	"ago":      ago,
	"left":     left,
	"stamp":    stamp,
	"iso":      func(t api.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"after":    after,
	"span":     span,
	"dur":      func(d api.Duration) string { return short(d.Std()) },
	"tiles":    tiles,
	"name":     metaName,
	"spec":     specText,
	"figures":  figuresOf,
	"slots":    slotsOf,
	"usd":      usd,
	"moment":   func(t *api.Time) api.Time { return *t },
	"reversed": reversed,
	"tone":     tone,
	"live":     func(state string) bool { return tone(state) != "good" && tone(state) != "bad" && tone(state) != "gone" },
	"lower":    strings.ToLower,
	"minute":   minute,

	"approvals":    approvals,
	"verdict":      verdict,
	"consequences": consequences,
	"why":          why,
	"stage":        stage,
}

// ago is how long before now a time is.
func ago(now time.Time, t api.Time) string {
	d := now.Sub(t.Time)
	if d < 0 {
		return "in " + short(-d)
	}
	return short(d) + " ago"
}

// left is how long it is until a time.
func left(now time.Time, t api.Time) string { return short(t.Sub(now)) }

func stamp(t api.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// after is the time from one instant to another, as +1.2s.
func after(from, to api.Time) string { return "+" + short(to.Sub(from.Time)) }

// span is how long something took, or has taken until now.
func span(now time.Time, from, to *api.Time) string {
	switch {
	case from == nil:
		return ""
	case to == nil:
		return short(now.Sub(from.Time)) + "…"
	}
	return short(to.Sub(from.Time))
}

// short is a length of time in at most two units.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return units(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return units(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	}
	return units(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
}

func units(n int, unit string, rest int, smaller string) string {
	if rest == 0 {
		return fmt.Sprintf("%d%s", n, unit)
	}
	return fmt.Sprintf("%d%s %d%s", n, unit, rest, smaller)
}

// usd shows cents, and more digits where there are none.
func usd(v float64) string {
	if v >= 0.01 || v == 0 {
		return fmt.Sprintf("$%.2f", v)
	}
	return fmt.Sprintf("$%.6f", v)
}

// tile counts the runs in a state: now, or of those that ended, lately.
type tile struct {
	State   string
	Count   int
	Lately  bool
	Unknown bool // runs of the state rest in the store, where nobody counts them
}

func tiles(stats api.Stats, states []string) []tile {
	ended := map[string]int{"succeeded": stats.Total.Succeeded, "failed": stats.Total.Failed, "canceled": stats.Total.Canceled}
	out := make([]tile, 0, len(states))
	for _, state := range states {
		t := tile{State: state, Count: stats.States[state]}
		switch state {
		case "succeeded", "failed", "canceled":
			t.Count, t.Lately = ended[state], true
		case "held", "waiting", "backoff", "suspended", "compensating":
			t.Unknown = t.Count == 0
		}
		out = append(out, t)
	}
	return out
}

// metaName is an object's name.
func metaName(o api.Object) string {
	var m struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(o.Metadata, &m) // encoded by the server itself
	return m.Name
}

// specText is a text field of an object's spec.
func specText(o api.Object, field string) string {
	var m map[string]any
	_ = json.Unmarshal(o.Spec, &m) // encoded by the server itself
	s, _ := m[field].(string)
	return s
}

// figuresOf finds the figures of an agent by name.
func figuresOf(all []api.NamedFigures, name string) api.Figures {
	for _, f := range all {
		if f.Name == name {
			return f.Figures
		}
	}
	return api.Figures{}
}

// slotsOf sums the load of a target over its nodes.
func slotsOf(o api.Object) api.TargetStats {
	out := api.TargetStats{Name: metaName(o)}
	if o.Status != nil {
		out.Capacity, out.Used = o.Status.Capacity, o.Status.Running
	}
	return out
}

// In is the filter with another state.
func (f Filter) In(state string) Filter {
	f.State = state
	return f
}

// Of is the filter with an agent.
func (f Filter) Of(agent string) Filter {
	f.Agent, f.Workflow = agent, ""
	return f
}

// Any reports whether it leaves anything out.
func (f Filter) Any() bool { return f != Filter{} }

// Address is that of the first page with the filter, from a token on.
func (f Filter) Address(token string) string {
	q := url.Values{}
	for _, p := range [][2]string{{"state", f.State}, {"agent", f.Agent}, {"workflow", f.Workflow}, {"parent", f.Parent}, {"pageToken", token}} {
		if p[1] != "" {
			q.Set(p[0], p[1])
		}
	}
	if len(q) == 0 {
		return "/"
	}
	return "/?" + q.Encode()
}

// stage says for what a child was called, and for which item where it is not the first.
func stage(r api.Run) string {
	s := r.Stage
	if what, undoes := strings.CutPrefix(s, "undo/"); undoes {
		s = "undoes " + what
	}
	if r.Item != nil && *r.Item > 0 {
		s += fmt.Sprintf(", item %d", *r.Item)
	}
	return s
}

func reversed(events []api.Event) []api.Event {
	out := make([]api.Event, len(events))
	for i, e := range events {
		out[len(out)-1-i] = e
	}
	return out
}

// tone is how a state looks.
func tone(state string) string {
	switch state {
	case "succeeded", "done", "approved":
		return "good"
	case "failed", "start-failed", "unknown", "rejected", "expired":
		return "bad"
	case "canceled", "abandoned":
		return "gone"
	case "running", "assigned":
		return "busy"
	case "open", "held", "unschedulable", "backoff", "suspended", "canceling", "compensating":
		return "warn"
	}
	return "idle"
}
