package twin_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/errand-run/errand/shared/twin"
)

const worker = `trap 'echo term; exit 0' TERM; echo worker $CLOUD_RUN_WORKER_POOL $COLOR; sleep 60 & wait`

func (w *world) pool(id string, count int32) *runpb.WorkerPool {
	w.t.Helper()
	op := must[*run.CreateWorkerPoolOperation](w.t)(w.pools.CreateWorkerPool(w.ctx, &runpb.CreateWorkerPoolRequest{
		Parent: w.Parent(), WorkerPoolId: id, WorkerPool: &runpb.WorkerPool{
			Template: &runpb.WorkerPoolRevisionTemplate{Containers: []*runpb.Container{shell(worker, "COLOR=red")}},
			Scaling:  &runpb.WorkerPoolScaling{ManualInstanceCount: proto.Int32(count)},
		},
	}))
	return must[*runpb.WorkerPool](w.t)(op.Wait(w.ctx))
}

// scale sets the count alone, as a control plane does.
func (w *world) scale(name string, count int32) *runpb.WorkerPool {
	w.t.Helper()
	op := must[*run.UpdateWorkerPoolOperation](w.t)(w.pools.UpdateWorkerPool(w.ctx, &runpb.UpdateWorkerPoolRequest{
		WorkerPool: &runpb.WorkerPool{Name: name, Scaling: &runpb.WorkerPoolScaling{ManualInstanceCount: proto.Int32(count)}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"scaling.manual_instance_count"}},
	}))
	return must[*runpb.WorkerPool](w.t)(op.Wait(w.ctx))
}

func TestAWorkerPoolHasTheCountThatWasSet(t *testing.T) {
	w := start(t, twin.Options{RestartDelay: time.Millisecond})
	p := w.pool("workers", 2)
	w.count(p.GetName(), 2)
	w.await("worker workers red")
	// The test names whom scale-in takes.
	w.ChooseVictim(func([]twin.Container) int { return 1 })
	before := w.Containers(p.GetName())
	scaled := w.scale(p.GetName(), 1)
	w.count(p.GetName(), 1)
	w.await("term")
	if after := w.Containers(p.GetName()); after[0].ID != before[0].ID {
		t.Error("scale-in took another than the one chosen")
	}
	if scaled.GetScaling().GetManualInstanceCount() != 1 || scaled.GetTemplate() == nil || scaled.GetLatestReadyRevision() != p.GetLatestReadyRevision() {
		t.Errorf("the mask changed more than the count: %v", scaled)
	}
	// What is lost is replaced.
	lost := w.Containers(p.GetName())[0].ID
	if err := w.Kill(lost, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("another worker runs", func() bool {
		cs := w.Containers(p.GetName())
		return len(cs) == 1 && cs[0].ID != lost
	})
	w.scale(p.GetName(), 0)
	w.count(p.GetName(), 0)
	w.scale(p.GetName(), 3)
	w.count(p.GetName(), 3)
	del := must[*run.DeleteWorkerPoolOperation](t)(w.pools.DeleteWorkerPool(w.ctx, &runpb.DeleteWorkerPoolRequest{Name: p.GetName()}))
	must[*runpb.WorkerPool](t)(del.Wait(w.ctx))
	w.count(p.GetName(), 0)
	_, err := w.pools.GetWorkerPool(w.ctx, &runpb.GetWorkerPoolRequest{Name: p.GetName()})
	wantCode(t, "get a deleted pool", err, codes.NotFound)
}

func TestANewRevisionOfAWorkerPoolReplacesTheOld(t *testing.T) {
	w := start(t, twin.Options{})
	p := w.pool("workers", 1)
	before := w.Containers(p.GetName())[0].ID
	p.Template.Containers = []*runpb.Container{shell(worker, "COLOR=blue")}
	op := must[*run.UpdateWorkerPoolOperation](t)(w.pools.UpdateWorkerPool(w.ctx, &runpb.UpdateWorkerPoolRequest{WorkerPool: p}))
	must[*runpb.WorkerPool](t)(op.Wait(w.ctx))
	w.await("worker workers blue")
	w.eventually("the old one is gone", func() bool {
		cs := w.Containers(p.GetName())
		return len(cs) == 1 && cs[0].ID != before
	})
	for _, bad := range []*runpb.WorkerPool{
		{}, {Template: p.GetTemplate(), Scaling: &runpb.WorkerPoolScaling{ManualInstanceCount: proto.Int32(-1)}},
	} {
		_, err := w.pools.CreateWorkerPool(w.ctx, &runpb.CreateWorkerPoolRequest{Parent: w.Parent(), WorkerPoolId: "bad", WorkerPool: bad})
		wantCode(t, "create a bad pool", err, codes.InvalidArgument)
	}
	_, err := w.pools.UpdateWorkerPool(w.ctx, &runpb.UpdateWorkerPoolRequest{WorkerPool: p, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"nonsense"}}})
	wantCode(t, "update with a stale etag or a bad mask", err, codes.Aborted)
	_, err = w.pools.UpdateWorkerPool(w.ctx, &runpb.UpdateWorkerPoolRequest{
		WorkerPool: &runpb.WorkerPool{Name: p.GetName()}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"nonsense"}},
	})
	wantCode(t, "update a field that does not exist", err, codes.InvalidArgument)
}

func TestAnInstanceIsOneAtATime(t *testing.T) {
	w := start(t, twin.Options{RestartDelay: time.Millisecond})
	op := must[*run.CreateInstanceOperation](t)(w.instances.CreateInstance(w.ctx, &runpb.CreateInstanceRequest{
		Parent: w.Parent(), InstanceId: "single", Instance: &runpb.Instance{ServiceAccount: account, Containers: []*runpb.Container{webContainer("COLOR=red")}},
	}))
	i := must[*runpb.Instance](t)(op.Wait(w.ctx))
	url := i.GetUrls()[0]
	must[*iampb.Policy](t)(w.instances.SetIamPolicy(w.ctx, &iampb.SetIamPolicyRequest{Resource: i.GetName(), Policy: &iampb.Policy{
		Bindings: []*iampb.Binding{{Role: "roles/run.invoker", Members: []string{"serviceAccount:" + caller}}},
	}}))
	w.want(url, "/env?name=COLOR", 200, "red")
	w.want(url, "/env?name=COLOR", 403, "", "Authorization", "")
	one := func() string {
		t.Helper()
		cs := w.Containers(i.GetName())
		if len(cs) != 1 {
			t.Fatalf("%d containers run, want 1", len(cs))
		}
		return cs[0].ID
	}
	// 1. The weekly restart.
	before := one()
	if err := w.Restart(i.GetName()); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is another", func() bool {
		cs := w.Containers(i.GetName())
		if len(cs) > 1 {
			t.Fatalf("%d run at a time", len(cs))
		}
		return len(cs) == 1 && cs[0].ID != before && cs[0].ColdStart > 0
	})
	w.await("term")
	// 2. A crash.
	before = one()
	_, _, _ = w.try(url, "/exit")
	w.eventually("it is replaced after a crash", func() bool {
		cs := w.Containers(i.GetName())
		return len(cs) == 1 && cs[0].ID != before && cs[0].ColdStart > 0
	})
	// 3. Stop and start.
	stop := must[*run.StopInstanceOperation](t)(w.instances.StopInstance(w.ctx, &runpb.StopInstanceRequest{Name: i.GetName()}))
	stopped := must[*runpb.Instance](t)(stop.Wait(w.ctx))
	if got := stopped.GetTerminalCondition().GetInstanceReason(); got != runpb.Condition_INSTANCE_STOPPED {
		t.Errorf("the condition of a stopped instance has reason %s", got)
	}
	w.want(url, "/env?name=COLOR", 503, "")
	w.count(i.GetName(), 0)
	again := must[*run.StartInstanceOperation](t)(w.instances.StartInstance(w.ctx, &runpb.StartInstanceRequest{Name: i.GetName()}))
	must[*runpb.Instance](t)(again.Wait(w.ctx))
	w.want(url, "/env?name=COLOR", 200, "red")
	// 4. A change.
	update := must[*run.UpdateInstanceOperation](t)(w.instances.UpdateInstance(w.ctx, &runpb.UpdateInstanceRequest{
		Instance:   &runpb.Instance{Name: i.GetName(), Containers: []*runpb.Container{webContainer("COLOR=blue")}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"containers"}},
	}))
	must[*runpb.Instance](t)(update.Wait(w.ctx))
	w.want(url, "/env?name=COLOR", 200, "blue")
	one()
	del := must[*run.DeleteInstanceOperation](t)(w.instances.DeleteInstance(w.ctx, &runpb.DeleteInstanceRequest{Name: i.GetName()}))
	must[*runpb.Instance](t)(del.Wait(w.ctx))
	w.count(i.GetName(), 0)
}

// lonelyTwin is a twin in a process of its own, with a job that ignores SIGTERM. It prints the job's process id.
func lonelyTwin() {
	up := make(chan string, 1)
	t, err := twin.Start(context.Background(), twin.Options{
		Grace: 50 * time.Millisecond, Images: map[string][]string{"sh": {"sh", "-c"}}, Lines: func(l twin.Line) { up <- l.Text },
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	w := &world{Twin: t, t: new(testing.T), ctx: context.Background()}
	w.jobs = client(w, run.NewJobsClient)
	w.job("deaf", jobShape{}, shell(`trap '' TERM; echo $$; exec sleep 60`))
	w.run("deaf", nil)
	fmt.Println(<-up)
	select {}
}

func TestNoContainerOutlivesAKilledTwin(t *testing.T) {
	host := exec.Command(os.Args[0], "container:twin")
	out := must[interface{ Read([]byte) (int, error) }](t)(host.StdoutPipe())
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(out)
	scan.Scan()
	pid, err := strconv.Atoi(strings.TrimSpace(scan.Text()))
	if err != nil {
		_ = host.Process.Kill()
		t.Fatalf("the twin printed %q, want a process id", scan.Text())
	}
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	w := &world{t: t}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w.ctx = ctx
	w.eventually("the container has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// An orphan that nobody buries is dead all the same.
		return err != nil && syscall.Kill(pid, 0) == syscall.ESRCH || strings.Contains(string(stat), ") Z ")
	})
}
