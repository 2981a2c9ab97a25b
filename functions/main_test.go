package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/node"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/signature"
	"github.com/errand-run/errand/shared/store/memory"
)

// The test binary is the functions' binary as well: each function is a process of its own, as it is deployed.
func TestMain(m *testing.M) {
	process.Warden()
	if os.Getenv("ERRAND_TEST_IS_FUNCTION") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const patience = 30 * time.Second // for what another process does

const declared = `apiVersion: errand.dev/v1
kind: Agent
metadata: {name: echo}
spec: {shape: pool, run: {command: [cat]}, input: {schema: {type: object, required: [order]}}}
---
apiVersion: errand.dev/v1
kind: Target
metadata: {name: here}
spec: {runtime: local, capacity: {runs: 2}}
---
apiVersion: errand.dev/v1
kind: Trigger
metadata: {name: orders}
spec:
  pubsub: {topic: projects/p/topics/orders, maxAttempts: 3}
  run: {agent: echo, input: '{"order": message.data.order, "from": message.attributes.shop, "subscription": message.subscription}'}
`

// platform is a control process that asks everybody who they are, and what tells workloads of the platform that.
type platform struct {
	t        *testing.T
	node     *node.Node
	admin    *api.Client
	metadata map[server.Role]string // hosts: of a workload that has the role
}

// identityOf is a token of the platform's form, as good for the node as any that nobody can make up.
func identityOf(role server.Role) string {
	part := func(v any) string {
		raw, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	return part(map[string]string{"alg": "none"}) + "." + part(map[string]any{"email": string(role), "exp": time.Now().Add(time.Hour).Truncate(time.Hour).Add(time.Hour).Unix()}) + ".c2ln"
}

func newPlatform(t *testing.T) *platform {
	t.Helper()
	p := &platform{t: t, metadata: make(map[server.Role]string)}
	var tokens []server.Token
	for _, role := range []server.Role{server.Submitter, server.Worker, server.Edge, server.Admin} {
		token := identityOf(role)
		tokens = append(tokens, server.Token{Name: string(role), SHA256: server.HashToken(token), Role: role})
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Query().Get("audience") != p.node.URL() {
				http.Error(w, "no such audience", http.StatusNotFound)
				return
			}
			w.Header().Set("Metadata-Flavor", "Google")
			fmt.Fprint(w, token)
		}))
		t.Cleanup(srv.Close)
		p.metadata[role] = strings.TrimPrefix(srv.URL, "http://")
	}
	auth, err := server.NewTokens(tokens)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.node, err = node.Start(t.Context(), node.Options{
		Store: memory.Open(), Listener: l, Auth: auth, Local: true, Ledger: filepath.Join(t.TempDir(), "processes"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.node.Close(t.Context(), time.Second); err != nil && !strings.Contains(err.Error(), "context canceled") {
			t.Error(err)
		}
	})
	if p.admin, err = api.NewClient(api.Options{URL: p.node.URL(), Token: identityOf(server.Admin)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.admin.Close)
	if _, err := p.admin.Apply(t.Context(), []byte(declared), api.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// function starts a function as a process, and returns its address.
func function(t *testing.T, target string, env ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{"ERRAND_TEST_IS_FUNCTION=1", "FUNCTION_TARGET=" + target, "PORT=" + port, "ERRAND_LISTEN=127.0.0.1"}, env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", target, log.String())
		}
	})
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", target, err)
		}
		time.Sleep(10 * time.Millisecond) // it is another process: nothing tells when it listens
	}
}

func (p *platform) function(target string, role server.Role, env ...string) string {
	p.t.Helper()
	return function(p.t, target, append([]string{"ERRAND_URL=" + p.node.URL(), "GCE_METADATA_HOST=" + p.metadata[role]}, env...)...)
}

// post posts a body with headers, and decodes the answer into an A.
func post[A any](t *testing.T, url, body string, headers ...string) (int, A) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a A
	if err := json.Unmarshal(raw, &a); err != nil {
		t.Fatalf("%d %s: %v", resp.StatusCode, raw, err)
	}
	return resp.StatusCode, a
}

const subscription = "projects/p/subscriptions/errand-trigger-orders"

// push is a wrapped push.
func push(id, data string) string { return pushWith(id, data, `"shop":"acme"`, subscription) }

func pushWith(id, data, attributes, from string) string {
	return fmt.Sprintf(`{"deliveryAttempt":1,"message":{"attributes":{%s},"data":"%s","messageId":"%s","message_id":"%[3]s","publishTime":"2026-02-19T11:28:34.055Z","publish_time":"2026-02-19T11:28:34.055Z"},"subscription":"%s"}`,
		attributes, base64.StdEncoding.EncodeToString([]byte(data)), id, from)
}

func TestMessagesBecomeRuns(t *testing.T) {
	p := newPlatform(t)
	url := p.function("intake", server.Submitter)
	ce := []string{"Ce-Id", "1", "Ce-Specversion", "1.0", "Ce-Type", "google.cloud.pubsub.topic.v1.messagePublished", "Ce-Source", "//pubsub.googleapis.com/projects/p/topics/orders", "Ce-Time", "2026-02-19T11:28:34.055Z"}
	forms := map[string]struct {
		url, body string
		headers   []string
	}{
		"a wrapped push":       {url, push("wrapped", `{"order":7}`), nil},
		"a push to a path":     {url + "/some/where?trigger=orders", pushWith("path", `{"order":7}`, `"shop":"acme"`, subscription), nil},
		"an unwrapped push":    {url, `{"order":7}`, []string{"X-Goog-Pubsub-Message-Id", "unwrapped", "X-Goog-Pubsub-Subscription-Name", subscription, "X-Goog-Pubsub-Publish-Time", "2026-02-19T11:28:34.055Z", "Shop", "acme"}},
		"a CloudEvent, binary": {url, push("binary", `{"order":7}`), ce},
		"a CloudEvent, structured": {url, `{"specversion":"1.0","id":"1","type":"google.cloud.pubsub.topic.v1.messagePublished","source":"//pubsub.googleapis.com/projects/p/topics/orders","datacontenttype":"application/json","data":` + push("structured", `{"order":7}`) + `}`,
			[]string{"Content-Type", "application/cloudevents+json; charset=UTF-8"}},
	}
	runs := make(map[string]bool)
	for name, f := range forms {
		t.Run(name, func(t *testing.T) {
			status, first := post[api.Taken](t, f.url, f.body, f.headers...)
			if status != 200 || first.Run == "" || first.Existed || runs[first.Run] {
				t.Fatalf("status %d, %+v", status, first)
			}
			runs[first.Run] = true
			if status, again := post[api.Taken](t, f.url, f.body, f.headers...); status != 200 || again.Run != first.Run || !again.Existed {
				t.Errorf("again: status %d, %+v", status, again)
			}
			r, err := p.admin.Run(t.Context(), first.Run, patience)
			if err != nil {
				t.Fatal(err)
			}
			var document struct {
				Input json.RawMessage
			}
			if err := json.Unmarshal(r.Output, &document); err != nil || r.State != "succeeded" ||
				string(document.Input) != `{"from":"acme","order":7,"subscription":"`+subscription+`"}` || r.Labels["trigger"] != "orders" {
				t.Errorf("run %+v with output %s, %v", r, r.Output, err)
			}
		})
	}
}

func TestPoisonIsPutAsideAndReplayed(t *testing.T) {
	p := newPlatform(t)
	url := p.function("intake", server.Submitter)
	var taken api.Taken
	for i, want := range []int{400, 400, 200} { // the broker says each time that it is the first
		var status int
		if status, taken = post[api.Taken](t, url, push("poison", `{"ordre":7}`)); status != want {
			t.Fatalf("delivery %d: status %d, want %d: %+v", i+1, status, want, taken)
		}
	}
	letter, err := p.admin.DeadLetter(t.Context(), taken.DeadLetter)
	if err != nil || letter.Trigger != "orders" || letter.Attempts != 3 || string(letter.Data) != `{"ordre":7}` || !strings.Contains(letter.Reason, "no such key: order") {
		t.Fatalf("letter %+v, %v", letter, err)
	}
	// The trigger is put right, and the message becomes a run after all; once more, and it is another.
	mended := strings.Replace(declared, "message.data.order", "message.data.ordre", 1)
	if _, err := p.admin.Apply(t.Context(), []byte(mended), api.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	first, err := p.admin.ReplayDeadLetter(t.Context(), letter.ID, api.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.admin.ReplayDeadLetter(t.Context(), letter.ID, api.Replay{})
	if err != nil || second.ID == first.ID {
		t.Errorf("replayed as %s, then as %s, %v", first.ID, second.ID, err)
	}
	if r, err := p.admin.Run(t.Context(), first.ID, patience); err != nil || r.State != "succeeded" {
		t.Errorf("run %+v, %v", r, err)
	}
}

func TestIntakeRefuses(t *testing.T) {
	p := newPlatform(t)
	url := p.function("intake", server.Submitter)
	away := function(t, "intake", "ERRAND_URL=http://127.0.0.1:1", "ERRAND_TOKEN=x")
	stranger := p.function("intake", server.Worker) // its account may not submit: a mistake of ours, none of the message
	for name, tt := range map[string]struct {
		url, body string
		want      int
	}{
		"what is no message":              {url, `{"a":1}`, 400},
		"a message of no trigger":         {url, pushWith("1", "{}", "", "projects/p/subscriptions/other"), 400},
		"a message of an unknown trigger": {url + "?trigger=none", push("1", "{}"), 404},
		"a trigger of no name":            {url + "?trigger=A%20b", push("1", "{}"), 400},
		"while the control plane is away": {away, push("1", "{}"), 503},
		"when it may not submit":          {stranger, push("1", "{}"), 503},
	} {
		if status, p := post[api.Problem](t, tt.url, tt.body); status != tt.want || p.Detail == "" {
			t.Errorf("%s: status %d, want %d: %+v", name, status, tt.want, p)
		}
	}
}

func TestTick(t *testing.T) {
	p := newPlatform(t)
	if status, got := post[api.Ticked](t, p.function("tick", server.Edge), ""); status != 200 || !got.Leader {
		t.Errorf("status %d, %+v", status, got)
	}
}

func TestDeadLetters(t *testing.T) {
	p := newPlatform(t)
	url := p.function("deadletter", server.Edge)
	given := func(id, attributes, from string) string {
		return pushWith(id, `{"order":7}`, attributes+`,"CloudPubSubDeadLetterSourceSubscription":"`+from+`","CloudPubSubDeadLetterSourceSubscriptionProject":"p",`+
			`"CloudPubSubDeadLetterSourceDeliveryCount":"5","CloudPubSubDeadLetterSourceTopicPublishTime":"2026-02-19T10:00:00.000+00:00"`, "projects/p/subscriptions/errand-deadletter")
	}
	// 1. A message of a trigger is recorded once, and can be sent on its way again.
	body := given("9", `"shop":"acme"`, "errand-trigger-orders")
	status, letter := post[api.DeadLetter](t, url, body)
	if status != 200 || letter.Trigger != "orders" || letter.Attempts != 5 || letter.Subscription != subscription || len(letter.Attributes) != 1 ||
		letter.PublishTime == nil || letter.PublishTime.UTC().Hour() != 10 {
		t.Fatalf("status %d, %+v", status, letter)
	}
	if status, again := post[api.DeadLetter](t, url, body); status != 200 || again.ID != letter.ID {
		t.Errorf("again: status %d, %+v", status, again)
	}
	r, err := p.admin.ReplayDeadLetter(t.Context(), letter.ID, api.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.admin.Run(t.Context(), r.ID, patience); err != nil || r.State != "succeeded" {
		t.Errorf("run %+v, %v", r, err)
	}
	// 2. A hand-over whose ticket is none is kept, without it.
	if status, got := post[api.DeadLetter](t, url, given("10", `"attempt":"nosuchrun.1","ticket":"abc"`, "errand-pool-gpu")); status != 200 || got.MessageID != "10" || got.Attributes["ticket"] != "" || got.Attributes["attempt"] == "" {
		t.Errorf("status %d, %v", status, got)
	}
	// 3. A message that only looks like one is kept as any other.
	if status, got := post[api.DeadLetter](t, url, given("11", `"attempt":"nosuchrun.1","ticket":"abc"`, "somebody-elses")); status != 200 || got.MessageID != "11" || got.Trigger != "" {
		t.Errorf("status %d, %+v", status, got)
	}
	list, err := p.admin.ListDeadLetters(t.Context(), api.Page{})
	if err != nil || len(list.Items) != 3 {
		t.Errorf("letters %+v, %v", list, err)
	}
}

func TestNotify(t *testing.T) {
	type call struct{ id, body string }
	calls := make(chan call, 10)
	key := "0123456789abcdef"
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		claim, err := signature.Read(r.Header.Get(signature.Timestamp), r.Header.Get(signature.Header), time.Now())
		if err == nil {
			err = claim.Check([][]byte{[]byte(key)}, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		calls <- call{r.Header.Get("X-Errand-Event"), string(body)}
	}))
	defer hook.Close()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	url := function(t, "notify", "ERRAND_URL=https://errand.example.com", "ERRAND_NOTIFY_URL="+hook.URL, "ERRAND_NOTIFY_KEYS=file:"+file,
		"ERRAND_NOTIFY_FORM=chat", "ERRAND_NOTIFY_PRIVATE=true")
	event := `{"specversion":"1.0","id":"run1/3","source":"/runs","type":"dev.errand.run.succeeded","data":{"run":{"id":"run1","agent":"echo","tenant":"default","state":"succeeded"},"event":{"seq":3,"type":"succeeded"}}}`
	body := pushWith("1", event, `"content-type":"application/cloudevents+json"`, "projects/p/subscriptions/errand-events")
	for i, want := range []string{"told", "told before"} {
		if status, got := post[map[string]string](t, url, body); status != 200 || got["outcome"] != want {
			t.Errorf("post %d: status %d, %v", i+1, status, got)
		}
	}
	if got := <-calls; got.id != "run1/3" || got.body != `{"text":"Run run1 of echo (tenant default) succeeded\nhttps://errand.example.com/runs/run1"}` || len(calls) != 0 {
		t.Errorf("told %+v, and %d more", got, len(calls))
	}
}

func TestWhichFunction(t *testing.T) {
	for _, env := range []map[string]string{{}, {"FUNCTION_TARGET": "none"}, {"FUNCTION_TARGET": "intake"}, {"FUNCTION_TARGET": "notify"}} {
		err := serve(edge.Env(func(name string) (string, bool) { v, ok := env[name]; return v, ok }), slog.New(slog.DiscardHandler))
		if err == nil || env["FUNCTION_TARGET"] == "none" && !strings.Contains(err.Error(), "deadletter, intake, notify, tick") {
			t.Errorf("%v: %v", env, err)
		}
	}
}
