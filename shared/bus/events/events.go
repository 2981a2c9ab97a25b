// Package events tells outsiders what happens to runs, as CloudEvents 1.0 on the bus. What an event says is published as
// JSON Schema in docs/events.
//
// An event is told at least once while the process that made the change lives, and not at all when that ends first: who
// must miss nothing reads the list of runs as well. Order is not kept. The id of an event, RUN/SEQUENCE, is the same each
// time it is told, by whichever process.
package events

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/run"
)

const (
	// Prefix begins the type of every event; the state that the run came into follows.
	Prefix = "dev.errand.run."
	// GatePrefix begins the type of events about a question to people; what happened to it follows: requested, reminded,
	// escalated or decided.
	GatePrefix = "dev.errand.gate."
	// Schema identifies the schema of the data: docs/events/run.v1.json.
	Schema = "https://errand.dev/events/run.v1.json"
)

// told is what outsiders care for: the state that an event of the history leads to.
var told = map[run.EventType]run.State{
	run.EvStarted:       run.Running,
	run.EvParked:        run.Waiting,
	run.EvUnschedulable: run.Unschedulable,
	run.EvSucceeded:     run.Succeeded,
	run.EvFailed:        run.Failed,
	run.EvCanceled:      run.Canceled,
}

// cellName is what names a control plane among others.
var cellName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// Source is the source of events of a cell, which is the name of a control plane: letters, digits, hyphens and dots, 63
// at most.
func Source(cell string) (string, error) {
	if !cellName.MatchString(cell) {
		return "", fmt.Errorf("cell %.80q: want lower-case letters, digits, hyphens and dots, 63 at most", cell)
	}
	return "//errand/" + cell, nil
}

// data is the data of an event, in the words of the API: a part of a run, and the event of its history. Payloads,
// messages of agents and names of machines are left out.
type data struct {
	Run   runData   `json:"run"`
	Event eventData `json:"event"`
	Gate  *gateData `json:"gate,omitempty"`
}

// gateData is the question, without what is asked: who may see that asks the API for it by its id.
type gateData struct {
	ID       string `json:"id"`
	Decision string `json:"decision,omitempty"` // of a decided one
	By       string `json:"by,omitempty"`       // whoever decided it; nobody where time did
}

// ofGate is what an event of the history says of a gate: what happened to it, "" for nothing that outsiders care for.
func ofGate(h *run.Event) (what string, g gateData) {
	switch h.Type {
	case run.EvParked:
		if h.Park.On == run.OnGate {
			return "requested", gateData{ID: h.Park.Name}
		}
		return "", g
	case run.EvGateChanged, run.EvWoken, run.EvBegan:
	default:
		return "", g
	}
	var said struct {
		Gate string `json:"gate"`
	}
	if json.Unmarshal(h.Detail, &said) != nil || said.Gate == "" {
		return "", g
	}
	g.ID = said.Gate
	switch {
	case h.Type != run.EvGateChanged:
		g.Decision, g.By = h.Code, h.Actor
		return "decided", g
	case h.Code == run.GateReminded || h.Code == run.GateEscalated:
		return h.Code, g
	}
	return "", g
}

type runData struct {
	ID        string            `json:"id"`
	Agent     string            `json:"agent,omitempty"`
	Workflow  string            `json:"workflow,omitempty"`
	Job       string            `json:"job,omitempty"`
	Version   string            `json:"version,omitempty"`
	Tenant    string            `json:"tenant"`
	State     run.State         `json:"state"`
	Reason    run.Reason        `json:"reason,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Attempt   int               `json:"attempt"`
	Parent    string            `json:"parent,omitempty"`
	RetryOf   string            `json:"retryOf,omitempty"`
	CreatedAt stamp             `json:"createdAt"`
	StartedAt stamp             `json:"startedAt,omitzero"`
	EndedAt   stamp             `json:"endedAt,omitzero"`
	Cost      costData          `json:"cost"`
	WaitsFor  *waitData         `json:"waitsFor,omitempty"`
}

type costData struct {
	USD    float64 `json:"usd"`
	Tokens int64   `json:"tokens"`
}

type waitData struct {
	On    run.ParkOn `json:"on"`
	Until stamp      `json:"until,omitzero"`
}

type eventData struct {
	Seq     int64         `json:"seq"`
	Type    run.EventType `json:"type"`
	At      stamp         `json:"at"`
	State   run.State     `json:"state"`
	Attempt int           `json:"attempt,omitempty"`
	Reason  run.Reason    `json:"reason,omitempty"`
	Class   run.Class     `json:"class,omitempty"`
}

// stamp is an instant as the API writes it: RFC 3339 in UTC with milliseconds.
type stamp run.Instant

// MarshalJSON implements json.Marshaler.
func (s stamp) MarshalJSON() ([]byte, error) {
	return run.Instant(s).Time().UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000Z"`), nil
}

// Of returns the CloudEvents of what happened to a run: one for each event that leads to a state which outsiders care
// for, running, waiting, unschedulable, succeeded, failed or canceled; for unschedulable also when the reasons changed. What happens to a
// question to people that the run waits for has events of its own, by GatePrefix. r
// is the record after it all. The run's state, attempt and times are those at each event, its cost is the latest.
func Of(source string, r *run.Record, happened []run.Event) ([]event.Event, error) {
	var all []event.Event
	for i := range happened {
		h := &happened[i]
		state, ok := told[h.Type]
		if ok {
			e, err := of(source, r, h, state, Prefix+string(state), nil)
			if err != nil {
				return nil, fmt.Errorf("event %d of run %s: %w", h.Seq, r.ID, err)
			}
			all = append(all, e)
		}
		if what, gate := ofGate(h); what != "" {
			e, err := of(source, r, h, run.StateAfter(run.Waiting, h.Type), GatePrefix+what, &gate)
			if err != nil {
				return nil, fmt.Errorf("event %d of run %s, gate %s: %w", h.Seq, r.ID, gate.ID, err)
			}
			all = append(all, e)
		}
	}
	return all, nil
}

func of(source string, r *run.Record, h *run.Event, state run.State, kind string, gate *gateData) (event.Event, error) {
	// 1. The facts.
	d := data{
		Run: runData{
			ID: r.ID, Version: r.Version, Tenant: r.Tenant, State: state, Reason: h.Reason, Labels: r.Labels, Attempt: h.Attempt,
			Parent: r.Parent, RetryOf: r.RetryOf, CreatedAt: stamp(r.CreatedAt),
			Cost: costData{USD: r.Usage.USD, Tokens: run.Usage{InputTokens: r.Usage.InputTokens}.Plus(run.Usage{InputTokens: r.Usage.OutputTokens}).InputTokens},
		},
		Event: eventData{Seq: h.Seq, Type: h.Type, At: stamp(h.At), State: state, Attempt: h.Attempt, Reason: h.Reason, Class: h.Class},
	}
	if h.Attempt == 0 { // it speaks for none: the newest there was
		for i := range r.Attempts {
			if a := &r.Attempts[i]; a.AssignedAt <= h.At {
				d.Run.Attempt = a.N
			}
		}
	}
	switch r.Kind {
	case run.KindWorkflow:
		d.Run.Workflow = r.Agent
	case run.KindJob:
		d.Run.Job = r.Agent
	default:
		d.Run.Agent = r.Agent
	}
	if r.StartedAt != 0 && r.StartedAt <= h.At {
		d.Run.StartedAt = stamp(r.StartedAt)
	}
	if state.Terminal() {
		d.Run.EndedAt = stamp(h.At)
	}
	if h.Park != nil {
		d.Run.WaitsFor = &waitData{On: h.Park.On, Until: stamp(h.Park.Until)}
		if h.Park.On == run.OnGate {
			d.Run.WaitsFor.Until = 0 // the gate says
		}
	}
	// 2. The event around them. Extensions are there to filter by.
	e := event.New(event.CloudEventsVersionV1)
	id := r.ID + "/" + strconv.FormatInt(h.Seq, 10)
	if gate != nil {
		id += "/gate" // beside that of the run
		d.Gate = gate
	}
	e.SetID(id)
	e.SetSource(source)
	e.SetType(kind)
	e.SetSubject(r.ID)
	e.SetTime(h.At.Time().UTC())
	e.SetDataSchema(Schema)
	e.SetExtension("tenant", r.Tenant)
	e.SetExtension("agent", r.Agent)
	body, err := json.Marshal(d)
	if err != nil {
		return e, err
	}
	if err := e.SetData(event.ApplicationJSON, json.RawMessage(body)); err != nil {
		return e, err
	}
	return e, e.Validate()
}

// Message puts an event on the bus: its data as it is, and its attributes each with ce- before its name, as the binding
// of CloudEvents to Pub/Sub has it (binary mode).
func Message(e *event.Event) bus.Message {
	attributes := map[string]string{
		"content-type":   e.DataContentType(),
		"ce-specversion": e.SpecVersion(),
		"ce-id":          e.ID(),
		"ce-source":      e.Source(),
		"ce-type":        e.Type(),
		"ce-subject":     e.Subject(),
		"ce-time":        e.Time().UTC().Format(time.RFC3339Nano),
		"ce-dataschema":  e.DataSchema(),
	}
	for name, value := range e.Extensions() {
		attributes["ce-"+name] = fmt.Sprint(value)
	}
	return bus.Message{Attributes: attributes, Data: e.Data()}
}
