package notify

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/shared/signature"
)

const (
	newKey = "0123456789abcdef-new"
	oldKey = "0123456789abcdef-old"
)

// hook is a webhook that answers as it is told.
type hook struct {
	mu      sync.Mutex
	answers []int // the last one for ever
	headers map[string]string
	calls   []*http.Request
	bodies  []string
	entered chan struct{} // gets one of each call; nil to ignore
	leave   chan struct{}
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	h.calls, h.bodies = append(h.calls, r), append(h.bodies, string(body))
	status := 200
	if len(h.answers) > 0 {
		status = h.answers[min(len(h.calls), len(h.answers))-1]
	}
	h.mu.Unlock()
	if h.entered != nil {
		h.entered <- struct{}{}
		<-h.leave
	}
	for k, v := range h.headers {
		w.Header().Set(k, v)
	}
	w.WriteHeader(status)
}

// bench is the function with a webhook.
type bench struct {
	*hook
	handler http.HandlerFunc
	sender  *sender
	pauses  []time.Duration
	log     *strings.Builder
}

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newBench(t *testing.T, env map[string]string, h *hook) *bench {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	all := map[string]string{
		"ERRAND_NOTIFY_URL": srv.URL + "/hunter2", "ERRAND_NOTIFY_KEYS": "env:NEW,env:OLD", "NEW": newKey, "OLD": oldKey,
		"ERRAND_URL": "https://errand.example.com/", "ERRAND_NOTIFY_PRIVATE": "true",
	}
	for k, v := range env {
		all[k] = v
	}
	lookup := edge.Env(func(name string) (string, bool) { v, ok := all[name]; return v, ok })
	s, private, err := read(lookup)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{hook: h, log: new(strings.Builder)}
	b.sender = newSender(s.url, func() ([][]byte, error) { return signature.Keys(s.keys, lookup) }, private)
	b.sender.now = func() time.Time { return at }
	b.sender.pause = func(_ context.Context, d time.Duration) error { b.pauses = append(b.pauses, d); return nil }
	t.Cleanup(b.sender.http.CloseIdleConnections)
	b.handler = s.handler(b.sender, slog.New(slog.NewTextHandler(b.log, nil)))
	return b
}

func (b *bench) post(body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	b.handler(w, r)
	return w
}

const failed = `{"specversion":"1.0","id":"run1/7","source":"/runs","type":"dev.errand.run.failed","subject":"run1","time":"2026-03-01T12:00:00Z","datacontenttype":"application/json",` +
	`"data":{"run":{"id":"run1","agent":"clerk","tenant":"acme","state":"failed","attempt":2,"createdAt":"2026-03-01T11:00:00Z","startedAt":"2026-03-01T11:59:00Z","endedAt":"2026-03-01T12:00:00Z","cost":{"usd":0.25,"tokens":7}},` +
	`"event":{"seq":7,"type":"failed","state":"failed","at":"2026-03-01T12:00:00Z","reason":"AgentError","message":"<https://evil.example|click> & pay\nnow"}}}`

func pushOf(event, attributes string) string {
	return `{"message":{"data":"` + base64.StdEncoding.EncodeToString([]byte(event)) + `","messageId":"1","attributes":{` + attributes + `}},"subscription":"projects/p/subscriptions/errand-events"}`
}

const structured = `"content-type":"application/cloudevents+json"`

func TestAnEventIsTold(t *testing.T) {
	var data struct{ Data json.RawMessage }
	if err := json.Unmarshal([]byte(failed), &data); err != nil {
		t.Fatal(err)
	}
	binary := pushOf(string(data.Data), `"ce-specversion":"1.0","ce-id":"run1/7","ce-source":"/runs","ce-type":"dev.errand.run.failed","ce-subject":"run1","ce-time":"2026-03-01T12:00:00Z"`)
	tests := map[string]struct {
		env        map[string]string
		body, want string
	}{
		"as it is, of a structured event": {nil, pushOf(failed, structured), failed},
		"as it is, of a binary event":     {nil, binary, failed},
		"in words": {map[string]string{"ERRAND_NOTIFY_FORM": "chat"}, pushOf(failed, structured),
			`{"text":"Run run1 of clerk (tenant acme) failed: AgentError, &lt;https://evil.example|click&gt; &amp; pay now; attempt 2; took 1m0s; cost 0.2500 USD\nhttps://errand.example.com/runs/run1"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.env, new(hook))
			if w := b.post(tt.body); w.Code != 200 {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if diff := cmp.Diff([]string{tt.want}, b.bodies); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			h := b.calls[0].Header
			for _, key := range []string{newKey, oldKey} { // whichever the receiver has
				claim, err := signature.Read(h.Get(signature.Timestamp), h.Get(signature.Header), at)
				if err == nil {
					err = claim.Check([][]byte{[]byte(key)}, []byte(tt.want))
				}
				if err != nil {
					t.Errorf("signature by %s: %v", key, err)
				}
			}
			if h.Get("X-Errand-Event") != "run1/7" || h.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

func TestAnswersOfTheWebhook(t *testing.T) {
	tests := map[string]struct {
		answers []int
		headers map[string]string
		status  int
		calls   int
		pauses  []time.Duration
	}{
		"taken at once":            {[]int{204}, nil, 200, 1, nil},
		"taken in the end":         {[]int{503, 500, 200}, nil, 200, 3, []time.Duration{firstPause, 2 * firstPause}},
		"never up":                 {[]int{502}, nil, 503, tries, []time.Duration{firstPause, 2 * firstPause}},
		"too much, and says when":  {[]int{429, 200}, map[string]string{"Retry-After": "2"}, 200, 2, []time.Duration{2 * time.Second}},
		"says to come much later":  {[]int{429, 200}, map[string]string{"Retry-After": "86400"}, 200, 2, []time.Duration{longestPause}},
		"refuses":                  {[]int{400}, nil, 422, 1, nil},
		"is gone":                  {[]int{410}, nil, 422, 1, nil},
		"does not know the method": {[]int{501}, nil, 422, 1, nil},
		"leads elsewhere":          {[]int{307}, map[string]string{"Location": "/elsewhere"}, 422, 1, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, &hook{answers: tt.answers, headers: tt.headers})
			w := b.post(pushOf(failed, structured))
			if w.Code != tt.status || len(b.calls) != tt.calls {
				t.Errorf("status %d after %d calls, want %d after %d: %s", w.Code, len(b.calls), tt.status, tt.calls, w.Body)
			}
			if diff := cmp.Diff(tt.pauses, b.pauses); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}
			if strings.Contains(w.Body.String()+b.log.String(), "hunter2") {
				t.Errorf("the address got out: %s %s", w.Body, b.log)
			}
		})
	}
}

func TestARepeatIsNotTold(t *testing.T) {
	b := newBench(t, nil, &hook{answers: []int{400, 200}})
	for i, want := range []int{422, 200, 200, 200} { // one that failed is told again, one that was told is not
		if w := b.post(pushOf(failed, structured)); w.Code != want {
			t.Errorf("post %d: status %d, want %d", i+1, w.Code, want)
		}
	}
	if len(b.calls) != 2 {
		t.Errorf("%d calls, want 2", len(b.calls))
	}
	if w := b.post(pushOf(strings.ReplaceAll(failed, "run1/7", "run1/8"), structured)); w.Code != 200 || len(b.calls) != 3 {
		t.Errorf("another event: status %d, %d calls", w.Code, len(b.calls))
	}
}

func TestTwoOfOneEventAtATime(t *testing.T) {
	b := newBench(t, nil, &hook{entered: make(chan struct{}), leave: make(chan struct{})})
	first := make(chan int)
	go func() { first <- b.post(pushOf(failed, structured)).Code }()
	<-b.entered
	if w := b.post(pushOf(failed, structured)); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("the second: status %d", w.Code)
	}
	b.leave <- struct{}{}
	if code := <-first; code != 200 || len(b.calls) != 1 {
		t.Errorf("the first: status %d, %d calls", code, len(b.calls))
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m memory
	for i := range 3 * maxRemembered {
		id := fmt.Sprint(i)
		if m.begin(id) != unknown {
			t.Fatalf("event %d is known", i)
		}
		m.end(id, i%3 > 0)
	}
	if n := len(m.seen); n != maxRemembered {
		t.Errorf("%d are remembered, want %d", n, maxRemembered)
	}
}

func TestWhatIsNotTold(t *testing.T) {
	tests := map[string]struct {
		env    map[string]string
		body   string
		status int
	}{
		"an event of no interest":     {map[string]string{"ERRAND_NOTIFY_TYPES": "waiting, succeeded"}, pushOf(failed, structured), 200},
		"an event of something else":  {nil, pushOf(strings.ReplaceAll(failed, "dev.errand.run.", "com.example."), structured), 400},
		"an event without a run":      {nil, pushOf(`{"specversion":"1.0","id":"1","type":"dev.errand.run.failed","data":{}}`, structured), 400},
		"an event without an id":      {nil, pushOf(strings.Replace(failed, "run1/7", "", 1), structured), 400},
		"an event of another version": {nil, pushOf(strings.Replace(failed, `"1.0"`, `"0.3"`, 1), structured), 400},
		"a message that is no event":  {nil, pushOf("hello", structured), 400},
		"a message of another type":   {nil, pushOf(failed, `"content-type":"text/plain"`), 400},
		"what is no message":          {nil, "hello", 400},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.env, new(hook))
			if w := b.post(tt.body); w.Code != tt.status || len(b.calls) > 0 {
				t.Errorf("status %d and %d calls, want %d and none: %s", w.Code, len(b.calls), tt.status, w.Body)
			}
		})
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1:80", "[::1]:80", "10.1.2.3:443", "172.16.0.1:443", "192.168.1.1:443", "169.254.169.254:80", "[fe80::1%eth0]:80", "[fd00::1]:443",
		"0.0.0.0:80", "[::]:80", "100.64.0.1:443", "224.0.0.1:443", "255.255.255.255:443", "[::ffff:10.0.0.1]:443", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443", "198.18.0.1:1", "x:1",
	} {
		if err := public(address); !errors.Is(err, errPrivate) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"8.8.8.8:443", "[2607:f8b0:4004::200e]:443", "172.32.0.1:443"} {
		if err := public(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	// The address that is dialed counts, not the name that stands in the configuration.
	h := new(hook)
	srv := httptest.NewTLSServer(h)
	defer srv.Close()
	u, err := url.Parse(strings.Replace(srv.URL, "127.0.0.1", "localhost", 1))
	if err != nil {
		t.Fatal(err)
	}
	s := newSender(u, func() ([][]byte, error) { return [][]byte{[]byte(newKey)}, nil }, false)
	err = s.send(t.Context(), "1", []byte("{}"))
	var f *failure
	if !errors.As(err, &f) || !f.hopeless || len(h.calls) > 0 {
		t.Errorf("posted with %v, %d calls", err, len(h.calls))
	}
}

func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("https://hooks.example.com/hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"ERRAND_NOTIFY_URL": "https://hooks.example.com/hunter2", "ERRAND_NOTIFY_KEYS": "env:KEY", "KEY": newKey}
	tests := map[string]struct {
		change map[string]string
		want   string // in the error; "" for none
	}{
		"good":                       {nil, ""},
		"an address in a file":       {map[string]string{"ERRAND_NOTIFY_URL": "file:" + file}, ""},
		"no address":                 {map[string]string{"ERRAND_NOTIFY_URL": ""}, "ERRAND_NOTIFY_URL: want https"},
		"an address in no file":      {map[string]string{"ERRAND_NOTIFY_URL": "file:/none/hunter"}, "no such file"},
		"an open address":            {map[string]string{"ERRAND_NOTIFY_URL": "http://hooks.example.com/hunter2"}, "ERRAND_NOTIFY_URL: want https"},
		"an open address, allowed":   {map[string]string{"ERRAND_NOTIFY_URL": "http://10.0.0.1/", "ERRAND_NOTIFY_PRIVATE": "true"}, ""},
		"credentials in the address": {map[string]string{"ERRAND_NOTIFY_URL": "https://a:hunter2@hooks.example.com/"}, "ERRAND_NOTIFY_URL: want https"},
		"no keys":                    {map[string]string{"ERRAND_NOTIFY_KEYS": ""}, "ERRAND_NOTIFY_KEYS"},
		"a key that is not there":    {map[string]string{"ERRAND_NOTIFY_KEYS": "env:KEY,env:NONE"}, "NONE"},
		"an unknown form":            {map[string]string{"ERRAND_NOTIFY_FORM": "fax"}, "ERRAND_NOTIFY_FORM: want event or chat"},
		"chats without links":        {map[string]string{"ERRAND_NOTIFY_FORM": "chat"}, "ERRAND_URL: missing"},
		"neither true nor false":     {map[string]string{"ERRAND_NOTIFY_PRIVATE": "yes"}, "ERRAND_NOTIFY_PRIVATE"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(func(name string) (string, bool) {
				if v, ok := tt.change[name]; ok {
					return v, true
				}
				v, ok := good[name]
				return v, ok
			}, slog.New(slog.DiscardHandler))
			if (tt.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("error %v, want one with %q and no secret", err, tt.want)
			}
		})
	}
}

func TestAQuestionToPeopleIsToldWithALinkToItsPage(t *testing.T) {
	eventOf := func(what, gate string) string {
		return `{"specversion":"1.0","id":"run1/9/gate","source":"/runs","type":"dev.errand.gate.` + what + `","subject":"run1","time":"2026-03-01T12:00:00Z","datacontenttype":"application/json",` +
			`"data":{"run":{"id":"run1","agent":"clerk","tenant":"acme","state":"waiting","attempt":1,"createdAt":"2026-03-01T11:00:00Z","cost":{"usd":0,"tokens":0}},` +
			`"event":{"seq":9,"type":"parked","state":"waiting","at":"2026-03-01T12:00:00Z"}` + gate + `}}`
	}
	for what, want := range map[string]string{
		"requested": "asks people to decide", "reminded": "still waits for people to decide",
		"escalated": "asks further people to decide, as nobody has", "decided": "has its answer: approved by ann&lt;x&gt;",
	} {
		b := newBench(t, map[string]string{"ERRAND_NOTIFY_FORM": "chat"}, new(hook))
		gate := `,"gate":{"id":"g1"}`
		if what == "decided" {
			gate = `,"gate":{"id":"g1","decision":"approved","by":"ann<x>"}`
		}
		if w := b.post(pushOf(eventOf(what, gate), structured)); w.Code != 200 {
			t.Fatalf("%s: status %d: %s", what, w.Code, w.Body)
		}
		text := `{"text":"Run run1 of clerk (tenant acme) ` + want + `\nhttps://errand.example.com/gates/g1"}`
		if diff := cmp.Diff([]string{text}, b.bodies); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	b := newBench(t, nil, new(hook))
	if w := b.post(pushOf(eventOf("requested", ""), structured)); w.Code == 200 {
		t.Errorf("an event about no gate: status %d", w.Code)
	}
}
