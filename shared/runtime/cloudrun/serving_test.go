package cloudrun

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/outside"
	errand "github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// container is the test binary as a container: a service that answers with what it was sent, or a worker that waits.
func container() {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "container:") {
		return
	}
	if os.Args[1] == "container:worker" {
		select {}
	}
	http.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(body), "hang"):
			<-r.Context().Done()
		case strings.Contains(string(body), "stream"):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: progress\ndata: 0.5\n\nevent: result\ndata: {\"output\":%q}\n\n", r.Header.Get(httpio.HeaderToken))
		default:
			fmt.Fprintf(w, `{"output":%q}`, r.Header.Get(httpio.HeaderToken))
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":"+os.Getenv("PORT"), nil))
	os.Exit(1)
}

func agentContainer(kind string) []*runpb.Container {
	return []*runpb.Container{{Image: "agent", Args: []string{"container:" + kind}}}
}

func (c *cloud) service(change func(*runpb.Service)) string {
	c.Helper()
	s := &runpb.Service{Template: &runpb.RevisionTemplate{Containers: agentContainer("service")}}
	if change != nil {
		change(s)
	}
	op, err := declares(c, run.NewServicesClient).CreateService(c.Context(), &runpb.CreateServiceRequest{Parent: c.Parent(), ServiceId: "s", Service: s})
	if err == nil {
		s, err = op.Wait(c.Context())
	}
	if err != nil {
		c.Fatal(err)
	}
	return s.GetName()
}

func (c *cloud) send(id, resource, input string) {
	c.Helper()
	a := assignment(id, 1, resource)
	a.Input = []byte(`"` + input + `"`)
	start(c.T, c.rt, a)
}

func TestServiceOfThePlatform(t *testing.T) {
	t.Run("it is found, called as the control plane, and given the attempt's token", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		name := c.service(nil)
		for _, input := range []string{"plain", "stream"} {
			c.send(input, name, input)
			if got := c.end(input); got.Type != runtime.Completed || string(got.Output) != `"token-of-`+input+`"` {
				t.Errorf("report %+v, want the token back", got)
			}
		}
	})
	t.Run("its time limit is told from the handler's failure", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		name := c.service(func(s *runpb.Service) { s.Template.Timeout = durationpb.New(300 * time.Millisecond) })
		c.send("r1", name, "hang")
		if got := c.end("r1"); got.Class != errand.ClassTimeout || got.Code != codeLimit || got.Ended {
			t.Errorf("report %+v, want the platform's time limit", got)
		}
	})
	t.Run("the platform's limit is the attempt's own, and the run learns that its time is over", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		name := c.service(func(s *runpb.Service) { s.Template.Timeout = durationpb.New(300 * time.Millisecond) })
		a := assignment("r1", 1, name)
		a.Input, a.Deadline = []byte(`"hang"`), errand.At(time.Now().Add(300*time.Millisecond))
		start(t, c.rt, a)
		if got := c.end("r1"); got.Class != errand.ClassTimeout || got.Code != string(errand.AttemptTimeout) {
			t.Errorf("report %+v, want its time to be over", got)
		}
	})
	t.Run("who may not call it is told what to do", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		name := c.service(nil)
		c.rt.opts.Tokens = nil
		c.send("r1", name, "plain")
		if got := c.end("r1"); got.Type != runtime.Failed || !strings.Contains(got.Message, "roles/run.invoker") {
			t.Errorf("report %+v, want it to name the role", got)
		}
	})
}

func TestInstanceOfThePlatform(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	client := declares(c, run.NewInstancesClient)
	op, err := client.CreateInstance(t.Context(), &runpb.CreateInstanceRequest{
		Parent: c.Parent(), InstanceId: "i", Instance: &runpb.Instance{Containers: agentContainer("service")},
	})
	if err == nil {
		_, err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	name := c.Parent() + "/instances/i"
	// completes sends runs until one completes: what an instance that starts does not take is given back.
	completes := func(prefix string) {
		t.Helper()
		n := 0
		outside.Eventually(t, outside.Patience, "a run completes", func() bool {
			n++
			id := fmt.Sprintf("%s%d", prefix, n)
			c.send(id, name, "plain")
			got := c.end(id)
			if got.Type == runtime.Failed && (got.Class != errand.ClassInfrastructure || got.RetryIn == 0) {
				t.Fatalf("report %+v, want it completed, or given back for later", got)
			}
			return got.Type == runtime.Completed
		})
	}
	// 1. It runs.
	completes("up")
	// 2. Its weekly restart.
	if err := c.Restart(name); err != nil {
		t.Fatal(err)
	}
	completes("restarted")
	// 3. Its agent is gone: it is stopped.
	c.rt.Forget("checker")
	outside.Eventually(t, outside.Patience, "the instance is gone", func() bool { return len(c.Containers(name)) == 0 })
	// 4. Another comes: it is started.
	completes("again")
	if n := len(c.Containers(name)); n != 1 {
		t.Errorf("%d containers", n)
	}
}

func TestPoolOfThePlatform(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	op, err := declares(c, run.NewWorkerPoolsClient).CreateWorkerPool(t.Context(), &runpb.CreateWorkerPoolRequest{
		Parent: c.Parent(), WorkerPoolId: "w", WorkerPool: &runpb.WorkerPool{Template: &runpb.WorkerPoolRevisionTemplate{Containers: agentContainer("worker")}},
	})
	if err == nil {
		_, err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	target := &fleet.Target{Meta: fleet.Meta{Name: "w"}, Runtime: fleet.RuntimeCloudRun, Resource: c.Parent() + "/workerPools/w"}
	for _, n := range []int{3, 1, 0} {
		if err := c.rt.Scale(t.Context(), target, n); err != nil {
			t.Fatal(err)
		}
		outside.Eventually(t, outside.Patience, "the pool has as many containers as were asked for", func() bool { return len(c.Containers(target.Resource)) == n })
	}
}
