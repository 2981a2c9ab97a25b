package twin_test

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/twin"
)

func TestApplyCreatesChangesAndWaits(t *testing.T) {
	w := start(t, twin.Options{Invokers: []string{"serviceAccount:" + caller}})
	s := &runpb.Service{Name: w.Parent() + "/services/web", Template: &runpb.RevisionTemplate{Containers: []*runpb.Container{webContainer("COLOR=red")}}}
	for _, color := range []string{"red", "blue"} {
		s.Template.Containers = []*runpb.Container{webContainer("COLOR=" + color)}
		if err := w.Apply(w.ctx, s); err != nil {
			t.Fatal(err)
		}
		// Options.Invokers may call what has no policy of its own.
		w.want(s.GetUri(), "/env?name=COLOR", 200, color)
	}
	j := &runpb.Job{Name: w.Parent() + "/jobs/a", Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Containers: []*runpb.Container{shell("true")}}}}
	p := &runpb.WorkerPool{Name: w.Parent() + "/workerPools/a", Template: &runpb.WorkerPoolRevisionTemplate{Containers: []*runpb.Container{shell(worker)}}}
	i := &runpb.Instance{Name: w.Parent() + "/instances/a", Containers: []*runpb.Container{webContainer("COLOR=green")}}
	if err := errors.Join(w.Apply(w.ctx, j), w.Apply(w.ctx, p), w.Apply(w.ctx, i)); err != nil {
		t.Fatal(err)
	}
	w.want(i.GetUrls()[0], "/env?name=COLOR", 200, "green")
	w.count(p.GetName(), 1)
	j.Template.Template.Containers[0].Image = "nowhere"
	err := w.Apply(w.ctx, j)
	wantCode(t, "apply a job without its image", err, codes.NotFound)
	if err := w.Apply(w.ctx, &runpb.Task{}); err == nil {
		t.Error("a task can be applied")
	}
}

func TestOperationsAreListedAndAwaited(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{}, shell("echo up; exec sleep 60"))
	op := must[*run.RunJobOperation](t)(w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a"}))
	w.await("up")
	running := must[*longrunningpb.Operation](t)(w.jobs.WaitOperation(w.ctx, &longrunningpb.WaitOperationRequest{Name: op.Name(), Timeout: durationpb.New(time.Millisecond)}))
	if running.GetDone() {
		t.Error("the operation of a running execution is done")
	}
	var names []string
	for each, err := range w.jobs.ListOperations(w.ctx, &longrunningpb.ListOperationsRequest{Name: w.Parent(), PageSize: 1}).All() {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, each.GetName())
	}
	if len(names) != 2 || names[0] != op.Name() {
		t.Errorf("the operations are %q, want that of the run, then that of the creation", names)
	}
	for _, c := range w.Containers("") {
		if err := w.Kill(c.ID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	done := must[*longrunningpb.Operation](t)(w.jobs.WaitOperation(w.ctx, &longrunningpb.WaitOperationRequest{Name: op.Name()}))
	if !done.GetDone() || done.GetError() == nil {
		t.Errorf("the operation of a failed execution is told as %v", done)
	}
	if err := w.jobs.DeleteOperation(w.ctx, &longrunningpb.DeleteOperationRequest{Name: op.Name()}); err != nil {
		t.Error(err)
	}
	_, err := w.jobs.GetOperation(w.ctx, &longrunningpb.GetOperationRequest{Name: op.Name()})
	wantCode(t, "get a deleted operation", err, codes.NotFound)
}

func TestWhatContainersGet(t *testing.T) {
	w := start(t, twin.Options{Secrets: map[string]string{"key": "newest", "key/3": "third"}, Env: map[string]string{"EMULATOR": "here:1", "BOTH": "of the machine"}})
	secret := func(name, version string) *runpb.EnvVar {
		return &runpb.EnvVar{Name: "S_" + version, Values: &runpb.EnvVar_ValueSource{ValueSource: &runpb.EnvVarSource{
			SecretKeyRef: &runpb.SecretKeySelector{Secret: name, Version: version},
		}}}
	}
	c := shell(`echo $EMULATOR, $BOTH, $S_latest, $S_3, ${SSH_AUTH_SOCK-none}, ${PORT-none}`, "BOTH=declared")
	c.Env = append(c.Env, secret("key", "latest"), secret("projects/twin-project/secrets/key", "3"))
	w.job("a", jobShape{}, c)
	w.finish(w.run("a", nil).GetName())
	if diff := cmp.Diff([]string{"here:1, declared, newest, third, none, none"}, w.lines.texts()); diff != "" {
		t.Errorf("the container saw (-want +got):\n%s", diff)
	}
	// A secret that is missing fails the attempt, and says which.
	c = shell("true")
	c.Env = []*runpb.EnvVar{secret("other", "1")}
	w.job("b", jobShape{}, c)
	e := w.finish(w.run("b", nil).GetName())
	if m := e.GetConditions()[0].GetMessage(); e.GetFailedCount() != 1 || !strings.Contains(m, `"other"`) {
		t.Errorf("the message is %q, want the name of the secret", m)
	}
	// So does a program that is not there.
	w.job("c", jobShape{}, &runpb.Container{Image: "sh", Command: []string{"/nowhere/at-all"}})
	if e := w.finish(w.run("c", nil).GetName()); e.GetFailedCount() != 1 {
		t.Errorf("a program that is not there: %v", countsOf(e))
	}
}

func TestAContainerOverItsMemoryIsKilled(t *testing.T) {
	w := start(t, twin.Options{})
	c := shell(`a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done`)
	c.Resources = &runpb.ResourceRequirements{Limits: map[string]string{"memory": "64Mi"}}
	w.job("a", jobShape{}, c)
	e := w.finish(w.run("a", nil).GetName())
	if m := e.GetConditions()[0].GetMessage(); e.GetFailedCount() != 1 || !strings.Contains(m, "memory limit") {
		t.Errorf("%v with message %q, want a failure for the memory limit", countsOf(e), m)
	}
}

func TestFaultsOfTheMetadataServer(t *testing.T) {
	w := start(t, twin.Options{})
	host := must[string](t)(w.Identity(caller))
	source := identity.Metadata(identity.Options{Host: host})
	w.Fault(twin.Rule{On: "metadata.identity", Do: twin.Refuse(codes.Unavailable)})
	token := must[string](t)(source.Token(w.ctx, "https://control.example.com")) // it tries again
	if strings.Count(token, ".") != 2 {
		t.Errorf("the token has %d dots", strings.Count(token, "."))
	}
	w.Fault(twin.Rule{On: "metadata.*", Do: twin.Refuse(codes.NotFound)})
	if _, err := source.Token(w.ctx, "https://another.example.com"); err == nil {
		t.Error("a refused token was given")
	}
}

func TestFaultsThatCannotStrikeAreRefused(t *testing.T) {
	w := start(t, twin.Options{})
	for name, rule := range map[string]twin.Rule{
		"no pattern":             {Do: twin.Refuse(codes.Internal)},
		"a malformed pattern":    {On: "[", Do: twin.Refuse(codes.Internal)},
		"a call that is killed":  {On: "Jobs.*", Do: twin.Kill(0, syscall.SIGKILL)},
		"a start that is lost":   {On: "start", Do: twin.Lose(codes.Internal)},
		"a malformed id pattern": {On: "start", Of: "[", Do: twin.Slow(1)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it was taken", name)
				}
			}()
			w.Fault(rule)
		}()
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]twin.Options{
		"project":       {Project: "X"},
		"region":        {Region: "Europe"},
		"quota":         {Quota: twin.Quota{Limit: -1, Per: time.Second}},
		"MaxContainers": {MaxContainers: 100_000},
		"image":         {Images: map[string][]string{"a": nil}},
	} {
		tw, err := twin.Start(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("options %+v: got %v, want an error about %s", o, err, want)
		}
		if err == nil {
			_ = tw.Close()
		}
	}
}

func TestNothingAnswersOnceTheTwinIsClosed(t *testing.T) {
	w := start(t, twin.Options{})
	_, err := w.Token(caller, "")
	if err == nil {
		t.Error("a token for nobody was made")
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	_, err = w.jobs.GetJob(w.ctx, &runpb.GetJobRequest{Name: w.Parent() + "/jobs/a"})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a closed twin answers %v", err)
	}
	if _, err := http.Get("http://" + w.HTTP() + "/oauth2/v3/certs"); err == nil {
		t.Error("the issuer of a closed twin answers")
	}
	if _, err := w.Identity(caller); err == nil {
		t.Error("a closed twin gives identities")
	}
}
