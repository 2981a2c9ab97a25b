package server

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func (s *Server) attemptDoors() {
	errs := []int{400, 401, 404, 409, 413, 415, 503}
	for _, v := range []struct{ path, report, summary string }{
		{":start", api.ReportStart, "The handler begins."},
		{":heartbeat", api.ReportBeat, "The handler lives. Only agents with timeouts.heartbeat must say so."},
		{":complete", api.ReportComplete, "The run succeeded: output, and optionally usage, score, session."},
		{":fail", api.ReportFail, "The attempt failed: class, code, message, retryable, retryAfter, usage."},
		{":release", api.ReportRelease, "The worker hands the run back: reason."},
		{":park", api.ReportPark, "The attempt ends to wait without a slot: park, and optionally usage, session."},
		{"/steps/{name}", api.ReportStep, "A durable step ended: step."},
		{"/usage", api.ReportUsage, "Something was consumed: usage, in addition to what was told before."},
		{"/progress", api.ReportProgress, "How far the work is: progress from 0 to 1, message."},
		{"/logs", api.ReportLogs, "Lines for the run's log: logs."},
	} {
		id := "report" + strings.ToUpper(v.report[:1]) + v.report[1:]
		s.plain(door{
			method: "POST", path: "/v1/attempts/{id}" + v.path, id: id, tag: "workers", need: attempt, hot: true,
			summary: v.summary, body: api.Report{}, optional: v.report == api.ReportStart || v.report == api.ReportBeat,
			answer: api.ReportResult{}, errors: errs,
		}, s.reportOne(v.report))
	}
	s.plain(door{
		method: "POST", path: "/v1/attempts:batch", id: "reportBatch", tag: "workers", need: attempt, hot: true,
		summary: "Up to 1,000 reports, each with the id and token of its attempt; the results come in order. With lease, runs to execute in the same answer, which takes a worker's own right.",
		body:    api.ReportBatch{}, answer: api.ReportBatchResult{}, errors: []int{400, 413, 415, 503},
	}, s.reportBatch)
	s.childDoors(errs)
	for _, v := range []struct {
		verb, summary string
		body, answer  any
		serve         func(http.ResponseWriter, *http.Request) error
	}{
		{"begin", "Ask whether an external effect may be performed.", api.ReceiptBegin{}, api.ReceiptAnswer{}, s.beginEffect},
		{"commit", "The effect happened.", api.ReceiptCommit{}, api.Standing{}, s.endEffect(false)},
		{"abandon", "The effect certainly did not happen.", api.ReceiptCommit{}, api.Standing{}, s.endEffect(true)},
	} {
		s.plain(door{
			method: "POST", path: "/v1/attempts/{id}/receipts/{effect}:" + v.verb, id: v.verb + "Effect", tag: "effects", need: attempt,
			summary: v.summary, body: v.body, optional: v.verb == "abandon", answer: v.answer, errors: append(errs, 403),
		}, v.serve)
	}
}

// holder checks the token of a request against the attempt that its path names.
func (s *Server) holder(r *http.Request) (runID string, n int, g control.Grant, err error) {
	id := pathValue(r, "id")
	token, ok := Bearer(r)
	if !ok {
		return "", 0, g, problem(http.StatusUnauthorized, api.CodeUnauthorized, "the request carries no token; send Authorization: Bearer with the token of the attempt's lease")
	}
	g, err = s.verify(id, token)
	if err != nil {
		return "", 0, g, err
	}
	return g.Run, g.N, g, nil
}

// verify checks a token against an attempt's id. Whether the attempt still holds its run is for its report to find out.
func (s *Server) verify(id, token string) (control.Grant, error) {
	if len(token) > MaxToken {
		return control.Grant{}, problem(http.StatusUnauthorized, api.CodeUnauthorized, "the token is longer than %d bytes", MaxToken)
	}
	g, err := s.plane.Verify(token)
	if err != nil {
		return control.Grant{}, problem(http.StatusUnauthorized, api.CodeUnauthorized, "%v", err)
	}
	runID, n, err := attemptID(id)
	if err != nil {
		return control.Grant{}, err
	}
	if g.Run != runID || g.N != n {
		return control.Grant{}, problem(http.StatusUnauthorized, api.CodeUnauthorized, "the token is that of another attempt than %s", clip(id))
	}
	return g, nil
}

// belongs are the fields of api.Report by the reports that have them.
var belongs = map[string][]string{
	"output":     {api.ReportComplete},
	"usage":      {api.ReportComplete, api.ReportFail, api.ReportPark, api.ReportRelease, api.ReportUsage},
	"score":      {api.ReportComplete},
	"session":    {api.ReportComplete, api.ReportPark},
	"class":      {api.ReportFail},
	"code":       {api.ReportFail},
	"message":    {api.ReportFail, api.ReportRelease, api.ReportProgress},
	"retryable":  {api.ReportFail},
	"retryAfter": {api.ReportFail},
	"reason":     {api.ReportRelease},
	"park":       {api.ReportPark},
	"step":       {api.ReportStep},
	"progress":   {api.ReportProgress},
	"logs":       {api.ReportLogs},
}

var needed = map[string]string{
	api.ReportPark: "park", api.ReportStep: "step", api.ReportUsage: "usage", api.ReportProgress: "progress", api.ReportLogs: "logs",
}

// given lists the fields of a report that are set.
func given(q *api.Report) []string {
	var names []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"output", len(q.Output) > 0}, {"usage", q.Usage != nil}, {"score", q.Score != nil}, {"session", len(q.Session) > 0},
		{"class", q.Class != ""}, {"code", q.Code != ""}, {"message", q.Message != ""}, {"retryable", q.Retryable != nil},
		{"retryAfter", q.RetryAfter != nil}, {"reason", q.Reason != ""}, {"park", q.Park != nil}, {"step", q.Step != nil},
		{"progress", q.Progress != nil}, {"logs", len(q.Logs) > 0},
	} {
		if f.set {
			names = append(names, f.name)
		}
	}
	return names
}

// report checks a report of the wire and turns it into one of the runtime protocol.
func report(kind string, g control.Grant, q *api.Report, at string) (runtime.Report, error) {
	// 1. Its fields are those of its type.
	fields := given(q)
	for _, name := range fields {
		if !slices.Contains(belongs[name], kind) {
			return runtime.Report{}, invalidAt(at+"."+name, "is no part of %s", kind)
		}
	}
	if name := needed[kind]; name != "" && !slices.Contains(fields, name) {
		return runtime.Report{}, invalidAt(at+"."+name, "missing")
	}
	// 2. Each has a sane value.
	out := runtime.Report{Type: runtime.ReportType(kind), Run: g.Run, N: g.N, Output: q.Output, Score: q.Score, Session: q.Session, Message: q.Message}
	if kind == api.ReportComplete && len(out.Output) == 0 {
		out.Output = json.RawMessage("null")
	}
	if kind == api.ReportRelease && q.Reason != "" {
		out.Message = q.Reason
	}
	switch {
	case len(q.Output) > api.MaxPayload:
		return out, located(problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the output has %d bytes; the limit is %d", len(q.Output), api.MaxPayload), at+".output", "too large")
	case q.Score != nil && !(*q.Score >= 0 && *q.Score <= 1):
		return out, invalidAt(at+".score", "%v; want 0 to 1", *q.Score)
	case q.Progress != nil && !(*q.Progress >= 0 && *q.Progress <= 1):
		return out, invalidAt(at+".progress", "%v; want 0 to 1", *q.Progress)
	case q.RetryAfter != nil && *q.RetryAfter < 0:
		return out, invalidAt(at+".retryAfter", "%s; want 0s or more", q.RetryAfter.Std())
	case len(q.Code) > runtime.MaxName:
		return out, invalidAt(at+".code", "%d bytes; the limit is %d", len(q.Code), runtime.MaxName)
	case q.Usage != nil && (q.Usage.InputTokens < 0 || q.Usage.OutputTokens < 0 || q.Usage.USD < 0):
		return out, invalidAt(at+".usage", "negative; want 0 or more")
	}
	if q.Usage != nil {
		out.Usage = &run.Usage{InputTokens: q.Usage.InputTokens, OutputTokens: q.Usage.OutputTokens, USD: q.Usage.USD}
	}
	if q.Progress != nil {
		out.Fraction = *q.Progress
	}
	// 3. What belongs to its type alone.
	switch kind {
	case api.ReportFail:
		out.Class, out.Code = run.ClassUser, q.Code
		if q.Class != "" {
			out.Class = run.Class(q.Class)
		}
		if !out.Class.Valid() {
			return out, invalidAt(at+".class", "%q is no class of failure; the classes are %v", clip(q.Class), run.Classes)
		}
		out.Final = q.Retryable != nil && !*q.Retryable
		if q.RetryAfter != nil {
			out.RetryIn = q.RetryAfter.Std()
		}
	case api.ReportPark:
		p := q.Park
		switch run.ParkOn(p.On) {
		case run.OnTimer, run.OnInput, run.OnChildren, run.OnGate:
		default:
			return out, invalidAt(at+".park.on", "%q; want timer, input, children or gate", clip(p.On))
		}
		if err := unitName(at+".park.step", p.Step, runtime.MaxName); err != nil {
			return out, err
		}
		out.Park = &run.Park{On: run.ParkOn(p.On), Step: p.Step, Name: p.Name}
		if p.Until != nil {
			out.Park.Until = run.At(p.Until.Time)
		}
		if p.Gate != nil {
			ask := gateAsk(p.Gate)
			out.Gate = &ask
		}
		switch {
		case p.Gate != nil && out.Park.On != run.OnGate:
			return out, invalidAt(at+".park.gate", "given for a park on %s", p.On)
		case out.Park.On == run.OnChildren:
			if err := parkOnChildren(&out, p, at+".park"); err != nil {
				return out, err
			}
		case p.Size != 0 || p.Tolerate != 0 || p.Need != 0 || p.Max != 0 || len(p.Children) > 0:
			return out, invalidAt(at+".park", "size, tolerate, need, max and children are parts of a park on children")
		case out.Park.On == run.OnGate:
		case out.Park.On == run.OnInput:
			if err := unitName(at+".park.name", p.Name, runtime.MaxName); err != nil {
				return out, err
			}
		case out.Park.Until == 0:
			return out, invalidAt(at+".park.until", "missing: a timer needs a time")
		}
	case api.ReportStep:
		if err := unitName(at+".step.name", q.Step.Name, runtime.MaxName); err != nil {
			return out, err
		}
		out.Step = &runtime.Step{Name: q.Step.Name, Seq: q.Step.Seq, Result: q.Step.Result}
		if q.Step.Error != nil {
			raw, err := json.Marshal(q.Step.Error)
			if err != nil {
				return out, err
			}
			out.Step.Error = raw
		}
		if n := len(out.Step.Result) + len(out.Step.Error); n > runtime.MaxStepResult {
			return out, located(problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the step has %d bytes; the limit is %d", n, runtime.MaxStepResult), at+".step", "too large")
		}
	case api.ReportLogs:
		for _, l := range q.Logs {
			line := runtime.LogLine{At: run.At(l.At.Time), N: g.N, Stream: l.Stream, Text: run.Clip(l.Text, runtime.MaxLogLine)}
			if line.Stream == "" {
				line.Stream = "agent"
			}
			out.Logs = append(out.Logs, line)
		}
	}
	return out, nil
}

func result(ctx context.Context, s *Server, r runtime.Result) api.ReportResult {
	out := api.ReportResult{Standing: standing(r), Resumed: r.Resumed}
	if r.Err != nil {
		out.Error = problemOf(ctx, s.log, r.Err)
	}
	return out
}

func (s *Server) reportOne(kind string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		// 1. By what right.
		_, _, g, err := s.holder(r)
		if err != nil {
			return err
		}
		// 2. What.
		q, err := decode[api.Report](w, r, 2*api.MaxBody, kind == api.ReportStart || kind == api.ReportBeat) // output and session
		if err != nil {
			return err
		}
		if (q.Type != "" && q.Type != kind) || (q.Attempt != "" && q.Attempt != pathValue(r, "id")) || q.Token != "" {
			return invalid("type, attempt and token belong to reports of a batch; here the path and the header say them")
		}
		if kind == api.ReportStep && q.Step != nil {
			name := pathValue(r, "name")
			if q.Step.Name != "" && q.Step.Name != name {
				return invalidAt("body.step.name", "%q, but the path names step %q", clip(q.Step.Name), clip(name))
			}
			q.Step.Name = name
		}
		rep, err := report(kind, g, &q, "body")
		if err != nil {
			return err
		}
		// 3. It is recorded when this returns. The client's leaving does not undo what it said.
		ctx, cancel := detached(r.Context())
		defer cancel()
		res := s.plane.Report(ctx, []runtime.Report{rep})[0]
		if res.Err != nil {
			return res.Err
		}
		return writeJSON(w, http.StatusOK, result(ctx, s, res))
	}
}

func (s *Server) reportBatch(w http.ResponseWriter, r *http.Request) error {
	// The tokens are inside of the body: only who shows a worker's right of its own may send a large one.
	limit := int64(api.MaxBody)
	if _, err := s.admit(work, r); err == nil {
		limit = api.MaxBatchBody
	}
	q, err := decode[api.ReportBatch](w, r, limit, false)
	if err != nil {
		return err
	}
	if len(q.Reports) > api.MaxReports {
		return invalidAt("body.reports", "%d reports; the limit is %d", len(q.Reports), api.MaxReports)
	}
	// 1. The lease asks for more than an attempt's right. It is checked before anything is recorded.
	var lease control.LeaseRequest
	if q.Lease != nil {
		if r, err = s.admit(work, r); err != nil {
			return err
		}
		if lease, err = leaseRequest(r.Context(), q.Lease, "body.lease"); err != nil {
			return err
		}
		lease.Wait = 0
	}
	// 2. What is wrong with one report is told in its place; the rest is recorded in one go.
	ctx, cancel := detached(r.Context())
	defer cancel()
	out := api.ReportBatchResult{Results: make([]api.ReportResult, len(q.Reports))}
	reports := make([]runtime.Report, 0, len(q.Reports))
	places := make([]int, 0, len(q.Reports))
	for i := range q.Reports {
		rep, err := s.batched(&q.Reports[i], "body.reports["+itoa(i)+"]")
		if err != nil {
			out.Results[i].Error = problemOf(ctx, s.log, err)
			continue
		}
		reports, places = append(reports, rep), append(places, i)
	}
	if len(reports) > 0 {
		for j, res := range s.plane.Report(ctx, reports) {
			out.Results[places[j]] = result(ctx, s, res)
		}
	}
	// 3. Work to go on with. The reports are recorded, so what fails here must not fail the answer.
	if q.Lease != nil {
		got, err := s.plane.Lease(r.Context(), lease)
		if err == nil {
			out.Drain = got.Drain
			out.Leases, err = s.leases(got)
		}
		if err != nil && r.Context().Err() == nil {
			s.log.WarnContext(ctx, "no lease with a batch of reports", "request", requestID(ctx), "worker", lease.Worker, "error", err)
		}
	}
	return writeJSON(w, http.StatusOK, out)
}

// batched checks one report of a batch, which carries its own right.
func (s *Server) batched(q *api.Report, at string) (runtime.Report, error) {
	g, err := s.verify(q.Attempt, q.Token)
	if err != nil {
		return runtime.Report{}, err
	}
	switch q.Type {
	case api.ReportStart, api.ReportBeat, api.ReportComplete, api.ReportFail, api.ReportRelease, api.ReportPark,
		api.ReportStep, api.ReportUsage, api.ReportProgress, api.ReportLogs:
	default:
		return runtime.Report{}, invalidAt(at+".type", "%q is no report", clip(q.Type))
	}
	return report(q.Type, g, q, at)
}
