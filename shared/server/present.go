package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// encode writes a value as the interface does: no HTML escapes, one line.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := encodeTo(&b, v)
	return b.Bytes(), err
}

func encodeTo(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return nil
}

func timeOf(i run.Instant) api.Time { return api.Time{Time: i.Time()} }

// optional is nil for no instant.
func optional(i run.Instant) *api.Time {
	if i == 0 {
		return nil
	}
	t := timeOf(i)
	return &t
}

func etagOf(version int64) string { return strconv.FormatInt(version, 10) }

// quoted is an etag as headers carry it.
func quoted(etag string) string { return `"` + etag + `"` }

// brief is a run as lists show it: without input and output.
func brief(r *run.Record) api.Run {
	out := api.Run{
		ID: r.ID, Version: r.Version, Tenant: r.Tenant,
		State: string(r.State), Reason: string(r.Reason), Message: r.Message,
		Priority: r.Priority, Labels: r.Labels, Key: r.Key, Session: r.Session,
		Attempt: r.Attempt, Attempts: attempts(r.ID, r.Attempts),
		Parent: r.Parent, Root: r.Root, Stage: r.Stage, RetryOf: r.RetryOf,
		CreatedAt: timeOf(r.CreatedAt), StartedAt: optional(r.StartedAt), EndedAt: optional(r.EndedAt), Deadline: optional(r.Deadline),
		Cost: costOf(r.Usage), Score: r.Score,
		Etag: etagOf(r.Seq),
	}
	switch r.Kind {
	case run.KindWorkflow:
		out.Workflow, out.CurrentStage = r.Agent, r.Flow
		if r.Parent == "" {
			out.Stage = r.Flow
		}
	case run.KindJob:
		out.Job = r.Agent
	default:
		out.Agent = r.Agent
	}
	switch {
	case r.State.Terminal():
		out.ExpiresAt = optional(r.Due)
	case r.State != run.Queued && r.WakeAt() != r.UpdatedAt: // such a run is due at any moment
		out.WakeAt = optional(r.WakeAt())
	case r.State != run.Queued:
		out.WakeAt = optional(run.Earliest(r.Due, r.Deadline))
	}
	if r.Parent != "" {
		out.Item, out.Depth = &r.Item, r.Depth
	}
	if a := r.Current(); a != nil {
		out.Placement = &api.PlacementBrief{Target: a.Target, Worker: a.Worker}
	}
	if r.State == run.Waiting && r.Park != nil {
		out.WaitsFor = &api.WaitsFor{On: string(r.Park.On), Name: r.Park.Name, Until: optional(r.Park.Until)}
		if r.Park.On == run.OnGate {
			out.WaitsFor.Until = nil // the gate says when its time is over
		}
		if p := r.Park; p.On == run.OnChildren {
			out.WaitsFor.Step, out.WaitsFor.Size, out.WaitsFor.Tolerate, out.WaitsFor.Need = p.Step, p.Size, p.Tolerate, p.Need
		}
	}
	return out
}

func costOf(u run.Usage) api.Cost {
	tokens := u.InputTokens + u.OutputTokens
	if tokens < u.InputTokens { // counts saturate, here as in the kernel
		tokens = 1<<63 - 1
	}
	return api.Cost{USD: u.USD, Tokens: tokens}
}

func briefs(records []*run.Record) []api.Run {
	out := make([]api.Run, 0, len(records))
	for _, r := range records {
		out = append(out, brief(r))
	}
	return out
}

// whole is a run with its input and output.
func (s *Server) whole(ctx context.Context, r *run.Record) (api.Run, error) {
	out := brief(r)
	for _, p := range []struct {
		what string
		from run.Payload
		to   *json.RawMessage
	}{{"input", r.Input, &out.Input}, {"output", r.Output, &out.Output}} {
		if p.from.Empty() {
			continue
		}
		v, err := s.plane.Value(ctx, p.from)
		if errors.Is(err, control.ErrValueGone) {
			// What else is known of the run is what people need then.
			out.Message = strings.TrimPrefix(fmt.Sprintf("%s; %s: %v", out.Message, p.what, err), "; ")
			continue
		}
		if err != nil {
			return api.Run{}, fmt.Errorf("read the %s of run %s: %w", p.what, r.ID, err)
		}
		*p.to = v
	}
	return out, nil
}

func attempts(runID string, as []run.Attempt) []api.Attempt {
	out := make([]api.Attempt, 0, len(as))
	for i := range as {
		a := &as[i]
		state := string(a.Outcome)
		switch {
		case state != "":
		case a.StartedAt != 0:
			state = string(run.Running)
		default:
			state = string(run.Assigned)
		}
		item := api.Attempt{
			ID: runtime.AttemptID(runID, a.N), N: a.N, Target: a.Target, Worker: a.Worker, State: state,
			Class: string(a.Class), Code: a.Code, Message: a.Message,
			StartedAt: optional(a.StartedAt), EndedAt: optional(a.EndedAt),
		}
		if a.Usage != nil {
			item.Usage = &api.Usage{InputTokens: a.Usage.InputTokens, OutputTokens: a.Usage.OutputTokens, USD: a.Usage.USD}
		}
		out = append(out, item)
	}
	return out
}

func event(e control.HistoryEvent) api.Event {
	return api.Event{
		Seq: e.Seq, Type: string(e.Type), At: timeOf(e.At), State: string(e.State), Attempt: e.Attempt, Actor: e.Actor,
		Target: e.Target, Worker: e.Worker, Stage: e.Stage, Reason: string(e.Reason), Class: string(e.Class), Code: e.Code, Message: e.Message,
		Due: optional(e.Due), Detail: e.Detail,
	}
}

func tree(n control.TreeNode) api.TreeNode {
	out := api.TreeNode{Run: brief(n.Run), More: n.More}
	for _, c := range n.Children {
		out.Children = append(out.Children, tree(c))
	}
	return out
}

func logLines(lines []runtime.LogLine) []api.LogLine {
	out := make([]api.LogLine, 0, len(lines))
	for _, l := range lines {
		out = append(out, api.LogLine{At: timeOf(l.At), Attempt: l.N, Stream: l.Stream, Text: l.Text})
	}
	return out
}

func (s *Server) receipt(ctx context.Context, r run.Receipt) (api.Receipt, error) {
	out := api.Receipt{
		ID: r.ID, Tenant: r.Tenant, Run: r.Run, Unit: r.Unit, Step: r.Step, Effect: r.Effect, State: string(r.State),
		Attempt: r.Attempt, OnUnknown: string(r.Policy), BegunAt: timeOf(r.BegunAt), Until: optional(r.Until),
		DoneAt: optional(r.DoneAt), ResolvedBy: r.ResolvedBy, RequestHash: r.Hash, Compensable: r.Compensable, Undoes: r.Undoes, UndoFailed: r.UndoFailed,
	}
	if r.Result.Empty() {
		return out, nil
	}
	result, err := s.plane.Value(ctx, r.Result)
	if err != nil {
		return api.Receipt{}, fmt.Errorf("read the result of receipt %s: %w", r.ID, err)
	}
	out.Result = result
	return out, nil
}

func compensations(list []control.Compensation) []api.Compensation {
	out := make([]api.Compensation, 0, len(list))
	for _, c := range list {
		item := api.Compensation{Run: c.Run, Agent: c.Agent, Stage: c.Stage}
		if r := c.Receipt; r != nil {
			item.Step, item.Effect, item.Receipt, item.State = r.Step, r.Effect, r.ID, string(r.State)
		}
		out = append(out, item)
	}
	return out
}

// receipts leaves out those of tenants that the principal does not see.
func (s *Server) receipts(ctx context.Context, rs []run.Receipt) ([]api.Receipt, error) {
	p := principal(ctx)
	out := make([]api.Receipt, 0, len(rs))
	for _, r := range rs {
		if !p.sees(r.Tenant) {
			continue
		}
		item, err := s.receipt(ctx, r)
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (s *Server) lease(a *runtime.Assignment, beatEvery time.Duration) (api.Lease, error) {
	out := api.Lease{
		Attempt: a.ID(), N: a.N, Run: a.Run, Tenant: a.Tenant, Mode: a.Mode, Input: a.Input, Key: a.Unit, Token: a.Token,
		Deadline: timeOf(a.Deadline), HeartbeatEvery: api.Duration(beatEvery), Silence: api.Duration(a.Silence),
		Traceparent: a.Trace, Session: a.Session, State: a.State, Labels: a.Labels, Index: a.Index, Completions: a.Completions,
	}
	if a.Agent != nil {
		out.Agent = a.Agent.Name()
	}
	if len(out.Input) == 0 {
		out.Input = json.RawMessage("null")
	}
	for _, r := range a.Receipts {
		out.Receipts = append(out.Receipts, api.Undoing(r))
	}
	for _, step := range a.Steps {
		item := api.Step{Name: step.Name, Seq: step.Seq, Result: step.Result}
		if len(step.Error) > 0 {
			item.Error = new(api.AgentError)
			if err := json.Unmarshal(step.Error, item.Error); err != nil {
				return api.Lease{}, fmt.Errorf("read the error of step %q of run %s: %w", clip(step.Name), a.Run, err)
			}
		}
		out.Steps = append(out.Steps, item)
	}
	return out, nil
}

func standing(r runtime.Result) api.Standing {
	return api.Standing{Deadline: timeOf(r.Deadline), Cancel: r.Cancel, CancelReason: string(r.CancelReason)}
}

func workerStatus(w control.WorkerStatus) api.WorkerStatus {
	agents := w.Agents
	if agents == nil {
		agents = []string{}
	}
	return api.WorkerStatus{
		ID: w.ID, Target: w.Target, Agents: agents, Slots: w.Slots, Running: w.Running, Draining: w.Draining, SeenAt: optional(w.SeenAt),
	}
}

// declared is an object with every default in effect and its status.
func declared(d control.Declared) (api.Object, error) {
	form, err := fleet.Encode(d.Object)
	if err != nil {
		return api.Object{}, err
	}
	var out api.Object
	if err := json.Unmarshal(form, &out); err != nil {
		return api.Object{}, fmt.Errorf("read %s %q: %w", d.Object.Kind(), d.Object.Name(), err)
	}
	out.Status = &api.Status{
		Revision: d.Revision, Paused: d.Paused, Queued: d.Queued, Running: d.Running, Capacity: d.Capacity, Share: d.Share,
		UpdatedAt: optional(d.UpdatedAt),
	}
	for _, w := range d.Workers {
		out.Status.Workers = append(out.Status.Workers, workerStatus(w))
	}
	out.Etag = etagOf(d.Revision)
	return out, nil
}

func stats(from control.Stats) api.Stats {
	out := api.Stats{
		At: timeOf(from.At), Window: api.Duration(from.Window), States: make(map[string]int, len(from.States)), Total: figures(from.Total),
		Agents: namedFigures(from.Agents), Tenant: namedFigures(from.Tenants), Target: make([]api.TargetStats, 0, len(from.Targets)),
	}
	for state, n := range from.States {
		out.States[string(state)] = n
	}
	for _, t := range from.Targets {
		out.Target = append(out.Target, api.TargetStats{Name: t.Name, Capacity: t.Capacity, Used: t.Used, Drain: t.Drain})
	}
	if from.OldestQueued > 0 {
		d := api.Duration(from.OldestQueued)
		out.Oldest = &d
	}
	return out
}

func namedFigures(from []control.NamedFigures) []api.NamedFigures {
	out := make([]api.NamedFigures, 0, len(from))
	for _, f := range from {
		out = append(out, api.NamedFigures{Name: f.Name, Figures: figures(f.Figures)})
	}
	return out
}

func figures(f control.Figures) api.Figures {
	return api.Figures{
		Submitted: f.Submitted, Succeeded: f.Succeeded, Failed: f.Failed, Canceled: f.Canceled, Retries: f.Retries,
		Queued: f.Queued, Running: f.Running,
		WaitP50: api.Duration(f.WaitP50), WaitP95: api.Duration(f.WaitP95), TookP50: api.Duration(f.TookP50), TookP95: api.Duration(f.TookP95),
		Cost: api.Cost{USD: f.USD, Tokens: f.Tokens},
	}
}
