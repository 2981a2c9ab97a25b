package cloudrun

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// Services and instances: an attempt is a request.

// address is where a service or an instance is served.
type address struct {
	url   string
	limit time.Duration // of a request, by the platform; 0 for unknown
}

const (
	addressTTL = 5 * time.Minute
	// limitSlack is how far the platform's clock of a request may be from ours.
	limitSlack = 5 * time.Second
	// restartWait is asked for after an instance was not there: its restart takes some seconds.
	restartWait = 5 * time.Second
	codeLimit   = "PlatformTimeout"
)

// send begins an attempt in its resource's way.
func (rt *Runtime) send(ctx context.Context, x *attempt) error {
	if x.resource.kind == jobs {
		return rt.runTask(ctx, x)
	}
	return rt.request(ctx, x)
}

// request sends an attempt to its service or instance. An error refuses it; what may pass is reported instead.
func (rt *Runtime) request(ctx context.Context, x *attempt) error {
	// 1. Where to, as whom, and what.
	at, err := rt.address(ctx, x)
	if err != nil {
		return rt.notNow(x, err)
	}
	var token string
	if rt.opts.Tokens != nil {
		if token, err = rt.opts.Tokens.Token(ctx, at.url); err != nil {
			return rt.notNow(x, fmt.Errorf("no identity token for %s: %w", at.url, err))
		}
	}
	document, err := x.a.Document(rt.opts.URL()).Encode()
	if err != nil {
		return fmt.Errorf("%w: %w", runtime.ErrRefused, err)
	}
	// 2. The request, which outlives this call.
	life, cancel := context.WithCancelCause(context.Background())
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x.over || rt.closed || x.reason != "" {
		cancel(nil)
		return rt.tooLate(x)
	}
	x.cancel = cancel
	rt.began(x)
	rt.wg.Go(func() {
		defer cancel(nil)
		way := &relay{rt: rt, x: x}
		begun := time.Now()
		report := httpio.Do(life, rt.client, httpio.Call{
			URL: at.url + "/run", Attempt: &x.a, Document: document, Identity: token, Each: way.take, Now: rt.opts.Now,
		})
		if life.Err() != nil {
			report = rt.givenUp(x, context.Cause(life))
		} else {
			report = rt.platformsWord(x, at, report, time.Since(begun))
		}
		way.close()
		rt.finish(x, report)
	})
	return nil
}

// tooLate ends an attempt that was told to stop, or met the end of this server, before its request was sent. Needs the lock.
func (rt *Runtime) tooLate(x *attempt) error {
	report := runtime.Report{Type: runtime.Released, Message: closing, Ended: true}
	if x.reason != "" {
		report = runtime.Stopped(x.reason, "it was told to stop before it began: "+string(x.reason))
		report.Ended = true
	}
	rt.wg.Go(func() { rt.finish(x, report) })
	return nil
}

// notNow judges why an attempt was not sent: for good, which refuses it, or by a fault that may pass, which is reported.
func (rt *Runtime) notNow(x *attempt, err error) error {
	if what := advice(err); what != "" {
		return fmt.Errorf("%w: %w; %s", runtime.ErrRefused, err, what)
	}
	report := runtime.Report{
		Type: runtime.Failed, Class: run.ClassInfrastructure, Code: httpio.CodeUnreachable, Message: "nothing was sent: " + err.Error(), Ended: true,
	}
	if status.Code(err) == codes.ResourceExhausted {
		report.Class = run.ClassThrottled
	}
	rt.wg.Go(func() { rt.finish(x, report) })
	return nil
}

// givenUp is the end of a request that was not waited for any longer. A handler cannot be killed: it is never certain.
func (rt *Runtime) givenUp(x *attempt, why error) runtime.Report {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x.reason != "" {
		return runtime.Stopped(x.reason, "no answer within the grace after it was told to stop: "+string(x.reason)+stillAtWork)
	}
	return runtime.Report{Type: runtime.Released, Message: why.Error() + "; its connection was closed"}
}

// platformsWord tells what the platform says in the handler's place from what the handler says.
func (rt *Runtime) platformsWord(x *attempt, at address, r runtime.Report, took time.Duration) runtime.Report {
	if r.Type != runtime.Failed {
		return r
	}
	switch r.Code {
	case httpio.CodeUnreachable:
		r.Ended = true
		// It may have moved.
		rt.addresses.drop(x.resource.name)
		if x.resource.kind == instances {
			r.RetryIn = max(r.RetryIn, restartWait)
			r.Message += "; an instance is restarted about once a week"
		}
	case strconv.Itoa(http.StatusServiceUnavailable):
		if x.resource.kind == instances {
			rt.addresses.drop(x.resource.name)
			r.RetryIn = max(r.RetryIn, restartWait)
		}
	case strconv.Itoa(http.StatusUnauthorized), strconv.Itoa(http.StatusForbidden):
		r.Message += fmt.Sprintf("; if the platform says so, grant the control plane's service account roles/run.invoker on %s", x.resource.name)
	case strconv.Itoa(http.StatusGatewayTimeout):
		return rt.timedOut(x, at, r, took)
	}
	return r
}

// timedOut judges a 504: the platform gives up a request at the service's limit and lets its container live on.
func (rt *Runtime) timedOut(x *attempt, at address, r runtime.Report, took time.Duration) runtime.Report {
	deadline := x.a.Deadline
	atLimit := at.limit > 0 && took >= at.limit-limitSlack
	atDeadline := deadline != 0 && rt.opts.Now().Add(limitSlack).After(deadline.Time())
	if !atLimit && !atDeadline && !strings.Contains(r.Message, "upstream request timeout") {
		return r
	}
	if atDeadline {
		return runtime.Stopped(run.AttemptTimeout, "the platform ended the request at the attempt's deadline"+stillAtWork)
	}
	limit := "its limit"
	if at.limit > 0 {
		limit = "its limit of " + at.limit.String()
	}
	return runtime.Report{
		Type: runtime.Failed, Class: run.ClassTimeout, Code: codeLimit, Usage: r.Usage,
		Message: fmt.Sprintf("the platform ended the request after %s, at %s%s; raise the service's request timeout (60m at most), lower timeouts.attempt, or use shape job or pool", took.Round(time.Second), limit, stillAtWork),
	}
}

// address finds where the attempt's service or instance is served.
func (rt *Runtime) address(ctx context.Context, x *attempt) (address, error) {
	name := x.resource.name
	switch x.resource.kind {
	case services:
		return rt.addresses.get(ctx, name, func(ctx context.Context) (address, error) {
			s, err := rt.platform.service(ctx, name)
			if err != nil {
				return address{}, fmt.Errorf("look up service %s: %w", name, err)
			}
			return served(name, s.GetUri(), s.GetTemplate().GetTimeout().AsDuration())
		})
	case instances:
		rt.mu.Lock()
		if rt.served[name] == nil {
			rt.served[name] = make(map[string]bool)
		}
		rt.served[name][x.a.Agent.Name()] = true
		rt.mu.Unlock()
		return rt.addresses.get(ctx, name, func(ctx context.Context) (address, error) { return rt.wake(ctx, name) })
	}
	return address{url: name}, nil
}

func served(name, uri string, limit time.Duration) (address, error) {
	if uri == "" {
		return address{}, fmt.Errorf("%s has no address yet; is its deployment done?", name)
	}
	u, err := checkAddress(uri)
	if err != nil {
		return address{}, fmt.Errorf("%s: %w", name, err)
	}
	return address{u, limit}, nil
}

// wake finds an instance, and has it started if it is stopped.
func (rt *Runtime) wake(ctx context.Context, name string) (address, error) {
	i, err := rt.platform.instance(ctx, name)
	if err != nil {
		return address{}, fmt.Errorf("look up instance %s: %w", name, err)
	}
	if stopped(i) {
		rt.log.Info("starting an instance", "instance", name)
		if err := rt.platform.startInstance(ctx, name); err != nil {
			return address{}, fmt.Errorf("start instance %s: %w", name, err)
		}
	}
	var uri string
	if urls := i.GetUrls(); len(urls) > 0 {
		uri = urls[0]
	}
	return served(name, uri, 0)
}

func stopped(i *runpb.Instance) bool {
	switch i.GetTerminalCondition().GetInstanceReason() {
	case runpb.Condition_INSTANCE_STOPPED, runpb.Condition_INSTANCE_STOPPING, runpb.Condition_INSTANCE_NON_ZERO_EXIT_CODE:
		return true
	}
	return false
}

// retire stops an instance that serves no agent any more, once no attempt is there. Needs the lock.
func (rt *Runtime) retire(name string) {
	for _, x := range rt.attempts {
		if x.resource.name == name {
			return // the end of the last one comes here again
		}
	}
	delete(rt.served, name)
	rt.addresses.drop(name)
	if rt.closed {
		return
	}
	rt.wg.Go(func() {
		rt.log.Info("stopping an instance whose agents are gone", "instance", name)
		if err := rt.platform.stopInstance(rt.life, name); err != nil && status.Code(err) != codes.NotFound {
			rt.log.Warn("an instance was not stopped", "instance", name, "error", err)
		}
	})
}
