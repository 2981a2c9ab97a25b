package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorder answers each request by a function and remembers what came.
type recorder struct {
	mu     sync.Mutex
	seen   []string // METHOD URI [header] body
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func (s *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	line := r.Method + " " + r.RequestURI
	for _, h := range []string{"Authorization", "If-Match", "Last-Event-ID"} {
		if v := r.Header.Get(h); v != "" {
			line += " " + h + "=" + v
		}
	}
	if len(body) > 0 {
		line += " " + strings.TrimSpace(string(body))
	}
	s.seen = append(s.seen, line)
	n := len(s.seen)
	s.mu.Unlock()
	s.answer(n, w, r)
}

func testClient(t *testing.T, o Options, answer func(n int, w http.ResponseWriter, r *http.Request)) (*Client, *recorder) {
	t.Helper()
	s := &recorder{answer: answer}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	o.URL = web.URL
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, s
}

func says(body string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
}

func TestCallsOnTheWire(t *testing.T) {
	yes := true
	since := Time{time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}
	tests := map[string]struct {
		call func(ctx context.Context, c *Client) error
		want string
	}{
		"Apply": {func(ctx context.Context, c *Client) error {
			_, err := c.Apply(ctx, []byte("kind: Agent"), ApplyOptions{DryRun: true, Prune: true})
			return err
		}, "POST /v1/apply?dryRun=true&prune=true kind: Agent"},
		"Object": {func(ctx context.Context, c *Client) error { _, err := c.Object(ctx, Agents, "a/b"); return err },
			"GET /v1/agents/a%2Fb"},
		"ListObjects": {func(ctx context.Context, c *Client) error {
			_, err := c.ListObjects(ctx, Targets, Page{Limit: 5, Token: "t&1"})
			return err
		}, "GET /v1/targets?limit=5&pageToken=t%261"},
		"DeleteObject": {func(ctx context.Context, c *Client) error { return c.DeleteObject(ctx, Agents, "a", `"7"`) },
			`DELETE /v1/agents/a If-Match="7"`},
		"PauseAgent":  {func(ctx context.Context, c *Client) error { return c.PauseAgent(ctx, "a") }, "POST /v1/agents/a:pause {}"},
		"ResumeAgent": {func(ctx context.Context, c *Client) error { return c.ResumeAgent(ctx, "a") }, "POST /v1/agents/a:resume {}"},
		"Stats": {func(ctx context.Context, c *Client) error {
			_, err := c.Stats(ctx, StatsFilter{Agent: "a", Window: time.Hour})
			return err
		}, "GET /v1/stats?agent=a&tenant=acme&window=1h0m0s"},
		"Version": {func(ctx context.Context, c *Client) error { _, err := c.Version(ctx); return err }, "GET /v1/version"},
		"Submit takes the client's tenant": {func(ctx context.Context, c *Client) error {
			_, _, err := c.Submit(ctx, Submit{Agent: "a", Input: json.RawMessage(`{"x":"<&>"}`)})
			return err
		}, `POST /v1/runs {"agent":"a","input":{"x":"<&>"},"tenant":"acme"}`},
		"Submit keeps its own tenant": {func(ctx context.Context, c *Client) error {
			_, _, err := c.Submit(ctx, Submit{Agent: "a", Tenant: "other", Key: "k"})
			return err
		}, `POST /v1/runs {"agent":"a","tenant":"other","key":"k"}`},
		"Invoke": {func(ctx context.Context, c *Client) error {
			_, err := c.Invoke(ctx, "a", Submit{Agent: "ignored", Input: json.RawMessage(`1`)}, 2*time.Minute)
			return err
		}, `POST /v1/agents/a:invoke?wait=1m0s {"input":1,"tenant":"acme"}`},
		"Run":  {func(ctx context.Context, c *Client) error { _, err := c.Run(ctx, "r1", 0); return err }, "GET /v1/runs/r1"},
		"wait": {func(ctx context.Context, c *Client) error { _, err := c.Run(ctx, "r1", 30*time.Second); return err }, "GET /v1/runs/r1?wait=30s"},
		"ListRuns": {func(ctx context.Context, c *Client) error {
			_, err := c.ListRuns(ctx, RunFilter{Agent: "a", State: []string{"queued", "running"}, Parent: "p", Labels: map[string]string{"team": "x=y", "env": "prod"}, Since: &since}, Page{Limit: 2})
			return err
		}, "GET /v1/runs?agent=a&label=env%3Dprod&label=team%3Dx%3Dy&limit=2&parent=p&since=2026-01-31T12%3A00%3A00.000Z&state=queued%2Crunning&tenant=acme"},
		"ListEvents":    {func(ctx context.Context, c *Client) error { _, err := c.ListEvents(ctx, "r1", Page{}); return err }, "GET /v1/runs/r1/events"},
		"Tree":          {func(ctx context.Context, c *Client) error { _, err := c.Tree(ctx, "r1"); return err }, "GET /v1/runs/r1/tree"},
		"RunWithFamily": {func(ctx context.Context, c *Client) error { _, err := c.RunWithFamily(ctx, "r1"); return err }, "GET /v1/runs/r1?family=true"},
		"Output":        {func(ctx context.Context, c *Client) error { _, err := c.Output(ctx, "r1"); return err }, "GET /v1/runs/r1/output"},
		"ListLogs":      {func(ctx context.Context, c *Client) error { _, err := c.ListLogs(ctx, "r1", Page{}); return err }, "GET /v1/runs/r1/logs"},
		"Receipts":      {func(ctx context.Context, c *Client) error { _, err := c.Receipts(ctx, "r1"); return err }, "GET /v1/runs/r1/receipts"},
		"Attempts":      {func(ctx context.Context, c *Client) error { _, err := c.Attempts(ctx, "r1"); return err }, "GET /v1/runs/r1/attempts"},
		"Placement":     {func(ctx context.Context, c *Client) error { _, err := c.Placement(ctx, "r1", "gpu"); return err }, "GET /v1/runs/r1/placement?target=gpu"},
		"Audit":         {func(ctx context.Context, c *Client) error { _, err := c.Audit(ctx, "r1", Page{}); return err }, "GET /v1/runs/r1/audit"},
		"Cancel": {func(ctx context.Context, c *Client) error {
			_, err := c.Cancel(ctx, "r1", Cancel{Reason: "wrong", DryRun: true})
			return err
		}, `POST /v1/runs/r1:cancel {"reason":"wrong"}`},
		"PreviewCancel": {func(ctx context.Context, c *Client) error { _, err := c.PreviewCancel(ctx, "r1", Cancel{}); return err }, `POST /v1/runs/r1:cancel {"dryRun":true}`},
		"Retry": {func(ctx context.Context, c *Client) error {
			_, err := c.Retry(ctx, "r1", Retry{Input: json.RawMessage(`2`), Key: "k"})
			return err
		}, `POST /v1/runs/r1:retry {"input":2,"key":"k"}`},
		"Suspend": {func(ctx context.Context, c *Client) error { _, err := c.Suspend(ctx, "r1"); return err }, `POST /v1/runs/r1:suspend {}`},
		"Resume":  {func(ctx context.Context, c *Client) error { _, err := c.Resume(ctx, "r1"); return err }, `POST /v1/runs/r1:resume {}`},
		"Signal": {func(ctx context.Context, c *Client) error {
			_, err := c.Signal(ctx, "r1", SignalBody{Name: "paid", Payload: json.RawMessage(`1`), Key: "k"})
			return err
		}, `POST /v1/runs/r1:signal {"name":"paid","payload":1,"key":"k"}`},
		"ScoreRun": {func(ctx context.Context, c *Client) error {
			_, err := c.ScoreRun(ctx, "r1", Score{Score: 0.5})
			return err
		}, `POST /v1/runs/r1:score {"score":0.5}`},
		"CancelAll": {func(ctx context.Context, c *Client) error {
			_, err := c.CancelAll(ctx, Bulk{Filter: RunFilter{Agent: "a"}})
			return err
		}, `POST /v1/runs:cancel {"filter":{"agent":"a","tenant":"acme"}}`},
		"RetryAll": {func(ctx context.Context, c *Client) error { _, err := c.RetryAll(ctx, Bulk{DryRun: true}); return err }, `POST /v1/runs:retry {"filter":{"tenant":"acme"},"dryRun":true}`},
		"ListReceipts": {func(ctx context.Context, c *Client) error {
			_, err := c.ListReceipts(ctx, ReceiptsUnknown, Page{})
			return err
		},
			"GET /v1/receipts?state=unknown&tenant=acme"},
		"Resolve": {func(ctx context.Context, c *Client) error {
			_, err := c.Resolve(ctx, "x1", Resolve{Happened: &yes})
			return err
		}, `POST /v1/receipts/x1:resolve {"happened":true}`},
		"Lease": {func(ctx context.Context, c *Client) error {
			_, err := c.Lease(ctx, LeaseRequest{Worker: "w", Agents: []string{"a"}, Max: 3, Wait: Duration(time.Second)})
			return err
		}, `POST /v1/leases {"worker":"w","agents":["a"],"max":3,"wait":"1s"}`},
		"Beat": {func(ctx context.Context, c *Client) error {
			_, err := c.Beat(ctx, "w", WorkerBeat{Agents: []string{"a"}, Slots: 1, Attempts: []string{"r1.1"}})
			return err
		}, `POST /v1/workers/w:heartbeat {"agents":["a"],"slots":1,"attempts":["r1.1"]}`},
		"Claim": {func(ctx context.Context, c *Client) error {
			_, err := c.Claim(ctx, "r1.1", Claim{Worker: "w", Ticket: "t"})
			return err
		}, `POST /v1/attempts/r1.1:claim {"worker":"w","ticket":"t"}`},
		"BeginRun": {func(ctx context.Context, c *Client) error {
			_, err := c.BeginRun(ctx, Begin{Agent: "a", Worker: "w"})
			return err
		}, `POST /v1/runs:begin {"agent":"a","tenant":"acme","worker":"w"}`},
		"Report of an end": {func(ctx context.Context, c *Client) error {
			_, err := c.Report(ctx, Report{Type: ReportComplete, Attempt: "r1.1", Token: "own", Output: json.RawMessage(`1`)})
			return err
		}, `POST /v1/attempts/r1.1:complete Authorization=Bearer own {"output":1}`},
		"Report of a step": {func(ctx context.Context, c *Client) error {
			_, err := c.Report(ctx, Report{Type: ReportStep, Attempt: "r1.1", Token: "own", Step: &Step{Name: "a b", Seq: 1}})
			return err
		}, `POST /v1/attempts/r1.1/steps/a%20b Authorization=Bearer own {"step":{"name":"a b","seq":1}}`},
		"Report of usage": {func(ctx context.Context, c *Client) error {
			_, err := c.Report(ctx, Report{Type: ReportUsage, Attempt: "r1.1", Token: "own", Usage: &Usage{InputTokens: 1}})
			return err
		}, `POST /v1/attempts/r1.1/usage Authorization=Bearer own {"usage":{"inputTokens":1}}`},
		"BeginReceipt": {func(ctx context.Context, c *Client) error {
			_, err := c.BeginReceipt(ctx, "r1.1", "own", "mail:x/y", ReceiptBegin{RequestHash: "h", Nonce: "n"})
			return err
		}, `POST /v1/attempts/r1.1/receipts/mail:x%2Fy:begin Authorization=Bearer own {"requestHash":"h","nonce":"n"}`},
		"CommitReceipt": {func(ctx context.Context, c *Client) error {
			_, err := c.CommitReceipt(ctx, "r1.1", "own", "e", ReceiptCommit{Step: "s", Result: json.RawMessage(`1`)})
			return err
		}, `POST /v1/attempts/r1.1/receipts/e:commit Authorization=Bearer own {"step":"s","result":1}`},
		"AbandonReceipt": {func(ctx context.Context, c *Client) error {
			_, err := c.AbandonReceipt(ctx, "r1.1", "own", "e", ReceiptCommit{Step: "s"})
			return err
		}, `POST /v1/attempts/r1.1/receipts/e:abandon Authorization=Bearer own {"step":"s"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, s := testClient(t, Options{Tenant: "acme"}, says(`{}`))
			if err := tt.call(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.want}, s.seen); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBatchesAnswerForEachItem(t *testing.T) {
	c, _ := testClient(t, Options{}, says(`{"items":[{"run":{"id":"r1"}},{"error":{"title":"no"}}]}`))
	items, err := c.SubmitBatch(t.Context(), make([]Submit, 2))
	if err != nil || items[0].Run.ID != "r1" || items[1].Error == nil {
		t.Errorf("%+v, %v", items, err)
	}
	if _, err = c.SubmitBatch(t.Context(), make([]Submit, 3)); err == nil {
		t.Error("two answers for three items were taken")
	}
	if _, err = c.SubmitBatch(t.Context(), make([]Submit, MaxBatch+1)); err == nil {
		t.Error("a batch beyond the limit was sent")
	}
	if _, err = c.ReportBatch(t.Context(), ReportBatch{Reports: make([]Report, 1)}); err == nil {
		t.Error("an answer without results was taken")
	}
}

func TestSubmitTellsARunThatWasThere(t *testing.T) {
	c, _ := testClient(t, Options{}, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusCreated)
		}
		fmt.Fprint(w, `{"id":"r1"}`)
	})
	_, first, err1 := c.Submit(t.Context(), Submit{Key: "k"})
	_, second, err2 := c.Submit(t.Context(), Submit{Key: "k"})
	if first || !second || err1 != nil || err2 != nil {
		t.Errorf("existed %t, %t; %v %v", first, second, err1, err2)
	}
}

func TestErrorsOfAnswers(t *testing.T) {
	answered := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		status     int
		media      string
		body       string
		header     string // Retry-After
		wantCode   string
		wantText   string
		retryAfter int
	}{
		"a problem as it is": {
			status: 400, media: "application/problem+json", body: `{"type":"https://errand.dev/problems/invalid","title":"Invalid","detail":"no agent","errors":[{"message":"unknown","location":"body.agent"}]}`,
			wantCode: CodeInvalid, wantText: "Invalid: no agent; body.agent: unknown",
		},
		"a problem without a type gets one by its status": {
			status: 404, media: "application/json", body: `{"title":"Not Found"}`, wantCode: CodeNotFound, wantText: "Not Found",
		},
		"a proxy's page": {
			status: 502, media: "text/html", body: "<html>\n<h1>Bad Gateway</h1>" + strings.Repeat("x", 1000),
			wantCode: CodeUnavailable, wantText: "Bad Gateway: GET /v1/runs/r: <html> <h1>Bad Gateway</h1>xxx",
		},
		"nothing": {status: 401, wantCode: CodeUnauthorized, wantText: "Unauthorized: GET /v1/runs/r: empty answer"},
		"binary":  {status: 500, body: "\xff\xfe\x00\x01", wantCode: CodeInternal, wantText: "Internal Server Error: GET /v1/runs/r"},
		"a wait in seconds": {
			status: 429, media: "application/problem+json", body: `{"title":"Too many"}`, header: "7", wantCode: CodeOverloaded, wantText: "Too many", retryAfter: 7,
		},
		"a wait until a date":       {status: 429, header: answered.Add(90 * time.Second).Format(http.TimeFormat), wantCode: CodeOverloaded, wantText: "Too Many", retryAfter: 90},
		"a redirect is no answer":   {status: 302, wantCode: CodeInvalid, wantText: "Found"},
		"a problem of a megabyte":   {status: 400, media: "application/problem+json", body: `{"title":"` + strings.Repeat("x", 2<<20) + `"}`, wantCode: CodeInvalid, wantText: "Bad Request"},
		"a status that has no name": {status: 599, wantCode: CodeInternal, wantText: "status 599"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := testClient(t, Options{Retries: -1}, func(_ int, w http.ResponseWriter, _ *http.Request) {
				if tt.media != "" {
					w.Header().Set("Content-Type", tt.media)
				}
				if tt.header != "" {
					w.Header().Set("Retry-After", tt.header)
				}
				w.Header().Set("Date", answered.Format(http.TimeFormat))
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			_, err := c.Run(t.Context(), "r", 0)
			var p *Problem
			if !errors.As(err, &p) || p.Status != tt.status || p.Code() != tt.wantCode || !strings.HasPrefix(p.Error(), tt.wantText) {
				t.Fatalf("%d %v; want %s, %s…", p.Status, err, tt.wantCode, tt.wantText)
			}
			if len(p.Error()) > 1000 {
				t.Errorf("the error is %d bytes long", len(p.Error()))
			}
			if p.RetryAfter != tt.retryAfter {
				t.Errorf("retry after %d; want %d", p.RetryAfter, tt.retryAfter)
			}
			if errors.Is(err, ErrUnreachable) || !HasCode(err, tt.wantCode) {
				t.Error("an answer counts as none")
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c, err := NewClient(Options{URL: address, Retries: -1, Token: "very-secret"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Version(t.Context())
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	for range c.FollowEvents(t.Context(), "r", 0) {
	}
	for _, err := range c.FollowEvents(t.Context(), "r", 0) {
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("follow: %v", err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("bored"))
	if _, err = c.Version(ctx); errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "bored") {
		t.Errorf("the caller's own end: %v", err)
	}
}

func TestAnswerThatDoesNotComeIsUnreachable(t *testing.T) {
	hold := make(chan struct{})
	c, _ := testClient(t, Options{Retries: -1, Timeout: 50 * time.Millisecond}, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	})
	defer close(hold)
	if _, err := c.Version(t.Context()); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("%v", err)
	}
}

func TestOnlySafeCallsAreRepeated(t *testing.T) {
	tests := map[string]struct {
		call func(context.Context, *Client) error
		want int
	}{
		"a read":                  {func(ctx context.Context, c *Client) error { _, err := c.Version(ctx); return err }, 3},
		"a submission with a key": {func(ctx context.Context, c *Client) error { _, _, err := c.Submit(ctx, Submit{Key: "k"}); return err }, 3},
		"a batch with all keys": {func(ctx context.Context, c *Client) error {
			_, err := c.SubmitBatch(ctx, []Submit{{Key: "k"}})
			return err
		}, 3},
		"a submission without": {func(ctx context.Context, c *Client) error { _, _, err := c.Submit(ctx, Submit{}); return err }, 1},
		"a batch with one without": {func(ctx context.Context, c *Client) error {
			_, err := c.SubmitBatch(ctx, []Submit{{Key: "k"}, {}})
			return err
		}, 1},
		"a retry of a run":             {func(ctx context.Context, c *Client) error { _, err := c.Retry(ctx, "r", Retry{}); return err }, 1},
		"a retry of a run under a key": {func(ctx context.Context, c *Client) error { _, err := c.Retry(ctx, "r", Retry{Key: "k"}); return err }, 3},
		"a worker's batch":             {func(ctx context.Context, c *Client) error { _, err := c.ReportBatch(ctx, ReportBatch{}); return err }, 1},
		"an intent of an effect": {func(ctx context.Context, c *Client) error {
			_, err := c.BeginReceipt(ctx, "a", "t", "e", ReceiptBegin{Nonce: "n"})
			return err
		}, 3},
		"a request for work to do":  {func(ctx context.Context, c *Client) error { _, err := c.Lease(ctx, LeaseRequest{}); return err }, 1},
		"a signal that has no key":  {func(ctx context.Context, c *Client) error { _, err := c.Signal(ctx, "r", SignalBody{}); return err }, 1},
		"the end of a run by force": {func(ctx context.Context, c *Client) error { _, err := c.Cancel(ctx, "r", Cancel{}); return err }, 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := testClient(t, Options{}, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				fmt.Fprint(w, `{"items":[{}]}`)
			})
			err := tt.call(t.Context(), c)
			if len(s.seen) != tt.want || (tt.want == 3) != (err == nil) {
				t.Errorf("%d tries, %v; want %d", len(s.seen), err, tt.want)
			}
			if len(slices.Compact(s.seen)) != 1 {
				t.Errorf("tries differ: %q", s.seen)
			}
		})
	}
}

func TestPagesAreWalkedToTheEnd(t *testing.T) {
	c, s := testClient(t, Options{}, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 3 {
			fmt.Fprint(w, `{"items":[{"id":"r5"}]}`)
			return
		}
		fmt.Fprintf(w, `{"items":[{"id":"r%d"},{"id":"r%d"}],"nextPageToken":"p%d"}`, 2*n-1, 2*n, n)
	})
	var ids []string
	for run, err := range c.Runs(t.Context(), RunFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, run.ID)
	}
	if got := strings.Join(ids, " "); got != "r1 r2 r3 r4 r5" {
		t.Errorf("%s", got)
	}
	if diff := cmp.Diff([]string{"GET /v1/runs", "GET /v1/runs?pageToken=p1", "GET /v1/runs?pageToken=p2"}, s.seen); diff != "" {
		t.Error(diff)
	}
	for range c.Runs(t.Context(), RunFilter{}) {
		break // no more is asked for
	}
	if len(s.seen) != 4 {
		t.Errorf("%d calls", len(s.seen))
	}
}

func TestWaitRunAsksUntilItIsOver(t *testing.T) {
	c, s := testClient(t, Options{}, func(n int, w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"id":"r1","state":%q}`, []string{"queued", "running", "failed"}[n-1])
	})
	run, err := c.WaitRun(t.Context(), "r1")
	if err != nil || run.State != "failed" || len(s.seen) != 3 || s.seen[0] != "GET /v1/runs/r1?wait=30s" {
		t.Errorf("%+v, %v, %q", run, err, s.seen)
	}
}

func TestNewClientChecksTheAddress(t *testing.T) {
	for _, bad := range []string{"", "ftp://x", "http://", "http://u:p@x", "http://x?y", "://"} {
		if _, err := NewClient(Options{URL: bad}); err == nil || strings.Contains(err.Error(), "%!") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for in, want := range map[string]string{"127.0.0.1:8080": "http://127.0.0.1:8080", " https://x/base/ ": "https://x/base"} {
		if c, err := NewClient(Options{URL: in}); err != nil || c.URL() != want {
			t.Errorf("%q: %v, %v", in, c, err)
		}
	}
}

func TestTokenDoesNotFollowARedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	c, _ := testClient(t, Options{Token: "t"}, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusFound)
	})
	if _, err := c.Version(t.Context()); err == nil {
		t.Error("a redirect counts as an answer")
	}
}
