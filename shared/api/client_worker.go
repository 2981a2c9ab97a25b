package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// None of the calls in this file is repeated by the client, except receipts, whose nonce makes them safe: a worker's
// loop knows better what has to reach the server, and until when.

func attemptPath(id string) string { return "/v1/attempts/" + url.PathEscape(id) }

// Lease asks for runs to execute and waits for the first up to r.Wait (30s at most).
func (c *Client) Lease(ctx context.Context, r LeaseRequest) (*LeaseResponse, error) {
	out := new(LeaseResponse)
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/leases", body: &r, wait: r.Wait.Std(), out: out})
	return out, err
}

// ReportBatch sends up to MaxReports reports, each with its attempt's id and token, and may ask for runs in the same
// call. Results come in order; the error is of the call as a whole.
func (c *Client) ReportBatch(ctx context.Context, b ReportBatch) (*ReportBatchResult, error) {
	out := new(ReportBatchResult)
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/attempts:batch", body: &b, out: out})
	if err == nil && len(out.Results) != len(b.Reports) {
		return nil, fmt.Errorf("send %d reports: %w: the server answered for %d", len(b.Reports), ErrUnreachable, len(out.Results))
	}
	return out, err
}

// Report sends one report by the call of its own: r.Type, r.Attempt and r.Token say which, of what, and by what right.
func (c *Client) Report(ctx context.Context, r Report) (*ReportResult, error) {
	path := attemptPath(r.Attempt)
	switch r.Type {
	case ReportStart, ReportBeat, ReportComplete, ReportFail, ReportRelease, ReportPark:
		path += ":" + r.Type
	case ReportStep:
		if r.Step == nil {
			return nil, fmt.Errorf("report a step of attempt %s: no step", r.Attempt)
		}
		path += "/steps/" + url.PathEscape(r.Step.Name)
	case ReportUsage, ReportProgress, ReportLogs:
		path += "/" + r.Type
	default:
		return nil, fmt.Errorf("report %q of attempt %s: unknown type", r.Type, r.Attempt)
	}
	token := r.Token
	r.Type, r.Attempt, r.Token = "", "", ""
	out := new(ReportResult)
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: &r, bearer: token, out: out})
	return out, err
}

// BeginReceipt asks whether an effect may be performed. The nonce makes a repeat the same call.
func (c *Client) BeginReceipt(ctx context.Context, attempt, token, effect string, b ReceiptBegin) (*ReceiptAnswer, error) {
	out := new(ReceiptAnswer)
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: receiptPath(attempt, effect) + ":begin", body: &b, bearer: token, repeatable: b.Nonce != "", out: out,
	})
	return out, err
}

// CommitReceipt records that an effect happened, with its result.
func (c *Client) CommitReceipt(ctx context.Context, attempt, token, effect string, b ReceiptCommit) (*Standing, error) {
	return c.endReceipt(ctx, attempt, token, effect, ":commit", b)
}

// AbandonReceipt records that an effect that was begun certainly did not happen.
func (c *Client) AbandonReceipt(ctx context.Context, attempt, token, effect string, body ReceiptCommit) (*Standing, error) {
	return c.endReceipt(ctx, attempt, token, effect, ":abandon", body)
}

func (c *Client) endReceipt(ctx context.Context, attempt, token, effect, verb string, b ReceiptCommit) (*Standing, error) {
	out := new(Standing)
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: receiptPath(attempt, effect) + verb, body: &b, bearer: token, repeatable: true, out: out,
	})
	return out, err
}

func receiptPath(attempt, effect string) string {
	return attemptPath(attempt) + "/receipts/" + url.PathEscape(effect)
}

// CallChildren makes children of the run that an attempt holds. It may be repeated: a call meets the child that it made.
func (c *Client) CallChildren(ctx context.Context, attempt, token string, b Children) (*Spawned, error) {
	out := new(Spawned)
	_, err := c.do(ctx, call{method: http.MethodPost, path: attemptPath(attempt) + "/children", body: &b, bearer: token, repeatable: true, out: out})
	return out, err
}

// ChildrenOf gives a page of what became of the children of a step, in the order of their items.
func (c *Client) ChildrenOf(ctx context.Context, attempt, token, step, pageToken string, limit int) (*List[ChildResult], error) {
	out := new(List[ChildResult])
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if pageToken != "" {
		q.Set("pageToken", pageToken)
	}
	path := attemptPath(attempt) + "/children/" + url.PathEscape(step)
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q, bearer: token, repeatable: true, out: out})
	return out, err
}

// Claim turns a one-use ticket into the lease of an attempt. It may be repeated by the same worker and is, while the
// server is away. A ticket that another worker used, or whose attempt is over, is refused with the code fenced.
func (c *Client) Claim(ctx context.Context, attempt string, b Claim) (*Lease, error) {
	return act[Lease](ctx, c, attemptPath(attempt)+":claim", &b, true)
}

// BeginRun registers work that was begun by somebody else than the server: the lease is of a run that already runs, and
// the answer has a Finished instead where the run of that key is over. A key makes it safe to repeat. A key whose run
// another worker executes is refused with the code fenced, or conflict and a RetryAfter; one that stands for another run
// with conflict alone.
func (c *Client) BeginRun(ctx context.Context, b Begin) (*Begun, error) {
	b.Tenant = or(b.Tenant, c.tenant)
	const path = "/v1/runs:begin"
	var answer json.RawMessage
	status, err := c.do(ctx, call{method: http.MethodPost, path: path, body: &b, repeatable: b.Key != "", out: &answer})
	if err != nil {
		return nil, err
	}
	out := new(Begun)
	var into any
	if status == http.StatusCreated {
		out.Lease = new(Lease)
		into = out.Lease
	} else {
		out.Finished = new(Finished)
		into = out.Finished
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return nil, fmt.Errorf("POST %s: answer of the server: %w", path, located(err))
	}
	return out, nil
}

// Beat is a worker's sign of life.
func (c *Client) Beat(ctx context.Context, worker string, b WorkerBeat) (*WorkerStanding, error) {
	return act[WorkerStanding](ctx, c, "/v1/workers/"+url.PathEscape(worker)+":heartbeat", &b, false)
}
