package api

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// Submit starts a run. With a key, the same submission gives the same run: existed tells that it was there before.
func (c *Client) Submit(ctx context.Context, s Submit) (run *Run, existed bool, err error) {
	s.Tenant = or(s.Tenant, c.tenant)
	run = new(Run)
	status, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/runs", body: &s, repeatable: s.Key != "", out: run})
	if err != nil {
		return nil, false, err
	}
	return run, status == http.StatusOK, nil
}

// SubmitBatch starts up to MaxBatch runs in one call. Outcomes come in the order asked, one per run; the error is of
// the call as a whole.
func (c *Client) SubmitBatch(ctx context.Context, runs []Submit) ([]BatchItem, error) {
	if len(runs) > MaxBatch {
		return nil, fmt.Errorf("submit %d runs in one batch: at most %d", len(runs), MaxBatch)
	}
	keyed := true
	body := BatchSubmit{Runs: slices.Clone(runs)}
	for i := range body.Runs {
		body.Runs[i].Tenant = or(body.Runs[i].Tenant, c.tenant)
		keyed = keyed && body.Runs[i].Key != ""
	}
	var out List[BatchItem]
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/runs:batch", body: &body, repeatable: keyed, out: &out})
	if err == nil && len(out.Items) != len(runs) {
		return nil, fmt.Errorf("submit %d runs in one batch: the server answered for %d", len(runs), len(out.Items))
	}
	return out.Items, err
}

// Invoke runs an agent and waits up to wait (60s at most) for its end. The run it returns may still be going; it goes
// on if the caller leaves.
func (c *Client) Invoke(ctx context.Context, agent string, s Submit, wait time.Duration) (*Run, error) {
	s.Agent, s.Tenant = "", or(s.Tenant, c.tenant)
	q, wait := waitQuery(wait)
	out := new(Run)
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: objectPath(Agents, agent) + ":invoke", query: q, wait: wait, body: &s, repeatable: s.Key != "", out: out,
	})
	return out, err
}

// Run returns a run. With wait (60s at most) it answers when the run is over or the time is.
func (c *Client) Run(ctx context.Context, id string, wait time.Duration) (*Run, error) {
	q, wait := waitQuery(wait)
	out := new(Run)
	_, err := c.do(ctx, call{method: http.MethodGet, path: runPath(id), query: q, wait: wait, repeatable: true, out: out})
	return out, err
}

// RunWithFamily returns a run with what it and all below it have cost.
func (c *Client) RunWithFamily(ctx context.Context, id string) (*Run, error) {
	return get[Run](ctx, c, runPath(id), url.Values{"family": {"true"}})
}

// WaitRun returns a run when it is over, however long that takes; ctx bounds it.
func (c *Client) WaitRun(ctx context.Context, id string) (*Run, error) {
	for {
		run, err := c.Run(ctx, id, MaxWait*time.Second/2)
		if err != nil || run.Terminal() {
			return run, err
		}
	}
}

func waitQuery(wait time.Duration) (url.Values, time.Duration) {
	wait = min(wait, MaxWait*time.Second)
	if wait <= 0 {
		return nil, 0
	}
	return url.Values{"wait": {wait.String()}}, wait
}

// ListRuns returns a page of the runs that a filter selects, newest first.
func (c *Client) ListRuns(ctx context.Context, f RunFilter, p Page) (*List[Run], error) {
	f.Tenant = or(f.Tenant, c.tenant)
	out := new(List[Run])
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/runs", query: p.query(f.Query()), repeatable: true, out: out})
	return out, err
}

// Runs walks all runs that a filter selects, newest first.
func (c *Client) Runs(ctx context.Context, f RunFilter) iter.Seq2[Run, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[Run], error) { return c.ListRuns(ctx, f, p) })
}

// Query is the filter as GET /v1/runs takes it: state=a,b and label=k=v for each label, in the order of their keys.
func (f RunFilter) Query() url.Values {
	q := url.Values{}
	set(q, "agent", f.Agent)
	set(q, "workflow", f.Workflow)
	set(q, "job", f.Job)
	set(q, "state", strings.Join(f.State, ","))
	set(q, "tenant", f.Tenant)
	set(q, "parent", f.Parent)
	for _, k := range sortedKeys(f.Labels) {
		q.Add("label", k+"="+f.Labels[k])
	}
	if f.Since != nil {
		q.Set("since", f.Since.UTC().Format(timeLayout))
	}
	if f.Until != nil {
		q.Set("until", f.Until.UTC().Format(timeLayout))
	}
	return q
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// get reads one part of a run.
func get[T any](ctx context.Context, c *Client, path string, q url.Values) (*T, error) {
	out := new(T)
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q, repeatable: true, out: out})
	return out, err
}

// ListEvents returns a page of a run's history, oldest first.
func (c *Client) ListEvents(ctx context.Context, id string, p Page) (*List[Event], error) {
	return get[List[Event]](ctx, c, runPath(id)+"/events", p.query(nil))
}

// Events walks a run's history as it is now, oldest first.
func (c *Client) Events(ctx context.Context, id string) iter.Seq2[Event, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[Event], error) { return c.ListEvents(ctx, id, p) })
}

// Tree returns a run with its descendants.
func (c *Client) Tree(ctx context.Context, id string) (*TreeNode, error) {
	return get[TreeNode](ctx, c, runPath(id)+"/tree", nil)
}

// Output returns a run's output as it is.
func (c *Client) Output(ctx context.Context, id string) (json.RawMessage, error) {
	out, err := get[json.RawMessage](ctx, c, runPath(id)+"/output", nil)
	return *out, err
}

// ListLogs returns a page of a run's log, oldest first.
func (c *Client) ListLogs(ctx context.Context, id string, p Page) (*List[LogLine], error) {
	return get[List[LogLine]](ctx, c, runPath(id)+"/logs", p.query(nil))
}

// Logs walks a run's log as it is now, oldest first.
func (c *Client) Logs(ctx context.Context, id string) iter.Seq2[LogLine, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[LogLine], error) { return c.ListLogs(ctx, id, p) })
}

// Receipts returns the effects of a run.
func (c *Client) Receipts(ctx context.Context, id string) (*List[Receipt], error) {
	return get[List[Receipt]](ctx, c, runPath(id)+"/receipts", nil)
}

// Attempts returns all attempts of a run.
func (c *Client) Attempts(ctx context.Context, id string) (*List[Attempt], error) {
	return get[List[Attempt]](ctx, c, runPath(id)+"/attempts", nil)
}

// Placement explains where a run is or why it waits; with a target, why not there.
func (c *Client) Placement(ctx context.Context, id, target string) (*Placement, error) {
	q := url.Values{}
	set(q, "target", target)
	return get[Placement](ctx, c, runPath(id)+"/placement", q)
}

// Audit returns inputs, decisions, approvals, effects and spend of a run in one document.
// The audit of a long history comes in pages: the first has all but the later events.
func (c *Client) Audit(ctx context.Context, id string, p Page) (*Audit, error) {
	return get[Audit](ctx, c, runPath(id)+"/audit", p.query(nil))
}

// act does something to a run.
func act[T any](ctx context.Context, c *Client, path string, body any, repeatable bool) (*T, error) {
	out := new(T)
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: body, repeatable: repeatable, out: out})
	return out, err
}

// Cancel ends a run; its answer is the run, which may still be canceling.
func (c *Client) Cancel(ctx context.Context, id string, body Cancel) (*Run, error) {
	body.DryRun = false
	return act[Run](ctx, c, runPath(id)+":cancel", &body, true)
}

// PreviewCancel says what Cancel would meet, and changes nothing.
func (c *Client) PreviewCancel(ctx context.Context, id string, body Cancel) (*CancelPreview, error) {
	body.DryRun = true
	return act[CancelPreview](ctx, c, runPath(id)+":cancel", &body, true)
}

// Retry makes a new run of one that is over. With a key it is safe to repeat, and is repeated when an answer is lost.
func (c *Client) Retry(ctx context.Context, id string, body Retry) (*Run, error) {
	return act[Run](ctx, c, runPath(id)+":retry", &body, body.Key != "")
}

// Suspend stops a run until Resume; a live attempt is told to end and is given back.
func (c *Client) Suspend(ctx context.Context, id string) (*Run, error) {
	return act[Run](ctx, c, runPath(id)+":suspend", struct{}{}, false)
}

// Resume lets a suspended run go on.
func (c *Client) Resume(ctx context.Context, id string) (*Run, error) {
	return act[Run](ctx, c, runPath(id)+":resume", struct{}{}, false)
}

// Signal delivers a signal to a run, once per key. It is kept if nobody waits for it yet.
func (c *Client) Signal(ctx context.Context, id string, body SignalBody) (*Run, error) {
	return act[Run](ctx, c, runPath(id)+":signal", &body, body.Key != "")
}

// ScoreRun judges the quality of a run.
func (c *Client) ScoreRun(ctx context.Context, id string, body Score) (*Run, error) {
	return act[Run](ctx, c, runPath(id)+":score", &body, true)
}

// CancelAll ends the runs that a filter selects.
func (c *Client) CancelAll(ctx context.Context, body Bulk) (*BulkResult, error) {
	body.Filter.Tenant = or(body.Filter.Tenant, c.tenant)
	return act[BulkResult](ctx, c, "/v1/runs:cancel", &body, true)
}

// RetryAll makes new runs of those that a filter selects.
func (c *Client) RetryAll(ctx context.Context, body Bulk) (*BulkResult, error) {
	body.Filter.Tenant = or(body.Filter.Tenant, c.tenant)
	return act[BulkResult](ctx, c, "/v1/runs:retry", &body, body.DryRun)
}

// ListReceipts returns a page of the effects of all runs that people must look at, by why: ReceiptsUnknown or
// ReceiptsUndoFailed.
func (c *Client) ListReceipts(ctx context.Context, state string, p Page) (*List[Receipt], error) {
	q := url.Values{"state": {state}}
	set(q, "tenant", c.tenant)
	return get[List[Receipt]](ctx, c, "/v1/receipts", p.query(q))
}

// OpenReceipts walks what ListReceipts lists.
func (c *Client) OpenReceipts(ctx context.Context, state string) iter.Seq2[Receipt, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[Receipt], error) { return c.ListReceipts(ctx, state, p) })
}

// Resolve settles an unknown effect.
func (c *Client) Resolve(ctx context.Context, receipt string, body Resolve) (*Receipt, error) {
	return act[Receipt](ctx, c, "/v1/receipts/"+url.PathEscape(receipt)+":resolve", &body, false)
}
