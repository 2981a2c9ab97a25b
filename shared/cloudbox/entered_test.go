package cloudbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/twin"
)

// Runs that come past the control plane: an execution that somebody starts, and a call to a service. The agent is this
// test's own program, and buys in a shop that counts.

// envShop makes the test's program the agent that buys there.
const envShop = "TEST_SHOP"

const (
	hirer   = "client@errand-box.iam.gserviceaccount.com"
	jobName = "buyer-job"
	svcName = "buyer-service"
	insName = "buyer-instance"
)

type order struct {
	Item string `json:"item"`
}

type bought struct {
	Item   string `json:"item"`
	Ticket string `json:"ticket"` // of the shop
}

// buyer is the agent: it buys once, and goes on when the shop lets it.
func buyer(shop string) {
	ask := func(ctx context.Context, path string, query url.Values) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, shop+path+"?"+query.Encode(), http.NoBody)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("the shop answers %d", resp.StatusCode)
		}
		return string(text), err
	}
	agent.Main(func(ctx context.Context, r *agent.Run, in order) (bought, error) {
		r.Log().Info("buying")
		ticket, err := agent.Once(ctx, r, "buy", agent.Effect[string]{
			Request: in,
			Do: func(ctx context.Context, key string) (string, error) {
				return ask(ctx, "/buy", url.Values{"item": {in.Item}, "key": {key}})
			},
		})
		if err != nil {
			return bought{}, err
		}
		_, err = ask(ctx, "/door", url.Values{"item": {in.Item}})
		return bought{Item: in.Item, Ticket: ticket}, err
	})
}

// shop is the outside world: it counts what is bought, and lets nobody who bought what is held go before it is let go.
type shop struct {
	*httptest.Server
	mu     sync.Mutex
	bought map[string]int
	held   map[string]chan struct{} // by item
	came   map[string]chan struct{} // one for each that comes to the door
}

func newShop(t *testing.T) *shop {
	s := &shop{bought: make(map[string]int), held: make(map[string]chan struct{}), came: make(map[string]chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		item := r.URL.Query().Get("item")
		s.mu.Lock()
		held, came := s.held[item], s.came[item]
		if r.URL.Path == "/buy" {
			s.bought[item]++
		}
		n := s.bought[item]
		s.mu.Unlock()
		if r.URL.Path == "/door" && held != nil {
			came <- struct{}{}
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		fmt.Fprintf(w, "%s-%d", item, n)
	}))
	t.Cleanup(s.Close)
	return s
}

// hold keeps whoever buys the item at the door. came receives each that arrives there; open lets all go.
func (s *shop) hold(t *testing.T, item string) (came <-chan struct{}, open func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, at := make(chan struct{}), make(chan struct{}, 100)
	s.held[item], s.came[item] = held, at
	open = sync.OnceFunc(func() { close(held) })
	t.Cleanup(open)
	return at, open
}

func (s *shop) sold(item string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bought[item]
}

// street is a box with agents that buy in a shop.
type street struct {
	*testing.T
	*cloudbox.Box
	shop   *shop
	client *api.Client
	ctx    context.Context
	uri    string // of the service
}

// of is the street as a subtest sees it.
func (s *street) of(t *testing.T) *street {
	out := *s
	out.T = t
	return &out
}

func newStreet(t *testing.T) *street {
	t.Helper()
	s := &street{T: t, shop: newShop(t)}
	var fleetOf []fleet.Object
	for name, shape := range map[string]fleet.Shape{jobName: fleet.Job, svcName: fleet.Service, insName: fleet.Instance} {
		a := &fleet.Agent{Meta: fleet.Meta{Name: name}, Shape: shape, Run: fleet.Run{
			Command: []string{os.Args[0]}, Env: map[string]string{envShop: s.shop.URL},
		}}
		a.Permissions.Effects = []string{"buy"}
		if shape != fleet.Job {
			a.Run.Protocol, a.Run.Slots = fleet.HTTP, 4
		}
		a.SetDefaults()
		a.Retry.Backoff.Initial = fleet.Duration(100 * time.Millisecond)
		fleetOf = append(fleetOf, a)
	}
	s.Box = open(t, func(o *cloudbox.Options) {
		o.Fleet = fleetOf
		o.Cloud = func(o *twin.Options) { o.Invokers = append(o.Invokers, "serviceAccount:"+hirer) }
	})
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	var err error
	if s.client, err = s.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	// The job may be tried three times by the platform itself.
	jobs := clientOf(s, run.NewJobsClient)
	job, err := jobs.GetJob(s.ctx, &runpb.GetJobRequest{Name: s.Twin().Parent() + "/jobs/" + jobName})
	if err != nil {
		t.Fatal(err)
	}
	job.Template.Template.Retries = &runpb.TaskTemplate_MaxRetries{MaxRetries: 2}
	if err := s.Twin().Apply(s.ctx, job); err != nil {
		t.Fatal(err)
	}
	service, err := clientOf(s, run.NewServicesClient).GetService(s.ctx, &runpb.GetServiceRequest{Name: s.Twin().Parent() + "/services/" + svcName})
	if err != nil {
		t.Fatal(err)
	}
	s.uri = service.Uri
	return s
}

// clientOf is one of Google's clients for the box's Cloud Run.
func clientOf[C interface{ Close() error }](s *street, dial func(context.Context, ...option.ClientOption) (C, error)) C {
	s.Helper()
	client, err := dial(s.ctx, option.WithEndpoint(s.Twin().Endpoint()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = client.Close() })
	return client
}

// gcloud runs the real thing against the box's Cloud Run.
func (s *street) gcloud(args ...string) (string, error) {
	s.Helper()
	program, err := exec.LookPath("gcloud")
	if err != nil {
		const missing = "gcloud is not in PATH (Debian package google-cloud-cli): a job that is started with it is not tested"
		if os.Getenv(emulator.RequiredEnv) != "" {
			s.Fatal(missing)
		}
		s.Skip("SKIPPED, so nothing is known of this part: " + missing)
	}
	dir := s.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("any"), 0o600); err != nil {
		s.Fatal(err)
	}
	host, port, err := net.SplitHostPort(s.Twin().HTTP())
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.ctx, program, append(args, "--project", "errand-box", "--region", "europe-west1", "--quiet")...)
	cmd.Env = append(os.Environ(),
		"CLOUDSDK_CONFIG="+filepath.Join(dir, "config"),
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1", "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN=http://run.test/", "CLOUDSDK_PROXY_TYPE=http",
		"CLOUDSDK_PROXY_ADDRESS="+host, "CLOUDSDK_PROXY_PORT="+port, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="+token,
	)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// execution is the one that a call of start has made.
func (s *street) execution(start func()) string {
	s.Helper()
	before := len(s.Twin().Executions(jobName))
	start()
	all := s.Twin().Executions(jobName)
	if len(all) != before+1 {
		s.Fatalf("%d executions were made, want 1", len(all)-before)
	}
	return all[before].GetName()
}

// finished waits for the end of an execution.
func (s *street) finished(name string) *runpb.Execution {
	s.Helper()
	client := clientOf(s, run.NewExecutionsClient)
	for {
		e, err := client.GetExecution(s.ctx, &runpb.GetExecutionRequest{Name: name})
		if err != nil {
			s.Fatal(err)
		}
		if e.GetCompletionTime() != nil {
			return e
		}
		pause(s.T, s.ctx)
	}
}

// pause is between two looks at another process.
func pause(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	case <-time.After(20 * time.Millisecond):
	}
}

// arrive waits until somebody stands at the shop's door.
func (s *street) arrive(came <-chan struct{}) {
	s.Helper()
	select {
	case <-came:
	case <-s.ctx.Done():
		s.Fatal("nobody came to the shop")
	}
}

// call makes a plain call of the service, as an account that may.
func (s *street) call(ctx context.Context, key, item string) (*http.Response, []byte, error) {
	token, err := s.Twin().Token(hirer, s.uri)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.uri+"/", strings.NewReader(`{"item":"`+item+`"}`))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// insist calls until the call succeeds, as a caller does that knows its key protects it.
func (s *street) insist(key, item string) (*http.Response, []byte) {
	s.Helper()
	for {
		resp, body, err := s.call(s.ctx, key, item)
		switch {
		case err == nil && resp.StatusCode == http.StatusOK:
			return resp, body
		case err == nil && resp.StatusCode != http.StatusConflict && resp.StatusCode < 500:
			s.Fatalf("the call is answered %d %s", resp.StatusCode, body)
		}
		pause(s.T, s.ctx)
	}
}

// like is what every run has to show, whichever way it came.
type like struct {
	agent, key, item string
	attempts         []string // their states
}

// shows asserts that a run is there as any other is, and that its effect took place once.
func (s *street) shows(want like) *api.Run {
	s.Helper()
	// 1. It is listed, once.
	var found []api.Run
	for r, err := range s.client.Runs(s.ctx, api.RunFilter{Agent: want.agent}) {
		if err != nil {
			s.Fatal(err)
		}
		if r.Key == want.key {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		s.Fatalf("%d runs have the key %q, want 1", len(found), want.key)
	}
	// 2. It is whole.
	r, err := s.client.WaitRun(s.ctx, found[0].ID)
	if err != nil {
		s.Fatal(err)
	}
	var out bought
	if err := json.Unmarshal(r.Output, &out); err != nil || r.State != "succeeded" || out.Item != want.item || out.Ticket != want.item+"-1" {
		s.Errorf("run %s is %s (%s %s) with output %s; want what was bought", r.ID, r.State, r.Reason, r.Message, r.Output)
	}
	// 3. Its attempts. The first was begun by whoever executes it.
	attempts, err := s.client.Attempts(s.ctx, r.ID)
	if err != nil {
		s.Fatal(err)
	}
	var states []string
	for _, a := range attempts.Items {
		states = append(states, a.State)
		if a.Worker == "" && a.N == 1 {
			s.Errorf("attempt %s names no worker", a.ID)
		}
	}
	if !slices.Equal(states, want.attempts) {
		s.Errorf("the attempts of run %s are %q, want %q: %+v", r.ID, states, want.attempts, attempts.Items)
	}
	// 4. Its events, from the first to the last.
	var events []string
	for e, err := range s.client.FollowEvents(s.ctx, r.ID, 0) {
		if err != nil {
			s.Fatal(err)
		}
		events = append(events, e.Type)
	}
	if len(events) < 3 || events[0] != "submitted" || events[len(events)-1] != "succeeded" {
		s.Errorf("the events of run %s are %q", r.ID, events)
	}
	// 5. Its receipt, and the world's count.
	receipts, err := s.client.Receipts(s.ctx, r.ID)
	if err != nil || len(receipts.Items) != 1 || receipts.Items[0].State != "done" || receipts.Items[0].Effect != "buy" {
		s.Errorf("the receipts of run %s are %+v, %v", r.ID, receipts, err)
	}
	if n := s.shop.sold(want.item); n != 1 {
		s.Errorf("%q was bought %d times, want once", want.item, n)
	}
	return r
}

func base(name string) string { return name[strings.LastIndex(name, "/")+1:] }

func TestRunsThatComePastTheControlPlaneAreRunsLikeAnyOther(t *testing.T) {
	s := newStreet(t)
	for _, test := range []struct {
		name string
		do   func(*street)
	}{
		{"gcloud executes a job", (*street).gcloudExecutes},
		{"the platform tries a task of gcloud's execution again", (*street).taskIsTriedAgain},
		{"a schedule starts the job without our overrides", (*street).scheduleStarts},
		{"a service is called", (*street).serviceIsCalled},
		{"an instance is called", (*street).instanceIsCalled},
		{"a caller is cut off and calls again", (*street).callerIsCutOff},
		{"the container of a call is killed and the call is repeated", (*street).calledIsKilled},
		{"whoever may not is refused", (*street).identityCounts},
	} {
		t.Run(test.name, func(t *testing.T) { test.do(s.of(t)) })
	}
}

func (s *street) gcloudExecutes() {
	name := s.execution(func() {
		out, err := s.gcloud("run", "jobs", "execute", jobName, "--wait", `--args={"item":"apple"}`)
		if err != nil {
			s.Fatalf("gcloud: %v\n%s", err, out)
		}
	})
	r := s.shows(like{agent: jobName, key: base(name) + "/0", item: "apple", attempts: []string{"succeeded"}})
	if got := r.Attempts[0].Worker; got != base(name)+"-0" {
		s.Errorf("the worker is %q, want the execution's task", got)
	}
	lines := 0
	for _, err := range s.client.FollowLogs(s.ctx, r.ID) {
		if err != nil {
			s.Fatal(err)
		}
		lines++
	}
	if lines == 0 {
		s.Error("the run has no log")
	}
}

func (s *street) taskIsTriedAgain() {
	came, open := s.shop.hold(s.T, "pear")
	name := s.execution(func() {
		if out, err := s.gcloud("run", "jobs", "execute", jobName, `--update-env-vars=^|^ERRAND_INPUT={"item":"pear"}`); err != nil {
			s.Fatalf("gcloud: %v\n%s", err, out)
		}
	})
	s.arrive(came)
	for _, c := range s.Twin().Containers(name) {
		if err := s.Twin().Kill(c.ID, syscall.SIGKILL); err != nil {
			s.Fatal(err)
		}
	}
	s.arrive(came) // the task's next attempt has passed the effect
	open()
	if e := s.finished(name); e.GetSucceededCount() != 1 || e.GetRetriedCount() != 1 {
		s.Errorf("the execution has %d tasks that succeeded after %d retries, want 1 and 1", e.GetSucceededCount(), e.GetRetriedCount())
	}
	s.shows(like{agent: jobName, key: base(name) + "/0", item: "pear", attempts: []string{"failed", "succeeded"}})
}

func (s *street) scheduleStarts() {
	client := clientOf(s, run.NewJobsClient)
	name := s.execution(func() {
		if _, err := client.RunJob(s.ctx, &runpb.RunJobRequest{Name: s.Twin().Parent() + "/jobs/" + jobName}); err != nil {
			s.Fatal(err)
		}
	})
	s.finished(name)
	s.shows(like{agent: jobName, key: base(name) + "/0", item: "", attempts: []string{"succeeded"}})
}

func (s *street) serviceIsCalled() {
	resp, body, err := s.call(s.ctx, "order-1", "plum")
	if err != nil || resp.StatusCode != http.StatusOK {
		s.Fatalf("the call: %v, %+v %s", err, resp, body)
	}
	r := s.shows(like{agent: svcName, key: "order-1", item: "plum", attempts: []string{"succeeded"}})
	if got := resp.Header.Get("Errand-Run"); got != r.ID {
		s.Errorf("the answer names run %q, want %s", got, r.ID)
	}
	again, text, err := s.call(s.ctx, "order-1", "plum")
	if err != nil || again.StatusCode != http.StatusOK || !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(body)) || again.Header.Get("Errand-Run") != r.ID {
		s.Fatalf("the same call again: %v, %+v %s; want %s", err, again, text, body)
	}
	other, text, err := s.call(s.ctx, "order-1", "cherry")
	if err != nil || other.StatusCode != http.StatusConflict || s.shop.sold("cherry") != 0 {
		s.Errorf("another order under that key: %v, %+v %s; want a conflict", err, other, text)
	}
	s.shows(like{agent: svcName, key: "order-1", item: "plum", attempts: []string{"succeeded"}})
}

func (s *street) instanceIsCalled() {
	instance, err := clientOf(s, run.NewInstancesClient).GetInstance(s.ctx, &runpb.GetInstanceRequest{Name: s.Twin().Parent() + "/instances/" + insName})
	if err != nil || len(instance.GetUrls()) == 0 {
		s.Fatalf("%v, %v; want an instance with a URL", instance, err)
	}
	s.uri = instance.GetUrls()[0]
	resp, body, err := s.call(s.ctx, "order-9", "quince")
	if err != nil || resp.StatusCode != http.StatusOK {
		s.Fatalf("the call: %v, %+v %s", err, resp, body)
	}
	s.shows(like{agent: insName, key: "order-9", item: "quince", attempts: []string{"succeeded"}})
}

func (s *street) callerIsCutOff() {
	came, open := s.shop.hold(s.T, "grape")
	ctx, cut := context.WithCancel(s.ctx)
	lost := make(chan error, 1)
	go func() {
		_, _, err := s.call(ctx, "order-2", "grape")
		lost <- err
	}()
	s.arrive(came)
	cut()
	if err := <-lost; !errors.Is(err, context.Canceled) {
		s.Fatalf("the call that is cut off gives %v", err)
	}
	done := make(chan []byte, 1)
	go func() {
		_, body := s.insist("order-2", "grape")
		done <- body
	}()
	open()
	select {
	case body := <-done:
		if !strings.Contains(string(body), "grape-1") {
			s.Errorf("the repeated call is answered %s", body)
		}
	case <-s.ctx.Done():
		s.Fatal("the repeated call has no answer")
	}
	s.shows(like{agent: svcName, key: "order-2", item: "grape", attempts: []string{"succeeded"}})
}

func (s *street) calledIsKilled() {
	came, open := s.shop.hold(s.T, "fig")
	type answer struct {
		code int
		err  error
	}
	first := make(chan answer, 1)
	go func() {
		resp, _, err := s.call(s.ctx, "order-3", "fig")
		a := answer{err: err}
		if err == nil {
			a.code = resp.StatusCode
		}
		first <- a
	}()
	s.arrive(came)
	for _, c := range s.Twin().Containers(s.Twin().Parent() + "/services/" + svcName) {
		if err := s.Twin().Kill(c.ID, syscall.SIGKILL); err != nil {
			s.Fatal(err)
		}
	}
	if a := <-first; a.err == nil && a.code < 500 {
		s.Errorf("the call whose container is killed is answered %d", a.code)
	}
	open()
	began := time.Now()
	_, body := s.insist("order-3", "fig")
	s.Logf("answered %s after the container was killed", time.Since(began).Round(time.Millisecond))
	if !strings.Contains(string(body), "fig-1") {
		s.Errorf("the repeated call is answered %s", body)
	}
	s.shows(like{agent: svcName, key: "order-3", item: "fig", attempts: []string{"failed", "succeeded"}})
}

func (s *street) identityCounts() {
	// 1. The platform lets in only whom the service's policy names.
	resp, err := http.Post(s.uri, "application/json", strings.NewReader(`{"item":"lemon"}`))
	if err != nil {
		s.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		s.Errorf("a call without an identity is answered %d", resp.StatusCode)
	}
	// 2. A workload begins the runs of its own agent alone, and asks for nothing else.
	token, err := s.Twin().Token(svcName+"@errand-box.iam.gserviceaccount.com", s.URL())
	if err != nil {
		s.Fatal(err)
	}
	workload, err := api.NewClient(api.Options{URL: s.URL(), Token: token})
	if err != nil {
		s.Fatal(err)
	}
	defer workload.Close()
	if _, err := workload.BeginRun(s.ctx, api.Begin{Agent: jobName, Key: "foreign", Worker: "w"}); !api.HasCode(err, api.CodeForbidden) {
		s.Errorf("a run of another agent begins with %v", err)
	}
	if _, err := workload.PreviewCancel(s.ctx, "any", api.Cancel{}); !api.HasCode(err, api.CodeForbidden) {
		s.Errorf("a worker may cancel: %v", err)
	}
	if n := s.shop.sold("lemon"); n != 0 {
		s.Errorf("%d were bought", n)
	}
}
