package local

import (
	"context"
	"errors"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// endpoint executes each attempt as a request to an address that is served by others. A handler there cannot be killed:
// what is reported of a request that was given up is never certain.
type endpoint struct {
	rt  *Runtime
	url string
}

var errGivenUp = errors.New("given up")

func (p *endpoint) start(x *attempt) (func() error, error) {
	document, err := x.a.Document(p.rt.opts.URL()).Encode()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(p.rt.life)
	x.task = cancel
	p.rt.began(x)
	p.rt.wg.Go(func() {
		defer cancel(nil)
		report := httpio.Do(ctx, p.rt.client, httpio.Call{URL: p.url, Attempt: &x.a, Document: document, Now: p.rt.opts.Now, Each: p.rt.relay(x)})
		if ctx.Err() != nil {
			report = p.givenUp(x)
		}
		p.rt.finish(x, report)
	})
	return nil, nil
}

func (p *endpoint) givenUp(x *attempt) runtime.Report {
	p.rt.mu.Lock()
	defer p.rt.mu.Unlock()
	const unsure = "; the handler may still be at work"
	if x.reason != "" {
		return runtime.Stopped(x.reason, "no answer within the grace after it was told to stop: "+string(x.reason)+unsure)
	}
	return runtime.Report{Type: runtime.Failed, Class: run.ClassLost, Code: httpio.CodeBroken, Message: closing + unsure}
}

func (p *endpoint) stop(x *attempt, grace time.Duration) {
	cancel, ok := x.task.(context.CancelCauseFunc)
	if !ok {
		return
	}
	x.killAfter(grace, func() { cancel(errGivenUp) })
}

func (p *endpoint) left(*attempt) {}

func (p *endpoint) warm() bool { return false }

func (p *endpoint) retire() {}

func (p *endpoint) close(grace time.Duration) {
	for _, x := range p.rt.attempts {
		if x.unit.exec == p && !x.over {
			p.stop(x, grace)
		}
	}
}
