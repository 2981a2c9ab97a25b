// Package deadletter is the function at the end of the line: it takes what Pub/Sub has given up. A hand-over that came to
// nobody is told to the control plane, which places the run anew; everything else is recorded, once, with its data.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/trigger"
)

// Attributes that Pub/Sub adds to a message that it gives up.
const (
	added           = "CloudPubSubDeadLetterSource" // begins them all
	bySubscription  = added + "Subscription"
	ofProject       = added + "SubscriptionProject"
	byCount         = added + "DeliveryCount"
	byPublishTime   = added + "TopicPublishTime"
	byErrorMessage  = added + "DeliveryErrorMessage"
	attemptOf       = "attempt"
	ticketOf        = "ticket"
	longestReason   = 500
	longestIdentity = 512
)

// New makes the function.
func New(env edge.Env, log *slog.Logger) (http.HandlerFunc, error) {
	c, err := edge.Client(env, "deadletter")
	if err != nil {
		return nil, err
	}
	return func(w http.ResponseWriter, r *http.Request) {
		body := edge.Body(w, r, trigger.MaxBody)
		if body == nil {
			return
		}
		m, err := trigger.Read(r.Header, body)
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		source, attempts, reason := origin(m)
		// 1. A hand-over: the attempt that it names need not be waited for.
		attempt, ticket := m.Attributes[attemptOf], m.Attributes[ticketOf]
		if trigger.OfPool(source) != "" && attempt != "" && ticket != "" && len(attempt)+len(ticket) <= longestIdentity {
			done, err := undelivered(r.Context(), c, attempt, ticket, reason)
			if err != nil {
				edge.Fail(w, r, log, err)
				return
			}
			if done {
				log.InfoContext(r.Context(), "told of a hand-over that came to nobody", "attempt", attempt, "attempts", attempts)
				edge.Answer(w, http.StatusOK, map[string]string{"undelivered": attempt})
				return
			}
		}
		// 2. All else is kept: the same message again is the same letter.
		letter, err := c.RecordDeadLetter(r.Context(), letterOf(m, source, attempts, reason))
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		log.WarnContext(r.Context(), "dead letter", "letter", letter.ID, "trigger", letter.Trigger, "subscription", source, "attempts", attempts)
		edge.Answer(w, http.StatusOK, letter)
	}, nil
}

// origin says which subscription gave the message up, after how many deliveries, and why.
func origin(m *trigger.Message) (subscription string, attempts int, reason string) {
	subscription = m.Attributes[bySubscription]
	if project := m.Attributes[ofProject]; subscription != "" && project != "" && !strings.Contains(subscription, "/") {
		subscription = "projects/" + project + "/subscriptions/" + subscription
	}
	attempts, _ = strconv.Atoi(m.Attributes[byCount])
	attempts = max(attempts, 0)
	reason = m.Attributes[byErrorMessage]
	if reason == "" {
		reason = fmt.Sprintf("given up by %s after %d deliveries", subscription, attempts)
	}
	if len(reason) > longestReason {
		reason = strings.ToValidUTF8(reason[:longestReason], "")
	}
	return subscription, attempts, reason
}

// undelivered tells the control plane, and reports whether that settles the message. An attempt that is over, or of which
// nobody knows, is settled; a hand-over that is none is not.
func undelivered(ctx context.Context, c *api.Client, attempt, ticket, reason string) (bool, error) {
	err := c.Undelivered(ctx, attempt, ticket, reason)
	var p *api.Problem
	if errors.As(err, &p) {
		switch p.Status {
		case http.StatusNotFound, http.StatusConflict:
			return true, nil
		case http.StatusBadRequest, http.StatusForbidden: // no ticket of ours; if it is this function that may not, the record fails as well
			return false, nil
		}
	}
	return err == nil, err
}

func letterOf(m *trigger.Message, source string, attempts int, reason string) api.NewDeadLetter {
	l := api.NewDeadLetter{
		Trigger: trigger.OfTrigger(source), Subscription: source, MessageID: m.ID, OrderingKey: m.OrderingKey,
		Attributes: maps.Clone(m.Attributes), Attempts: attempts, Reason: reason, Data: m.Data,
	}
	// The topic's own time tells how old the message is; that of the dead letter says when it was given up.
	published := m.PublishTime
	if at, err := time.Parse(time.RFC3339Nano, m.Attributes[byPublishTime]); err == nil {
		published = at
	}
	if !published.IsZero() {
		l.PublishTime = &api.Time{Time: published.UTC()}
	}
	for name := range l.Attributes {
		if strings.HasPrefix(name, added) {
			delete(l.Attributes, name)
		}
	}
	if trigger.OfPool(source) != "" {
		delete(l.Attributes, ticketOf) // worth nothing any more, and still no thing to keep
	}
	return l
}
