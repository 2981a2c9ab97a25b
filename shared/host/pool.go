package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
)

// claimTime bounds a claim. It is seen through when the worker drains meanwhile: an attempt that was handed over
// unnoticed would be missed only when the worker's lease runs out.
const claimTime = 6 * time.Second

// Attributes of a message that hands an attempt over. A message has no data.
const (
	attrAttempt = "attempt" // RUN.N
	attrTicket  = "ticket"  // good for one claim
	attrAgent   = "agent"
	attrExpires = "expires" // RFC 3339; the message is worthless after it
)

// Pool brings the attempts that a bus hands to the workers of a target. It is a Source of agent.
//
// A message says that there is an attempt to be claimed; the claim decides. It is acknowledged once the claim is
// answered: from then on the worker's lease protects the run. So a message that comes twice, late, or while its run is
// being executed, begins nothing a second time.
type Pool struct {
	Bus    bus.Bus
	Target string
	// Agents that the worker serves; a message for another is left to other workers, and told to the control plane when
	// none of them takes it. Empty for any.
	Agents []string
	Client *api.Client
	// Worker is the id under which attempts are claimed: that of the host.
	Worker string
	// Ready tells whether an attempt could be executed now; nil for always. Where it could not, the message is given back
	// for other workers.
	Ready func(context.Context) error
	Log   *slog.Logger
	Now   func() time.Time // time.Now when nil

	counts [outcomes]atomic.Int64
}

// outcome is what became of a message.
type outcome int

const (
	claimed   outcome = iota // and executed
	refused                  // the attempt is over, or somebody else has it
	duplicate                // the attempt is executed here already
	expired
	foreign  // for an agent that is not served here
	poison   // no hand-over: given back until it is a dead letter
	deferred // given back: the control plane is away, or the agent is
	outcomes
)

var outcomeNames = [outcomes]string{"claimed", "refused", "duplicate", "expired", "foreign", "poison", "deferred"}

// Counts tells how many messages came to which end since the start.
func (p *Pool) Counts() map[string]int64 {
	counts := make(map[string]int64, outcomes)
	for i, name := range outcomeNames {
		counts[name] = p.counts[i].Load()
	}
	return counts
}

// Feed implements agent.Source.
func (p *Pool) Feed(ctx context.Context, slots int, execute agent.Execute) error {
	err := p.Bus.Receive(ctx, bus.Pool(p.Target), bus.Receiver{
		Slots: slots,
		Handle: func(ctx context.Context, d *bus.Delivery) error {
			what, err := p.handle(ctx, d, execute)
			p.counts[what].Add(1)
			return err
		},
	})
	p.Log.Info("no more messages are taken", "counts", p.Counts())
	if err != nil {
		return fmt.Errorf("take messages of pool %s: %w", p.Target, err)
	}
	return nil
}

// handle deals with one message. An error gives it back.
func (p *Pool) handle(ctx context.Context, d *bus.Delivery, execute agent.Execute) (outcome, error) {
	attempt, ticket := d.Attributes[attrAttempt], d.Attributes[attrTicket]
	log := p.Log.With("message", d.ID, "attempt", attempt)
	giveBack := func(what outcome, level slog.Level, err error) (outcome, error) {
		log.Log(ctx, level, "message is given back", "why", outcomeNames[what], "delivery", d.Attempt, "error", err)
		return what, err
	}
	// 1. What nobody needs to ask about.
	switch what, err := p.judge(d); {
	case err != nil:
		return giveBack(poison, slog.LevelError, err)
	case what == foreign:
		err := p.leave(ctx, d)
		if err != nil {
			return giveBack(foreign, slog.LevelInfo, err)
		}
		return foreign, nil
	case what != claimed:
		log.Info("message is passed over", "why", outcomeNames[what], "agent", d.Attributes[attrAgent])
		return what, nil
	}
	// 2. What cannot be executed here and now.
	if err := context.Cause(ctx); err != nil {
		return giveBack(deferred, slog.LevelDebug, err)
	}
	if p.Ready != nil {
		if err := p.Ready(ctx); err != nil {
			return giveBack(deferred, slog.LevelWarn, err)
		}
	}
	// 3. The claim decides.
	claimCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), claimTime, fmt.Errorf("%w: no answer within %s", api.ErrUnreachable, claimTime))
	defer cancel()
	lease, err := p.Client.Claim(claimCtx, attempt, api.Claim{Worker: p.Worker, Ticket: ticket})
	switch {
	case api.HasCode(err, api.CodeFenced), api.HasCode(err, api.CodeConflict):
		log.Info("message is passed over", "why", outcomeNames[refused], "error", err)
		return refused, nil
	case err != nil:
		return giveBack(deferred, slog.LevelWarn, fmt.Errorf("claim attempt %s: %w", attempt, err))
	}
	// 4. From here on the lease protects the run, and not the message.
	d.Ack()
	_, err = execute(*lease)
	switch {
	case errors.Is(err, agent.ErrHeld):
		log.Info("message is passed over", "why", outcomeNames[duplicate])
		return duplicate, nil
	case err != nil:
		log.Warn("attempt ended without effect", "error", err)
	}
	return claimed, nil
}

// othersTries is how often a message for an agent that is not served here is left to the pool's other workers: while a
// pool changes from one version to the next, some serve it already.
const othersTries = 2

// leave deals with a message for an agent that is not served here: an error gives it back for other workers. Where none
// of them takes it, the control plane is told, for the run would wait for long.
func (p *Pool) leave(ctx context.Context, d *bus.Delivery) error {
	attempt, name := d.Attributes[attrAttempt], d.Attributes[attrAgent]
	why := fmt.Sprintf("worker %s of target %s serves agents %s, and not %s", p.Worker, p.Target, strings.Join(p.Agents, ", "), name)
	if d.Attempt > 0 && d.Attempt <= othersTries {
		return errors.New(why)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), claimTime, fmt.Errorf("%w: no answer within %s", api.ErrUnreachable, claimTime))
	defer cancel()
	err := p.Client.Undelivered(ctx, attempt, d.Attributes[attrTicket], why)
	var refused *api.Problem
	if errors.As(err, &refused) && refused.Status < http.StatusInternalServerError && refused.Status != http.StatusTooManyRequests {
		err = nil // the attempt is over, or the message no hand-over of this control plane: nothing to wait for
	}
	if err != nil {
		return fmt.Errorf("%s; the control plane was not told: %w", why, err)
	}
	p.Log.Warn("a hand-over is not for this pool: its agent is declared for a target that does not run it", "attempt", attempt, "why", why)
	return nil
}

// judge tells what a message is worth by itself: claimed for one that is worth a claim.
func (p *Pool) judge(d *bus.Delivery) (outcome, error) {
	for _, name := range []string{attrAttempt, attrTicket} {
		if d.Attributes[name] == "" {
			return poison, fmt.Errorf("message has no attribute %s: it hands nothing over", name)
		}
	}
	if text := d.Attributes[attrExpires]; text != "" {
		until, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return poison, fmt.Errorf("attribute %s=%.40q: want a time such as 2026-01-31T12:00:00Z", attrExpires, text)
		}
		now := time.Now
		if p.Now != nil {
			now = p.Now
		}
		if now().After(until) {
			return expired, nil
		}
	}
	if name := d.Attributes[attrAgent]; name != "" && len(p.Agents) > 0 && !slices.Contains(p.Agents, name) {
		return foreign, nil
	}
	return claimed, nil
}
