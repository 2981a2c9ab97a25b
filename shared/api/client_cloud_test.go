package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// issuer is a TokenSource that says whom it was asked for.
type issuer struct{ err error }

func (i issuer) Token(_ context.Context, audience string) (string, error) {
	return "for-" + audience, i.err
}

func TestCallsCarryTheWorkloadsIdentityWhereThereIsNoOtherToken(t *testing.T) {
	down := errors.New("no metadata server")
	tests := map[string]struct {
		options Options
		call    func(ctx context.Context, c *Client) error
		want    string // Authorization; "" for none
		wantErr error
	}{
		"a claim is made with an identity token":     {Options{Tokens: issuer{}, Audience: "aud"}, claim, "Bearer for-aud", nil},
		"a token that was given comes first":         {Options{Tokens: issuer{}, Token: "given"}, claim, "Bearer given", nil},
		"an attempt's own token comes before both":   {Options{Tokens: issuer{}, Token: "given"}, report, "Bearer own", nil},
		"without a source there is no authorization": {Options{}, claim, "", nil},
		"the audience is the server without another": {Options{Tokens: issuer{}}, claim, "Bearer for-http://", nil},
		"no identity to be had is as good as no way": {Options{Tokens: issuer{down}, Retries: -1}, claim, "", down},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got string
			c, s := testClient(t, tt.options, func(_ int, w http.ResponseWriter, r *http.Request) {
				got = r.Header.Get("Authorization")
				fmt.Fprint(w, "{}")
			})
			err := tt.call(t.Context(), c)
			if tt.wantErr != nil {
				if !errors.Is(err, tt.wantErr) || !errors.Is(err, ErrUnreachable) || len(s.seen) != 0 {
					t.Errorf("error %v after %d calls; want %v, as one of kind %v, and no call", err, len(s.seen), tt.wantErr, ErrUnreachable)
				}
				return
			}
			if tt.options.Audience == "" && strings.HasPrefix(got, tt.want+"127.0.0.1:") {
				got = tt.want
			}
			if err != nil || got != tt.want {
				t.Errorf("Authorization %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}

func claim(ctx context.Context, c *Client) error {
	_, err := c.Claim(ctx, "r1.1", Claim{Worker: "w", Ticket: "t"})
	return err
}

func report(ctx context.Context, c *Client) error {
	_, err := c.Report(ctx, Report{Type: ReportBeat, Attempt: "r1.1", Token: "own"})
	return err
}

func TestAClaimIsRepeatedWhileTheServerIsAway(t *testing.T) {
	c, s := testClient(t, Options{}, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"attempt":"r1.1","token":"own"}`)
	})
	lease, err := c.Claim(t.Context(), "r1.1", Claim{Worker: "w", Ticket: "t"})
	if err != nil || lease.Token != "own" || len(s.seen) != 2 {
		t.Errorf("%+v, %v after %d calls; want the lease after two", lease, err, len(s.seen))
	}
}

func TestBeginAnswersWithALeaseOrWithARunThatIsOver(t *testing.T) {
	one := 1
	b := Begin{Agent: "a", Key: "e/1", Execution: "e", Index: &one, Completions: &one, Restarts: 2, Worker: "e-1"}
	tests := map[string]struct {
		status  int
		answer  string
		want    Begun
		wantErr string
	}{
		"a run that runs": {201, `{"attempt":"r1.1","run":"r1","token":"own"}`, Begun{Lease: &Lease{Attempt: "r1.1", Run: "r1", Token: "own"}}, ""},
		"a run that succeeded": {200, `{"run":"r1","state":"succeeded","output":{"x":1}}`,
			Begun{Finished: &Finished{Run: "r1", State: "succeeded", Output: json.RawMessage(`{"x":1}`)}}, ""},
		"a run that failed": {200, `{"run":"r1","state":"failed","reason":"NonRetryable","code":"BAD","message":"no"}`,
			Begun{Finished: &Finished{Run: "r1", State: "failed", Reason: "NonRetryable", Code: "BAD", Message: "no"}}, ""},
		"an answer that is none": {200, `[]`, Begun{}, "POST /v1/runs:begin: answer of the server"},
		"a refusal":              {409, `{"type":"https://errand.dev/problems/fenced","title":"Conflict"}`, Begun{}, "Conflict"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, s := testClient(t, Options{}, func(_ int, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.answer)
			})
			got, err := c.BeginRun(t.Context(), b)
			want := `POST /v1/runs:begin {"agent":"a","key":"e/1","execution":"e","index":1,"completions":1,"restarts":2,"worker":"e-1"}`
			if diff := cmp.Diff([]string{want}, s.seen); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v; want …%s…", err, tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
