package local

import (
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/stdio"
)

// programs executes each attempt as a process of its own that speaks stdio.
type programs struct {
	rt *Runtime
	// serial: one at a time, in the order of their start. An instance's turns build on each other.
	serial bool
	busy   *attempt
	queue  []*attempt
	ending bool
}

// program is what it keeps of an attempt.
type program struct {
	proc *stdio.Attempt // nil until it has started
	// stop is an order that came before.
	stop  bool
	grace time.Duration
}

func (p *programs) start(x *attempt) (func() error, error) {
	if p.serial && p.busy != nil {
		p.queue = append(p.queue, x)
		return nil, nil
	}
	return p.take(x), nil
}

func (p *programs) take(x *attempt) func() error {
	t := new(program)
	x.task = t
	if p.serial {
		p.busy = x
	}
	return func() error { return p.begin(x, t) }
}

func (p *programs) begin(x *attempt, t *program) error {
	rt := p.rt
	entered := make(chan struct{})
	defer close(entered)
	proc, err := stdio.Start(x.a, stdio.Options{
		Host: rt.host, URL: rt.opts.URL(), Grace: rt.opts.Grace, Now: rt.opts.Now,
		Logs: func(lines []runtime.LogLine) { rt.logged(x, lines) },
		OnEnd: func(r runtime.Report) {
			<-entered
			p.ended(x, r)
		},
	})
	if err != nil {
		return err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	t.proc = proc
	if t.stop {
		proc.Stop(x.reason, t.grace)
	}
	rt.began(x)
	return nil
}

func (p *programs) ended(x *attempt, r runtime.Report) {
	rt := p.rt
	rt.mu.Lock()
	if rt.closed && r.Type == runtime.Failed && r.Code == string(handedBack) {
		r.Type, r.Class, r.Code, r.Message = runtime.Released, "", "", closing
	}
	rt.mu.Unlock()
	rt.finish(x, r)
}

// handedBack is the reason with which programs are told to stop when the runtime closes.
const handedBack = run.InfrastructureFailure

func (p *programs) stop(x *attempt, grace time.Duration) {
	t, _ := x.task.(*program)
	switch {
	case t == nil:
		p.queue = slices.DeleteFunc(p.queue, func(other *attempt) bool { return other == x })
		p.rt.finishNotBegun(x)
	case t.proc == nil:
		t.stop, t.grace = true, grace
	default:
		t.proc.Stop(x.reason, grace)
	}
}

func (p *programs) left(x *attempt) {
	p.queue = slices.DeleteFunc(p.queue, func(other *attempt) bool { return other == x })
	if p.busy != x {
		return
	}
	p.busy = nil
	if len(p.queue) == 0 || p.ending {
		return
	}
	next := p.queue[0]
	p.queue = p.queue[1:]
	begin := p.take(next)
	p.rt.wg.Go(func() {
		if err := begin(); err != nil {
			p.rt.finish(next, notStarted(err.Error()))
		}
	})
}

func (p *programs) warm() bool { return false }

func (p *programs) retire() {}

func (p *programs) close(grace time.Duration) {
	p.ending = true
	for _, x := range p.queue {
		p.rt.release(x)
	}
	p.queue = nil
	for _, x := range p.rt.attempts {
		if t, ok := x.task.(*program); ok && x.unit.exec == p && !x.over {
			if x.reason == "" {
				x.reason = handedBack
			}
			if t.proc == nil {
				t.stop, t.grace = true, grace
			} else {
				t.proc.Stop(x.reason, grace)
			}
		}
	}
}
