package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/local"
	"github.com/errand-run/errand/shared/outside"
)

// pond is a target's topic, its workers, and the control plane.
type pond struct {
	t      *testing.T
	c      *control
	broker *local.Broker
	bus    bus.Bus
	log    *outside.Log

	mu      sync.Mutex
	effects map[string]int // by input
}

func newPond(t *testing.T) *pond {
	p := &pond{t: t, c: newControl(), log: new(outside.Log), effects: map[string]int{}}
	p.broker = local.NewBroker(local.Options{MaxDeliveries: 3, Log: quiet})
	p.bus = p.broker.Open()
	t.Cleanup(func() { _ = p.bus.Close() })
	return p
}

func (p *pond) publish(messages ...bus.Message) {
	p.t.Helper()
	if err := errors.Join(p.bus.Publish(context.Background(), bus.Pool("lake"), messages)...); err != nil {
		p.t.Fatal(err)
	}
}

// work is a handler that has one effect and takes some time.
func (p *pond) work(d time.Duration) func(context.Context, *agent.Attempt) agent.Result {
	return func(ctx context.Context, a *agent.Attempt) agent.Result {
		p.mu.Lock()
		p.effects[string(a.Input)]++
		p.mu.Unlock()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return agent.Result{Output: a.Input}
		case <-ctx.Done():
			return agent.Failed(context.Cause(ctx))
		}
	}
}

// worker runs a worker until it is stopped.
func (p *pond) worker(name string, slots int, handle func(context.Context, *agent.Attempt) agent.Result) (pool *Pool, stop func()) {
	p.t.Helper()
	log := p.log.Logger()
	client := p.c.client(p.t)
	pool = &Pool{Bus: p.bus, Target: "lake", Agents: []string{"a"}, Client: client, Worker: name, Log: log}
	h, err := agent.NewHost(client, agent.HostOptions{
		Worker: name, Target: "lake", Agents: []string{"a"}, Slots: slots, Handle: handle, Log: log, Source: pool,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	return pool, func() {
		p.t.Helper()
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("worker %s: %v", name, err)
		}
	}
}

func (p *pond) checkEffects(want map[string]int) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if diff := cmp.Diff(want, p.effects); diff != "" {
		p.t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func (p *pond) checkCounts(pool *Pool, want map[string]int64) {
	p.t.Helper()
	got := pool.Counts()
	for name, n := range got {
		if n == 0 {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestAMessageIsClaimedAndItsRunExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		pool, stop := p.worker("w1", 2, p.work(12*time.Second))
		want := map[string]int{}
		var runs []*record
		for i := range 8 {
			r, m := p.c.assign(fmt.Sprint(i))
			runs, want[r.input] = append(runs, r), 1
			p.publish(m)
		}
		synctest.Wait()
		if n := look(p.c, func() int { return p.c.claims }); n != 2 {
			t.Errorf("%d claims at first; want as many as there are slots", n)
		}
		for _, r := range runs {
			<-r.over
			if r.state != "succeeded" || r.output != r.input || r.n != 1 {
				t.Errorf("run %s: %s after %d attempts, output %s", r.id, r.state, r.n, r.output)
			}
		}
		if beats := look(p.c, func() int { return p.c.beats["w1"] }); beats < 8 {
			t.Errorf("%d heartbeats in 48s; want one each 5s", beats)
		}
		stop()
		p.checkEffects(want)
		p.checkCounts(pool, map[string]int64{"claimed": 8})
	})
}

func TestAMessageThatComesAgainWhileItsRunIsExecutedBeginsNothing(t *testing.T) { // case F08
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		one, stopOne := p.worker("w1", 2, p.work(45*time.Second))
		r, m := p.c.assign("1")
		p.publish(m)
		synctest.Wait()
		// 1. To the worker that executes it.
		p.publish(m)
		synctest.Wait()
		p.checkCounts(one, map[string]int64{"duplicate": 1})
		// 2. To another one.
		_, rest := p.c.assign("2")
		p.publish(rest) // takes the first worker's other slot
		synctest.Wait()
		two, stopTwo := p.worker("w2", 2, p.work(45*time.Second))
		p.publish(m)
		synctest.Wait()
		p.checkCounts(two, map[string]int64{"refused": 1})
		// 3. When it is over.
		<-r.over
		p.publish(m, m)
		synctest.Wait()
		if claims := look(p.c, func() int { return p.c.claims }); claims != 6 {
			t.Errorf("%d claims; want one for each message: each was acknowledged", claims)
		}
		stopOne()
		stopTwo()
		p.checkEffects(map[string]int{"1": 1, "2": 1})
		if r.state != "succeeded" || r.n != 1 {
			t.Errorf("run is %s after %d attempts", r.state, r.n)
		}
	})
}

func TestAWorkerThatWasCutOffChangesNothing(t *testing.T) { // case F07
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		causes := make(chan error, 1)
		_, stopOne := p.worker("w1", 1, func(ctx context.Context, a *agent.Attempt) agent.Result {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return agent.Result{Output: []byte(`"late"`)}
		})
		r, m := p.c.assign("1")
		p.publish(m)
		synctest.Wait()
		// The control plane counts the worker as lost and hands the run to another one; the first learns of it.
		next := p.c.again(r)
		_, stopTwo := p.worker("w2", 1, p.work(time.Minute))
		p.publish(next, m)
		if cause := <-causes; !errors.Is(cause, agent.ErrFenced) {
			t.Errorf("the first attempt ended with %v; want %v", cause, agent.ErrFenced)
		}
		<-r.over
		if r.output != "1" || r.worker != "w2" || r.n != 2 {
			t.Errorf("output %s of worker %s after %d attempts; want that of the second", r.output, r.worker, r.n)
		}
		stopOne()
		stopTwo()
		p.checkEffects(map[string]int{"1": 1})
	})
}

func TestWhatAMessageIsWorth(t *testing.T) {
	with := func(m bus.Message, name, value string) bus.Message {
		out := bus.Message{Attributes: map[string]string{}}
		for k, v := range m.Attributes {
			out.Attributes[k] = v
		}
		if out.Attributes[name] = value; value == "" {
			delete(out.Attributes, name)
		}
		return out
	}
	tests := map[string]struct {
		edit     func(m bus.Message) bus.Message
		want     map[string]int64
		claims   int
		told     []string
		dead     bool // goes to the dead letters
		executed bool
	}{
		"one that is still good": {
			edit: func(m bus.Message) bus.Message {
				return with(m, "expires", time.Now().Add(time.Minute).Format(time.RFC3339))
			},
			want: map[string]int64{"claimed": 1}, claims: 1, executed: true,
		},
		"one whose time is over is not asked about": {
			edit: func(m bus.Message) bus.Message {
				return with(m, "expires", time.Now().Add(-time.Second).Format(time.RFC3339))
			},
			want: map[string]int64{"expired": 1},
		},
		"one for another agent is left to other workers, and then told of": {
			edit: func(m bus.Message) bus.Message { return with(m, "agent", "b") }, want: map[string]int64{"foreign": 3},
			told: []string{"worker w1 of target lake serves agents a, and not b"},
		},
		"one of an older control plane names no agent": {
			edit: func(m bus.Message) bus.Message { return with(m, "agent", "") }, want: map[string]int64{"claimed": 1}, claims: 1, executed: true,
		},
		"one without an attempt becomes a dead letter": {
			edit: func(m bus.Message) bus.Message { return with(m, "attempt", "") }, want: map[string]int64{"poison": 3}, dead: true,
		},
		"one without a ticket becomes a dead letter": {
			edit: func(m bus.Message) bus.Message { return with(m, "ticket", "") }, want: map[string]int64{"poison": 3}, dead: true,
		},
		"one whose time cannot be read becomes a dead letter": {
			edit: func(m bus.Message) bus.Message { return with(m, "expires", "soon") }, want: map[string]int64{"poison": 3}, dead: true,
		},
		"one with the ticket of another attempt": {
			edit: func(m bus.Message) bus.Message { return with(m, "ticket", "hush-1") }, want: map[string]int64{"refused": 1}, claims: 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPond(t)
				pool, stop := p.worker("w1", 1, p.work(time.Second))
				r, m := p.c.assign("1")
				p.publish(tt.edit(m))
				time.Sleep(time.Hour)
				stop()
				p.checkCounts(pool, tt.want)
				if executed := r.state == "succeeded"; executed != tt.executed || p.c.claims != tt.claims {
					t.Errorf("run is %s after %d claims; want executed %v, %d claims", r.state, p.c.claims, tt.executed, tt.claims)
				}
				if diff := cmp.Diff(tt.told, p.c.undelivered); diff != "" {
					t.Errorf("told of as undelivered (-want +got):\n%s", diff)
				}
				dead := false
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = p.bus.Receive(ctx, bus.DeadLetters, bus.Receiver{Slots: 1, Handle: func(context.Context, *bus.Delivery) error {
					dead = true
					return nil
				}})
				if dead != tt.dead {
					t.Errorf("dead letter %v; want %v", dead, tt.dead)
				}
				if log := p.log.String(); strings.Contains(log, "ticket-") || strings.Contains(log, "hush") {
					t.Errorf("the ticket is in the log:\n%s", log)
				}
			})
		})
	}
}

func TestAMessageIsGivenBackWhileTheControlPlaneIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		r, m := p.c.assign("1")
		pool, stop := p.worker("w1", 1, p.work(time.Second))
		p.c.setDown(true)
		p.publish(m)
		synctest.Wait()
		p.checkCounts(pool, map[string]int64{"deferred": 1})
		p.c.setDown(false)
		<-r.over
		stop()
		p.checkEffects(map[string]int{"1": 1})
	})
}

func TestAWorkerWithoutItsAgentLeavesMessagesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		r, m := p.c.assign("1")
		pool := &Pool{
			Bus: p.bus, Target: "lake", Client: p.c.client(t), Worker: "w1", Log: quiet,
			Ready: func(context.Context) error { return errors.New("nothing listens") },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- pool.Feed(ctx, 1, nil) }()
		p.publish(m)
		synctest.Wait()
		p.checkCounts(pool, map[string]int64{"deferred": 1})
		if claims := look(p.c, func() int { return p.c.claims }); claims != 0 {
			t.Errorf("%d claims; want none", claims)
		}
		_, stop := p.worker("w2", 1, p.work(time.Second))
		<-r.over
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		stop()
		p.checkEffects(map[string]int{"1": 1})
	})
}

func TestAWorkerDrainsWithinTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		_, stop := p.worker("w1", 2, func(ctx context.Context, a *agent.Attempt) agent.Result {
			if string(a.Input) == "1" {
				return p.work(5*time.Second)(ctx, a) // within its grace
			}
			return p.work(time.Hour)(ctx, a)
		})
		quick, m := p.c.assign("1")
		slow, n := p.c.assign("2")
		p.publish(m, n)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took < agent.DefaultGrace || took > 10*time.Second {
			t.Errorf("drained in %s; want the grace, and less than the platform's 10s", took)
		}
		if quick.state != "succeeded" || slow.state != "queued" || slow.released != 1 {
			t.Errorf("the quick run is %s, the slow one %s, released %d times; want the first done, the second handed back once",
				quick.state, slow.state, slow.released)
		}
		// What comes now is somebody else's.
		third, m := p.c.assign("3")
		p.publish(m)
		_, stopNext := p.worker("w2", 1, p.work(time.Second))
		<-third.over
		if third.worker != "w2" {
			t.Errorf("executed by %s", third.worker)
		}
		stopNext()
	})
}

func TestAClaimThatIsUnderWayWhenTheWorkerDrainsIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPond(t)
		p.c.lag = 4 * time.Second
		_, stop := p.worker("w1", 1, p.work(time.Hour))
		r, m := p.c.assign("1")
		p.publish(m)
		synctest.Wait()
		stop()
		if r.state != "queued" || r.released != 1 {
			t.Errorf("run is %s of worker %q, released %d times; want it back in the queue", r.state, r.worker, r.released)
		}
		p.checkEffects(map[string]int{})
	})
}
