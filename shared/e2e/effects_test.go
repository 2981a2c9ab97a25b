package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of effects that happen once, whatever dies in the middle, and of their undoing. Case F24.

func init() {
	programs["payer"] = func() { agent.Main(pay) }
}

// order is what the payer is to do, and where its first attempt dies.
type order struct {
	Bank   string   `json:"bank"`
	Dies   string   `json:"dies,omitempty"` // before, intent, call, receipt: the point of the first attempt
	Policy string   `json:"policy,omitempty"`
	Items  []string `json:"items"`
	Gate   string   `json:"gate,omitempty"` // waits there when all is paid
}

// die is kill -9.
func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }

func pay(ctx context.Context, r *agent.Run, in order) ([]string, error) {
	at := func(point string) {
		if in.Dies == point && r.Attempt == 1 {
			die()
		}
	}
	at("before")
	var paid []string
	for _, item := range in.Items {
		got, err := agent.Step(ctx, r, "pay "+item, func(ctx context.Context) (string, error) {
			got, err := agent.Once(ctx, r, "charge "+item, charge(in, item, at))
			if err == nil {
				at("receipt")
			}
			return got, err
		})
		if err != nil {
			return nil, err
		}
		paid = append(paid, got)
	}
	note("stage", fmt.Sprintf("entered:%s.%d:%d", r.ID, r.Attempt, os.Getpid()))
	if in.Gate != "" {
		return paid, wait(ctx, false, 0, in.Gate)
	}
	return paid, nil
}

var policies = map[string]agent.OnUnknown{"reconcile": agent.Reconcile, "repeat": agent.Repeat, "ask": agent.Ask, "fail": agent.FailRun}

func charge(in order, item string, at func(string)) agent.Effect[string] {
	e := agent.Effect[string]{
		Request: item, OnUnknown: policies[in.Policy], Timeout: 10 * time.Second,
		Do: func(ctx context.Context, key string) (string, error) {
			at("intent")
			got, err := ask(ctx, http.MethodPost, in.Bank+"/charge?item="+url.QueryEscape(item), key)
			at("call")
			return got, err
		},
	}
	if in.Policy == "reconcile" {
		e.Reconcile = func(ctx context.Context, key string) (string, bool, error) {
			got, err := ask(ctx, http.MethodGet, in.Bank+"/charge", key)
			return got, got != "", err
		}
	}
	if in.Gate != "" {
		e.Compensate = func(ctx context.Context, key, result string) error {
			note("undoing", item)
			if in.Dies == item && len(strings.Fields(notesOf("undoing"))) == 2 { // the second thing that is undone, once
				die()
			}
			_, err := ask(ctx, http.MethodPost, in.Bank+"/undo?item="+url.QueryEscape(item), key)
			return err
		}
	}
	return e
}

func notesOf(file string) string {
	text, _ := os.ReadFile(os.Getenv(envDir) + "/" + file)
	return string(text)
}

// ask calls the bank and returns what it says.
func ask(ctx context.Context, method, url, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var got struct{ ID string }
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the bank answers %s", res.Status)
	}
	return got.ID, json.NewDecoder(res.Body).Decode(&got)
}

// bank is the outside: it counts what it is asked for, and what happens.
type bank struct {
	*httptest.Server
	idempotent bool

	mu      sync.Mutex
	calls   map[string]int      // by key
	charges map[string][]string // by key
	undone  []string            // items, in order
}

func newBank(t *testing.T, idempotent bool) *bank {
	b := &bank{idempotent: idempotent, calls: make(map[string]int), charges: make(map[string][]string)}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.Close)
	return b
}

func (b *bank) serve(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, id := r.Header.Get("Idempotency-Key"), ""
	switch {
	case r.URL.Path == "/undo":
		b.undone = append(b.undone, r.URL.Query().Get("item"))
	case r.Method == http.MethodPost:
		b.calls[key]++
		if !b.idempotent || len(b.charges[key]) == 0 {
			b.charges[key] = append(b.charges[key], fmt.Sprintf("%s-%d", key, len(b.charges[key])+1))
		}
		id = b.charges[key][len(b.charges[key])-1]
	case len(b.charges[key]) > 0:
		id = b.charges[key][0]
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"ID": id})
}

func (b *bank) of(key string) (calls int, charges []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[key], slices.Clone(b.charges[key])
}

const payerSpec = `
	shape: pool
	permissions: {effects: ["*"]}
	effects: {settle: 1ms}
	retry: {maxAttempts: 4, backoff: {initial: 10ms, max: 10ms}}`

func TestWhateverDiesTheEffectHappensOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("payer", "payer", "stdio", payerSpec))
	banks := []*bank{newBank(t, true), newBank(t, false)}
	times := 20
	if testing.Short() {
		times = 2
	}
	type tried struct {
		id     string
		policy string
		dies   string
		bank   *bank
	}
	var all []tried
	for _, policy := range []string{"reconcile", "repeat", "ask", "fail"} {
		for _, dies := range []string{"before", "intent", "call", "receipt"} {
			for i := range times {
				b := banks[i%2]
				in, _ := json.Marshal(order{Bank: b.URL, Dies: dies, Policy: policy, Items: []string{"shoes"}})
				all = append(all, tried{s.submit("payer", string(in)).ID, policy, dies, b})
			}
		}
	}
	for _, x := range all {
		what := fmt.Sprintf("run %s, policy %s, killed %s, idempotent %t", x.id, x.policy, x.dies, x.bank.idempotent)
		open := x.dies == "intent" || x.dies == "call"
		key := func() string {
			list := do(s.Receipts(t.Context(), x.id))(t).Items
			if len(list) != 1 {
				t.Fatalf("%s: receipts %+v", what, list)
			}
			return list[0].ID
		}
		// 1. Where a person is asked, that person looks, and says what is true.
		if x.policy == "ask" && open {
			outside.Eventually(t, 2*outside.Patience, what+" waits", func() bool { return s.get(x.id).State == "waiting" })
			_, charges := x.bank.of(key())
			happened := len(charges) > 0
			body := api.Resolve{Happened: &happened}
			if happened {
				body.Result, _ = json.Marshal(charges[0])
			}
			do(s.Resolve(t.Context(), key(), body))(t)
		}
		var r *api.Run
		outside.Eventually(t, 2*outside.Patience, what+" ends", func() bool { r = s.get(x.id); return r.Terminal() })
		// 2. How often it was asked for, what came of it, and what the run says.
		calls, charges := x.bank.of(key())
		wantCalls, wantState := 1, "succeeded"
		if x.policy == "fail" && open {
			wantState = "failed"
			if x.dies == "intent" {
				wantCalls = 0
			}
		}
		if x.policy == "repeat" && x.dies == "call" {
			wantCalls = 2
		}
		wantCharges := wantCalls
		if x.bank.idempotent {
			wantCharges = min(wantCharges, 1)
		}
		if calls != wantCalls || len(charges) != wantCharges || r.State != wantState {
			t.Errorf("%s: %d calls, %d charges, %s (%s: %s); want %d, %d, %s", what, calls, len(charges), r.State, r.Reason, r.Message, wantCalls, wantCharges, wantState)
			continue
		}
		switch {
		case wantState == "failed":
			if r.Reason != "OutcomeUnknown" {
				t.Errorf("%s: %s", what, r.Reason)
			}
		case x.policy != "repeat":
			if got := output[[]string](t, r); len(got) != 1 || got[0] != charges[0] {
				t.Errorf("%s: output %v, the bank's first answer was %v", what, got, charges)
			}
		}
	}
}

func TestWhatACanceledRunDidIsUndoneOnceWhateverDies(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("payer", "payer", "stdio", payerSpec))
	b := newBank(t, false)
	in, _ := json.Marshal(order{Bank: b.URL, Policy: "repeat", Items: []string{"hat", "shoes", "coat"}, Gate: "never", Dies: "shoes"})
	r := s.submit("payer", string(in))
	s.entered(r.ID, 1)
	// 1. The preview.
	out, _, code := s.errand("cancel", r.ID, "--dry-run", "-o", "json")
	var preview api.CancelPreview
	if err := json.Unmarshal([]byte(out), &preview); err != nil || code != 0 {
		t.Fatalf("preview, exit code %d, %v: %s", code, err, out)
	}
	var told []string
	for _, c := range preview.Compensations {
		told = append(told, strings.TrimPrefix(c.Effect, "charge "))
	}
	if diff := cmp.Diff([]string{"coat", "shoes", "hat"}, told); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	// 2. The cancel. The process dies while it undoes the second, and the server a moment later.
	if _, stderr, code := s.errand("cancel", r.ID); code != 0 {
		t.Fatalf("cancel: exit code %d: %s", code, stderr)
	}
	outside.Eventually(t, outside.Patience, "the second is being undone", func() bool { return len(p.notes("undoing")) >= 2 })
	s.Reboot()
	got := s.ends(r.ID)
	if got.State != "canceled" || got.Reason != "Canceled" {
		t.Errorf("run %s (%s: %s), want canceled", got.State, got.Reason, got.Message)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(told, b.undone); diff != "" {
		t.Errorf("what was undone, against the preview (-told +undone):\n%s", diff)
	}
	// 3. The audit tells it.
	out, _, code = s.errand("audit", r.ID)
	for _, want := range []string{"compensating", "compensated", "charge hat", "Children (1)"} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("audit, exit code %d, does not say %q:\n%s", code, want, out)
		}
	}
}
