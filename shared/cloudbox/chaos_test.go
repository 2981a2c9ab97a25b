package cloudbox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/twin"
)

const (
	envChaosRounds = "ERRAND_CHAOS_ROUNDS"
	envChaosSeed   = "ERRAND_CHAOS_SEED"
	// pauseFor is longer than the lease, so that another process leads before the paused one goes on.
	pauseFor = 11 * time.Second
	// drainFor is how long the load may take to end when nothing more is broken.
	drainFor = 4 * time.Minute
)

// couriers are agents that call the outside ledger, one for each way of delivery that a program of a run has.
const couriers = `
apiVersion: errand.dev/v1
kind: Agent
metadata: {name: courier-%[1]s}
spec:
  shape: %[1]s
  run:
    command: [%[2]s, -test.run=^$]
    protocol: %[3]s
    env: {%[4]s: %[5]q}
  lifetime: {expected: 500ms, max: 20s}
  retry: {maxAttempts: 100, backoff: {initial: 100ms, factor: 2, max: 1s, jitter: 0.5}}
  timeouts: {queue: 1h, attempt: 20s, run: 1h}
  effects: {onUnknown: reconcile, settle: 500ms}
  permissions: {effects: [enter]}
`

var courierShapes = map[fleet.Shape]string{
	fleet.Pool: "worker\n    slots: 4", fleet.Job: "stdio", fleet.Service: "http\n    slots: 4",
}

// storm is a box under load and under faults.
type storm struct {
	t      *testing.T
	b      *cloudbox.Box
	client *api.Client
	rolls  *rand.Rand
	book   *book
	docs   map[string]json.RawMessage
	keys   map[string]string // of the submitted runs, to the line that each has the ledger enter
	again  sync.WaitGroup    // what mends a fault later
}

// TestChaos breaks everything that can break while all shapes work, and looks for what was lost or done twice.
func TestChaos(t *testing.T) {
	rounds := number(t, envChaosRounds, 1)
	seed := number(t, envChaosSeed, int(time.Now().UnixMilli()))
	t.Logf("%d rounds, %s=%d", rounds, envChaosSeed, seed)
	outside := newBook(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, func(o *cloudbox.Options) {
		for _, x := range o.Fleet {
			if a, ok := x.(*fleet.Agent); ok {
				patientAgent(a)
			}
		}
		for shape, protocol := range courierShapes {
			o.Fleet = append(o.Fleet, declared(t, fmt.Sprintf(couriers, shape, self, protocol, envBook, outside.url()))...)
		}
		o.Cloud = func(c *twin.Options) {
			c.Grace, c.CancelGrace, c.RestartDelay = time.Second, time.Second, 200*time.Millisecond
		}
	})
	client, err := b.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := &storm{
		t: t, b: b, client: client, rolls: rand.New(rand.NewPCG(uint64(seed), 1)), book: outside, docs: documents(t), keys: make(map[string]string),
	}
	delete(s.docs, "not-an-invoice.xml") // its runs fail, as they should
	stop := duplicate(t, os.Getenv("PUBSUB_EMULATOR_HOST"), strings.Split(b.Twin().Parent(), "/")[1], "control", "pool-invoice-check", "pool-courier-pool")
	began := time.Now()
	for round := range rounds {
		s.load(round)
		s.round(round)
	}
	s.again.Wait()
	b.Twin().ChooseVictim(nil)
	s.allEnd()
	t.Logf("%d messages were delivered twice; %d runs ended in %s", stop(), len(s.keys), time.Since(began).Round(time.Millisecond))
	s.verify()
}

// patientAgent makes of an agent one whose runs all succeed in the end, however often they are struck.
func patientAgent(a *fleet.Agent) {
	a.Retry.MaxAttempts = 100
	a.Retry.Backoff.Max = fleet.Duration(time.Second)
	a.Timeouts.Queue, a.Timeouts.Run = fleet.Duration(time.Hour), fleet.Duration(time.Hour)
	a.Timeouts.Attempt = fleet.Duration(20 * time.Second)
}

// load submits runs for all shapes.
func (s *storm) load(round int) {
	s.t.Helper()
	var batch []api.Submit
	add := func(agent, key, line string, input any) {
		body, err := json.Marshal(input)
		if err != nil {
			s.t.Fatal(err)
		}
		key = fmt.Sprintf("%d/%s", round, key)
		s.keys[key] = line
		batch = append(batch, api.Submit{Agent: agent, Key: key, Input: body})
	}
	names := slices.Sorted(maps.Keys(s.docs))
	for _, name := range names {
		add("invoice-check", "check/"+name, "", s.docs[name])
		add("concierge", "ask/"+name, "", map[string]any{"question": "Who pays whom how much?", "document": s.docs[name]})
		add("ledger", "post/"+name, "", map[string]any{"post": map[string]any{"id": fmt.Sprintf("%d-%s", round, name), "currency": "EUR", "amount": "1.00"}})
	}
	for n := range 2 {
		add("invoice-reconcile", fmt.Sprintf("reconcile/%d", n), "", map[string]any{"documents": slices.Collect(maps.Values(s.docs)), "shards": 2})
	}
	for shape := range courierShapes {
		for n := range 12 {
			line := fmt.Sprintf("%s-%d-%d", shape, round, n)
			add("courier-"+string(shape), "enter/"+line, line, errand{Line: line, Ms: 50 + 100*n})
		}
	}
	// The same keys again until somebody has taken them: the leader may just have died.
	outside.Eventually(s.t, time.Minute, "the load is taken", func() bool {
		items, err := s.client.SubmitBatch(s.t.Context(), batch)
		if err != nil {
			return false
		}
		for _, item := range items {
			if item.Error != nil && item.Error.Status < 500 {
				s.t.Fatalf("submit: %v", item.Error)
			}
			if item.Error != nil {
				return false
			}
		}
		return true
	})
}

// round strikes with everything once, in an order and at moments that the seed says.
func (s *storm) round(round int) {
	s.t.Helper()
	cloud := s.b.Twin()
	// 1. What the platform's API and metadata servers answer.
	effects := []twin.Effect{twin.Lose(codes.Unavailable), twin.Refuse(codes.ResourceExhausted), twin.Reset(true)}
	if os.Getenv(envChaosRounds) != "" { // an execution that is not there is looked for during a minute
		effects = append(effects, twin.Hang(true), twin.Refuse(codes.Unavailable), twin.Reset(false))
	}
	s.rolls.Shuffle(len(effects), func(i, k int) { effects[i], effects[k] = effects[k], effects[i] })
	for _, e := range effects {
		cloud.Fault(twin.Rule{On: "Jobs.RunJob", Skip: s.rolls.IntN(2), Do: e})
	}
	cloud.Fault(twin.Rule{On: "Executions.*", Times: 3, Do: twin.Refuse(codes.Unavailable)})
	cloud.Fault(twin.Rule{On: "Tasks.*", Times: 2, Do: twin.Hang(false)})
	cloud.Fault(twin.Rule{On: "metadata.identity", Times: 3, Do: twin.Refuse(codes.Unavailable)})
	cloud.Fault(twin.Rule{On: "start", Of: "courier-job*", Times: 2, Do: twin.Kill(time.Duration(s.rolls.IntN(400))*time.Millisecond, syscall.SIGKILL)})
	// 2. A control process is stopped for longer than the lease; in every other round it is the one that leads.
	paused, _ := awaitLeader(s.t, s.b)
	if round%2 == 1 {
		for _, c := range s.b.Control() {
			if c != paused {
				paused = c
				break
			}
		}
	}
	goOn, err := paused.Pause()
	if err != nil {
		s.t.Fatal(err)
	}
	pausedAt := time.Now()
	// 3. Containers, an instance, a pool that shrinks.
	strikes := []func(){
		func() { s.kill(syscall.SIGKILL) }, func() { s.kill(syscall.SIGKILL) }, func() { s.kill(syscall.SIGTERM) },
		func() { s.cut("courier-pool") }, func() { s.cut("") },
		func() { s.scale("courier-pool") }, func() { s.scale("invoice-check") },
		func() {
			if err := cloud.Restart(cloud.Parent() + "/instances/ledger"); err != nil {
				s.t.Logf("restart the ledger: %v", err)
			}
		},
	}
	s.rolls.Shuffle(len(strikes), func(i, k int) { strikes[i], strikes[k] = strikes[k], strikes[i] })
	for _, strike := range strikes {
		strike()
		time.Sleep(time.Duration(100+s.rolls.IntN(500)) * time.Millisecond) // the instant of the fault is what is being tried
	}
	time.Sleep(time.Until(pausedAt.Add(pauseFor)))
	goOn()
	// 4. Whoever leads now dies.
	dead, _ := awaitLeader(s.t, s.b)
	dead.Kill()
	if err := dead.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("round %d: %s was paused, %s killed", round+1, paused.Name(), dead.Name())
}

// pick is a container of a workload, by chance; that of any agent when it is "".
func (s *storm) pick(name string) (twin.Container, bool) {
	all := slices.DeleteFunc(s.b.Twin().Containers(""), func(c twin.Container) bool {
		agent := strings.Contains(c.Resource, "courier") || strings.Contains(c.Resource, "invoice") || strings.Contains(c.Resource, "concierge") || strings.Contains(c.Resource, "ledger")
		return !agent || !strings.Contains(c.Resource, name)
	})
	if len(all) == 0 {
		return twin.Container{}, false
	}
	return all[s.rolls.IntN(len(all))], true
}

func (s *storm) kill(by syscall.Signal) {
	if c, ok := s.pick(""); ok {
		_ = s.b.Twin().Kill(c.ID, by) // it may have ended meanwhile
	}
}

// cut parts a container from the control plane, and heals it after a while that may be longer than a worker's lease.
func (s *storm) cut(name string) {
	c, ok := s.pick(name)
	if !ok || s.b.Twin().Cut(c.ID, true) != nil {
		return
	}
	heal := time.Duration(1+s.rolls.IntN(14)) * time.Second
	s.again.Go(func() {
		time.Sleep(heal)
		_ = s.b.Twin().Cut(c.ID, false) // it may have ended meanwhile
	})
}

// scale lets a pool shrink to one instance and grow again. The victim is the oldest, which is the busiest.
func (s *storm) scale(name string) {
	s.b.Twin().ChooseVictim(func([]twin.Container) int { return 0 })
	conn, err := grpc.NewClient(s.b.Twin().Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	pool, err := runpb.NewWorkerPoolsClient(conn).GetWorkerPool(s.t.Context(), &runpb.GetWorkerPoolRequest{Name: s.b.Twin().Parent() + "/workerPools/" + name})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, n := range []int32{1, 2} {
		pool.Scaling, pool.Etag = &runpb.WorkerPoolScaling{ManualInstanceCount: &n}, ""
		if err := s.b.Twin().Apply(s.t.Context(), pool); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *storm) allEnd() {
	s.t.Helper()
	var last string
	deadline := time.Now().Add(drainFor)
	for {
		open, err := s.client.ListRuns(s.t.Context(), api.RunFilter{State: []string{"queued", "backoff", "waiting", "held", "unschedulable", "assigned", "running", "canceling"}}, api.Page{Limit: 10})
		if err == nil && len(open.Items) == 0 {
			return
		}
		if err == nil {
			last = ""
			for _, r := range open.Items {
				last += fmt.Sprintf("\n%s %s %s in attempt %d: %s %s", r.ID, r.Key, r.State, len(r.Attempts), r.Reason, r.Message)
			}
		}
		if time.Now().After(deadline) {
			s.t.Errorf("after %s there are still runs: %v%s", drainFor, err, last)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// verify looks at what is written, and at what the outside ledger was told.
func (s *storm) verify() {
	s.t.Helper()
	left := maps.Clone(s.keys)
	attempts, ended := 0, make(map[string]int)
	all := histories(s.t, s.b)
	slowest := slices.MaxFunc(all, func(a, b stored) int { return cmp.Compare(a.took(), b.took()) })
	s.t.Logf("the slowest run, %s, took %s:\n%s", slowest.record.Key, slowest.took(), story(slowest.events))
	for _, x := range all {
		r := x.record
		if _, ok := left[r.Key]; !ok {
			s.t.Errorf("run %s has the key %q, which was not submitted or is there twice", r.ID, r.Key)
		}
		delete(left, r.Key)
		attempts += r.Attempt
		for _, e := range x.events {
			if e.Type == run.EvBackedOff || e.Type == run.EvReleased || e.Type == run.EvStartFailed {
				ended[string(e.Type)+" "+string(e.Class)+" "+e.Code]++
			}
		}
		if r.State != run.Succeeded {
			s.t.Errorf("run %s (%s) is %s: %s %s\n%s", r.ID, r.Key, r.State, r.Reason, r.Message, story(x.events))
			continue
		}
		if line := s.keys[r.Key]; line != "" {
			if n := s.book.count(line); n != 1 {
				s.t.Errorf("run %s: %s is in the outside ledger %d times\n%s", r.ID, line, n, story(x.events))
			}
		}
	}
	for key := range left {
		s.t.Errorf("no run has the key %s", key)
	}
	for _, key := range slices.Sorted(maps.Keys(ended)) {
		s.t.Logf("%4d attempts: %s", ended[key], key)
	}
	s.t.Logf("%d runs, %d attempts", len(s.keys), attempts)
	s.balance()
}

// balance asks the ledger of the fleet, whose book is in a session: every posting is in it once.
func (s *storm) balance() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	want := 0
	for key := range s.keys {
		if strings.Contains(key, "/post/") {
			want++
		}
	}
	r, _, err := s.client.Submit(ctx, api.Submit{Agent: "ledger", Key: "balance", Input: json.RawMessage(`{"balance":"EUR"}`)})
	if err == nil {
		r, err = s.client.WaitRun(ctx, r.ID)
	}
	if err != nil {
		s.t.Errorf("ask for the balance: %v", err)
		return
	}
	var out struct {
		Entries int    `json:"entries"`
		Balance string `json:"balance"`
	}
	if err := json.Unmarshal(r.Output, &out); err != nil {
		s.t.Errorf("the balance is %s: %v", r.Output, err)
		return
	}
	if amount, _ := strconv.ParseFloat(out.Balance, 64); out.Entries != want || amount != float64(want) {
		s.t.Errorf("the book has %d entries and a balance of %s, want %d", out.Entries, out.Balance, want)
	}
}

// took is how long a run was under way.
func (s stored) took() time.Duration { return s.record.UpdatedAt.Sub(s.record.CreatedAt) }

// story is a history to read.
func story(events []run.Event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "  %d %s %s attempt %d %s %s %s %s %s\n", e.Seq, time.UnixMilli(int64(e.At)).UTC().Format("15:04:05.000"), e.Type, e.Attempt, e.Worker, e.Reason, e.Class, e.Code, e.Message)
	}
	return text.String()
}
