package twin_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/coreos/go-oidc/v3/oidc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/errand-run/errand/shared/twin"
)

// web is a container that serves on PORT.
func web() {
	var once sync.Once
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/env", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, os.Getenv(r.URL.Query().Get("name")))
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get(r.URL.Query().Get("name")))
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("holds")
		select {
		case <-release:
			fmt.Fprint(w, "released")
		case <-r.Context().Done():
			fmt.Println("left alone")
		}
	})
	mux.HandleFunc("/release", func(http.ResponseWriter, *http.Request) { once.Do(func() { close(release) }) })
	mux.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(1) })
	mux.HandleFunc("/metadata/", func(w http.ResponseWriter, r *http.Request) {
		ask, _ := http.NewRequest("GET", "http://"+os.Getenv("GCE_METADATA_HOST")+"/computeMetadata/v1/"+strings.TrimPrefix(r.URL.Path, "/metadata/")+"?"+r.URL.RawQuery, nil)
		ask.Header.Set("Metadata-Flavor", r.Header.Get("Flavor"))
		a, err := http.DefaultClient.Do(ask)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer a.Body.Close()
		w.WriteHeader(a.StatusCode)
		_, _ = io.Copy(w, a.Body)
	})
	mux.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		a, err := http.Get(os.Getenv("CONTROL_URL"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer a.Body.Close()
		_, _ = io.Copy(w, a.Body)
	})
	go func() {
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		<-term
		fmt.Println("term", os.Getenv("K_REVISION"))
		os.Exit(0)
	}()
	fmt.Println("starts")
	if err := http.ListenAndServe(":"+os.Getenv("PORT"), mux); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

const (
	caller  = "control@twin-project.iam.gserviceaccount.com"
	account = "agent@twin-project.iam.gserviceaccount.com"
)

func webContainer(env ...string) *runpb.Container {
	c := shell("", env...)
	c.Image, c.Args = "registry.test/self:v1", []string{"container:web"}
	return c
}

// service declares a service that caller may call.
func (w *world) service(id string, change func(*runpb.Service)) *runpb.Service {
	w.t.Helper()
	s := &runpb.Service{Template: &runpb.RevisionTemplate{ServiceAccount: account, Containers: []*runpb.Container{webContainer()}}}
	if change != nil {
		change(s)
	}
	op := must[*run.CreateServiceOperation](w.t)(w.services.CreateService(w.ctx, &runpb.CreateServiceRequest{Parent: w.Parent(), ServiceId: id, Service: s}))
	s = must[*runpb.Service](w.t)(op.Wait(w.ctx))
	must[*iampb.Policy](w.t)(w.services.SetIamPolicy(w.ctx, &iampb.SetIamPolicyRequest{Resource: s.GetName(), Policy: &iampb.Policy{
		Bindings: []*iampb.Binding{{Role: "roles/run.invoker", Members: []string{"serviceAccount:" + caller}}},
	}}))
	return s
}

// call calls a URL as caller and returns the status code and the body.
func (w *world) call(base, path string, header ...string) (int, string) {
	w.t.Helper()
	code, body, err := w.try(base, path, header...)
	if err != nil {
		w.t.Fatal(err)
	}
	return code, body
}

func (w *world) try(base, path string, header ...string) (int, string, error) {
	r, err := http.NewRequestWithContext(w.ctx, "GET", base+path, nil)
	if err != nil {
		return 0, "", err
	}
	token, err := w.Token(caller, base)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return a.StatusCode, strings.TrimSpace(string(body)), err
}

func (w *world) want(base, path string, code int, body string, header ...string) {
	w.t.Helper()
	gotCode, gotBody := w.call(base, path, header...)
	if gotCode != code || body != "" && gotBody != body {
		w.t.Errorf("GET %s: got %d %q, want %d %q", path, gotCode, gotBody, code, body)
	}
}

func (w *world) count(name string, n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d containers of %s run", n, name), func() bool { return len(w.Containers(name)) == n })
}

func TestAServiceScalesFromZeroAndBack(t *testing.T) {
	w := start(t, twin.Options{Idle: 200 * time.Millisecond})
	s := w.service("web", nil)
	w.count(s.GetName(), 0)
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web")
	w.want(s.GetUri(), "/env?name=K_CONFIGURATION", 200, "web")
	w.want(s.GetUri(), "/env?name=K_REVISION", 200, last(s.GetLatestReadyRevision()))
	if cs := w.Containers(s.GetName()); len(cs) != 1 || cs[0].ColdStart <= 0 {
		t.Errorf("containers after the first requests: %+v, want one with the time of its cold start", cs)
	}
	w.count(s.GetName(), 0)
	w.await("term web-00001-")
}

func TestWhoMayCallAService(t *testing.T) {
	w := start(t, twin.Options{})
	s := w.service("web", func(s *runpb.Service) { s.CustomAudiences = []string{"https://agents.example.com"} })
	token := func(account, audience string) string {
		return "Bearer " + must[string](t)(w.Token(account, audience))
	}
	forged := token(caller, s.GetUri())
	forged = forged[:len(forged)-8] + "AAAAAAAA"
	for name, test := range map[string]struct {
		authorization string
		want          int
	}{
		"the service's URL as audience":   {token(caller, s.GetUri()), 200},
		"a custom audience":               {token(caller, "https://agents.example.com"), 200},
		"no token":                        {"", 403},
		"another audience":                {token(caller, "https://elsewhere.example.com"), 401},
		"a forged signature":              {forged, 401},
		"an account without the role":     {token("other@example.com", s.GetUri()), 403},
		"something that is no JWT at all": {"Bearer abc", 401},
	} {
		if code, _ := w.call(s.GetUri(), "/env?name=K_SERVICE", "Authorization", test.authorization); code != test.want {
			t.Errorf("%s: got %d, want %d", name, code, test.want)
		}
	}
	// The container sees who calls, and cannot pass for it.
	_, seen := w.call(s.GetUri(), "/header?name=Authorization")
	if !strings.HasSuffix(seen, ".SIGNATURE_REMOVED_BY_GOOGLE") {
		t.Errorf("the container got the header %q, want one without a signature", seen)
	}
	w.want(s.GetUri(), "/header?name=Authorization", 200, "mine", "Authorization", "mine", "X-Serverless-Authorization", token(caller, s.GetUri()))
	// A clock that is wrong makes tokens that are not valid yet, or not any more.
	for _, skew := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		w.SkewTokens(skew)
		w.want(s.GetUri(), "/env?name=K_SERVICE", 401, "")
	}
	w.SkewTokens(0)
	// Everybody, by policy.
	must[*iampb.Policy](t)(w.services.SetIamPolicy(w.ctx, &iampb.SetIamPolicyRequest{Resource: s.GetName(), Policy: &iampb.Policy{
		Bindings: []*iampb.Binding{{Role: "roles/run.invoker", Members: []string{"allUsers"}}},
	}}))
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web", "Authorization", "")
}

func TestARequestThatTakesTooLongGets504AndItsContainerLivesOn(t *testing.T) {
	w := start(t, twin.Options{})
	s := w.service("web", func(s *runpb.Service) { s.Template.Timeout = durationpb.New(300 * time.Millisecond) })
	before := w.Containers(s.GetName())
	w.want(s.GetUri(), "/hold", 504, "upstream request timeout")
	w.await("left alone")
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web")
	if after := w.Containers(s.GetName()); len(after) != 1 || len(before) != 1 || after[0].ID != before[0].ID {
		t.Errorf("containers before %+v and after %+v, want the same one", before, after)
	}
}

func TestConcurrencyStartsInstancesUpToTheMaximum(t *testing.T) {
	w := start(t, twin.Options{Pending: 100 * time.Millisecond})
	s := w.service("web", func(s *runpb.Service) {
		s.Template.MaxInstanceRequestConcurrency = 2
		s.Template.Scaling = &runpb.RevisionScaling{MaxInstanceCount: 2}
	})
	var requests sync.WaitGroup
	codes := make(chan int, 4)
	for range 4 {
		requests.Go(func() {
			code, _, err := w.try(s.GetUri(), "/hold")
			if err != nil {
				code = -1
			}
			codes <- code
		})
	}
	w.eventually("four requests are held", func() bool {
		n := 0
		for _, text := range w.lines.texts() {
			if text == "holds" {
				n++
			}
		}
		return n == 4
	})
	w.count(s.GetName(), 2)
	if code, _ := w.call(s.GetUri(), "/env?name=K_SERVICE"); code != 429 {
		t.Errorf("one request too many got %d, want 429", code)
	}
	// A crash takes its requests with it.
	for _, c := range w.Containers(s.GetName()) {
		if err := w.Kill(c.ID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	requests.Wait()
	for range 4 {
		if code := <-codes; code != 503 {
			t.Errorf("a request whose container crashed got %d, want 503", code)
		}
	}
	w.count(s.GetName(), 0)
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web")
}

func TestMinimumInstancesRunAndAreReplaced(t *testing.T) {
	w := start(t, twin.Options{Idle: 50 * time.Millisecond, RestartDelay: time.Millisecond})
	s := w.service("web", func(s *runpb.Service) { s.Scaling = &runpb.ServiceScaling{MinInstanceCount: 2} })
	w.count(s.GetName(), 2)
	gone := w.Containers(s.GetName())[0].ID
	if err := w.Kill(gone, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.eventually("another takes its place", func() bool {
		cs := w.Containers(s.GetName())
		return len(cs) == 2 && cs[0].ID != gone && cs[1].ID != gone
	})
}

func TestANewRevisionTakesOverWhenItIsReady(t *testing.T) {
	w := start(t, twin.Options{Idle: time.Hour})
	s := w.service("web", nil)
	update := func(c *runpb.Container) (*runpb.Service, error) {
		op := must[*run.UpdateServiceOperation](t)(w.services.UpdateService(w.ctx, &runpb.UpdateServiceRequest{
			Service:    &runpb.Service{Name: s.GetName(), Template: &runpb.RevisionTemplate{ServiceAccount: account, Containers: []*runpb.Container{c}}},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"template"}},
		}))
		return op.Wait(w.ctx)
	}
	second := must[*runpb.Service](t)(update(webContainer("COLOR=blue")))
	w.want(s.GetUri(), "/env?name=COLOR", 200, "blue")
	if second.GetUri() != s.GetUri() {
		t.Errorf("the URL changed from %s to %s", s.GetUri(), second.GetUri())
	}
	w.await("term " + last(s.GetLatestReadyRevision()))
	// One that does not listen never gets a request.
	_, err := update(shell("exit 1"))
	wantCode(t, "deploy a container that ends", err, codes.FailedPrecondition)
	w.want(s.GetUri(), "/env?name=COLOR", 200, "blue")
	now := must[*runpb.Service](t)(w.services.GetService(w.ctx, &runpb.GetServiceRequest{Name: s.GetName()}))
	if now.GetLatestReadyRevision() != second.GetLatestReadyRevision() || now.GetTerminalCondition().GetState() != runpb.Condition_CONDITION_FAILED {
		t.Errorf("the service tells of revision %s and condition %v", now.GetLatestReadyRevision(), now.GetTerminalCondition())
	}
	n := 0
	for _, err := range w.revisions.ListRevisions(w.ctx, &runpb.ListRevisionsRequest{Parent: s.GetName()}).All() {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d revisions, want 3", n)
	}
	// Back to the first.
	op := must[*run.UpdateServiceOperation](t)(w.services.UpdateService(w.ctx, &runpb.UpdateServiceRequest{
		Service: &runpb.Service{Name: s.GetName(), Traffic: []*runpb.TrafficTarget{{
			Type: runpb.TrafficTargetAllocationType_TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION, Revision: last(s.GetLatestReadyRevision()), Percent: 100,
		}}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"traffic"}},
	}))
	must[*runpb.Service](t)(op.Wait(w.ctx))
	w.want(s.GetUri(), "/env?name=K_REVISION", 200, last(s.GetLatestReadyRevision()))
	// And away.
	del := must[*run.DeleteServiceOperation](t)(w.services.DeleteService(w.ctx, &runpb.DeleteServiceRequest{Name: s.GetName()}))
	must[*runpb.Service](t)(del.Wait(w.ctx))
	w.count(s.GetName(), 0)
	if _, _, err := w.try(s.GetUri(), "/env"); err == nil {
		t.Error("the URL of a deleted service answers")
	}
}

func TestASidecarBesideAService(t *testing.T) {
	w := start(t, twin.Options{})
	s := w.service("web", func(s *runpb.Service) {
		side := shell(`echo side has port "[$PORT]"; exec sleep 60`)
		side.Name = "side"
		main := webContainer()
		main.Name, main.Ports, main.DependsOn = "main", []*runpb.ContainerPort{{ContainerPort: 8080}}, []string{"side"}
		s.Template.Containers = []*runpb.Container{main, side}
	})
	w.await("side has port []")
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web")
	if c := w.Containers(s.GetName()); len(c) != 1 || len(c[0].PIDs) != 2 {
		t.Errorf("the instance is %+v, want one of two processes", c)
	}
}

func TestSlowAndFailingStarts(t *testing.T) {
	w := start(t, twin.Options{Idle: 50 * time.Millisecond})
	s := w.service("web", nil)
	w.count(s.GetName(), 0)
	slow := w.Fault(twin.Rule{On: "start", Of: "web", Do: twin.Slow(300 * time.Millisecond)})
	w.want(s.GetUri(), "/env?name=K_SERVICE", 200, "web")
	if slow.Hits() != 1 {
		t.Errorf("the slow start was hit %d times", slow.Hits())
	}
	if c := w.Containers(s.GetName()); len(c) == 1 && c[0].ColdStart < 300*time.Millisecond {
		t.Errorf("the cold start took %s, want 300ms and more", c[0].ColdStart)
	}
	for _, bad := range []*runpb.Service{
		{}, {Template: &runpb.RevisionTemplate{}},
		{Template: &runpb.RevisionTemplate{Containers: []*runpb.Container{webContainer("PORT=1")}}},
		{Template: &runpb.RevisionTemplate{Containers: []*runpb.Container{webContainer()}, Timeout: durationpb.New(2 * time.Hour)}},
		{Template: &runpb.RevisionTemplate{Containers: []*runpb.Container{webContainer()}, MaxInstanceRequestConcurrency: 2000}},
		{Template: &runpb.RevisionTemplate{Containers: []*runpb.Container{webContainer()}}, Traffic: []*runpb.TrafficTarget{{Percent: 50}}},
	} {
		_, err := w.services.CreateService(w.ctx, &runpb.CreateServiceRequest{Parent: w.Parent(), ServiceId: "bad", Service: bad})
		wantCode(t, fmt.Sprintf("create %v", bad), err, codes.InvalidArgument)
	}
}

func TestTheMetadataServerKnowsWhoAsks(t *testing.T) {
	w := start(t, twin.Options{Number: 42})
	s := w.service("web", nil)
	get := func(path string) string {
		code, body := w.call(s.GetUri(), "/metadata/"+path, "Flavor", "Google")
		if code != 200 {
			t.Errorf("%s: got %d %s", path, code, body)
		}
		return body
	}
	for path, want := range map[string]string{
		"project/project-id": "twin-project", "project/numeric-project-id": "42", "instance/region": "projects/42/regions/europe-west1",
		"instance/service-accounts/default/email": account, "instance/id": w.Containers(s.GetName())[0].ID,
	} {
		if got := get(path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if got := get("instance/service-accounts/default/token"); !strings.Contains(got, `"token_type":"Bearer"`) {
		t.Errorf("the access token is answered as %s", got)
	}
	w.want(s.GetUri(), "/metadata/project/project-id", 403, "")
	w.want(s.GetUri(), "/metadata/instance/service-accounts/default/identity", 400, "", "Flavor", "Google")
	// Any OpenID Connect client can check the token.
	raw := get("instance/service-accounts/default/identity?format=full&audience=" + url.QueryEscape("https://control.example.com"))
	provider := must[*oidc.Provider](t)(oidc.NewProvider(w.ctx, w.Issuer()))
	token := must[*oidc.IDToken](t)(provider.Verifier(&oidc.Config{ClientID: "https://control.example.com"}).Verify(w.ctx, raw))
	var c struct {
		Email    string
		Verified bool `json:"email_verified"`
	}
	if err := token.Claims(&c); err != nil || c.Email != account || !c.Verified || token.Subject == "" || token.Expiry.Sub(token.IssuedAt) != time.Hour {
		t.Errorf("the token tells %+v, subject %s, from %s to %s (%v)", c, token.Subject, token.IssuedAt, token.Expiry, err)
	}
	if _, err := provider.Verifier(&oidc.Config{ClientID: "https://another.example.com"}).Verify(w.ctx, raw); err == nil {
		t.Error("a token for one audience passes for another")
	}
	// A process outside has an identity too, on request.
	host := must[string](t)(w.Identity(caller))
	r, _ := http.NewRequestWithContext(w.ctx, "GET", "http://"+host+"/computeMetadata/v1/instance/service-accounts/default/email", nil)
	r.Header.Set("Metadata-Flavor", "Google")
	a := must[*http.Response](t)(http.DefaultClient.Do(r))
	defer a.Body.Close()
	if body := must[[]byte](t)(io.ReadAll(a.Body)); string(body) != caller {
		t.Errorf("outside the account is %q, want %q", body, caller)
	}
}

func TestTheNetworkOfAContainerIsCut(t *testing.T) {
	control := httpServer(t, "control answers")
	w := start(t, twin.Options{Through: []string{"CONTROL_URL"}})
	s := w.service("web", func(s *runpb.Service) { s.Template.Containers[0] = webContainer("CONTROL_URL=" + control) })
	w.want(s.GetUri(), "/fetch", 200, "control answers")
	id := w.Containers(s.GetName())[0].ID
	for _, cut := range []bool{true, false} {
		if err := w.Cut(id, cut); err != nil {
			t.Fatal(err)
		}
		if code, body := w.call(s.GetUri(), "/fetch"); (code == 200) == cut {
			t.Errorf("with the network cut %v: got %d %s", cut, code, body)
		}
	}
}

func httpServer(t *testing.T, body string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
	t.Cleanup(server.Close)
	return server.URL
}

func TestNothingIsLeftWhenTheTwinCloses(t *testing.T) {
	w := start(t, twin.Options{Grace: 100 * time.Millisecond})
	w.service("web", nil)
	w.job("deaf", jobShape{}, shell(`trap '' TERM; echo up; exec sleep 60`))
	w.run("deaf", nil)
	w.await("up")
	var pids []int
	for _, c := range w.Containers("") {
		pids = append(pids, c.PIDs...)
	}
	if len(pids) != 2 {
		t.Errorf("%d processes run, want 2", len(pids))
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(-pid, 0); err != syscall.ESRCH {
			t.Errorf("process group %d is there still: %v", pid, err)
		}
	}
}
