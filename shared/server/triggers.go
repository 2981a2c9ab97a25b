package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/signature"
	"github.com/errand-run/errand/shared/trigger"
)

func (s *Server) triggerDoors() {
	s.plain(door{
		method: "POST", path: "/v1/triggers/pubsub/{name}", id: "pushMessage", tag: "triggers", need: submit, hot: true,
		summary: "A push of Pub/Sub becomes a run; the same message again gives the same. 2xx when the sender is rid of it, else it is to come again: 429 and 503 say when.",
		takes:   "application/json", answer: api.Taken{}, status: 201, also: []int{200}, errors: []int{400, 404, 409, 413, 415, 429, 503},
	}, s.pushMessage)
	s.plain(door{
		method: "POST", path: "/v1/triggers/http/{path}", id: "postMessage", tag: "triggers", need: public, hot: true,
		summary: "A signed request becomes a run. The signature is HMAC-SHA256 over the time of signing, a dot and the body, with the key that the trigger names.",
		takes:   "application/json", answer: api.Taken{}, status: 201, also: []int{200},
		params: []*huma.Param{
			headerParam(signature.Timestamp, "Time of signing, in seconds since 1970; at most five minutes away."),
			headerParam(signature.Header, "sha256=HEX; more of them after commas while keys change."),
			headerParam("Idempotency-Key", "Makes a repeat the same message; by default a request that is sent again as it is."),
		},
		errors: []int{400, 401, 404, 409, 413, 415, 429, 503},
	}, s.postMessage)

	s.plain(door{
		method: "POST", path: "/v1/deadletters", id: "recordDeadLetter", tag: "triggers", need: tend, status: 201, also: []int{200},
		summary: "Keep a message that a broker has given up, once.",
		body:    api.NewDeadLetter{}, answer: api.DeadLetter{}, errors: []int{400, 413, 415, 503},
	}, s.recordDeadLetter)
	ordinary(s, door{
		method: "GET", path: "/v1/deadletters", id: "listDeadLetters", tag: "triggers", need: view,
		summary: "List messages that became no run, those of the oldest messages first, without their data. They are of no tenant: whoever lists them sees all tenants.", errors: []int{400},
	}, s.listDeadLetters)
	ordinary(s, door{
		method: "GET", path: "/v1/deadletters/{id}", id: "getDeadLetter", tag: "triggers", need: view,
		summary: "Read a dead letter with its data.", errors: []int{404},
	}, func(ctx context.Context, in *letterInput) (*answer[api.DeadLetter], error) {
		if err := letterReader(ctx, in.ID); err != nil {
			return nil, err
		}
		l, err := s.plane.DeadLetter(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &answer[api.DeadLetter]{Body: letterOut(&l, true)}, nil
	})
	s.plain(door{
		method: "POST", path: "/v1/deadletters/{id}:replay", id: "replayDeadLetter", tag: "triggers", need: operate, status: 201, also: []int{200},
		summary: "Submit the message of a dead letter once more, through its trigger as it is now: a run of its own each time.",
		body:    api.Replay{}, optional: true, answer: api.Run{}, errors: submitErrors,
	}, s.replayDeadLetter)
}

type letterInput struct {
	ID string `path:"id" doc:"id of the dead letter"`
}

func (s *Server) pushMessage(w http.ResponseWriter, r *http.Request) error {
	name := pathValue(r, "name")
	if err := objectName("trigger", name); err != nil {
		return err
	}
	body, err := readBody(w, r, trigger.MaxBody)
	if err != nil {
		return err
	}
	m, err := trigger.Read(r.Header, body)
	if err != nil {
		return badMessage(err)
	}
	p := principal(r.Context())
	return s.take(w, r, control.Arrived{Trigger: name, Message: m, Tenants: p.Tenants, Actor: p.Name})
}

// badMessage is the problem of what is no message at all.
func badMessage(err error) error {
	if p := trigger.IsPoison(err); p != nil {
		return invalidAt("body."+p.Path, "%s", p.Message)
	}
	return err
}

func (s *Server) postMessage(w http.ResponseWriter, r *http.Request) error {
	// 1. Who sends: nothing is read, and little looked up, for whoever does not even claim to hold a key.
	unsigned := func(err error) error {
		return problem(http.StatusUnauthorized, api.CodeUnauthorized, "%v", err)
	}
	timestamp := r.Header.Get(signature.Timestamp)
	claim, err := signature.Read(timestamp, r.Header.Get(signature.Header), time.Now())
	if err != nil {
		return unsigned(err)
	}
	path := pathValue(r, "path")
	if err := objectName("trigger", path); err != nil {
		return err
	}
	hook, err := s.plane.HookAt(r.Context(), path)
	if err != nil {
		return err
	}
	keys, err := signature.Keys(hook.SecretRef, os.LookupEnv)
	if err != nil {
		s.log.ErrorContext(r.Context(), "read the key of a trigger", "trigger", hook.Trigger, "error", err)
		p := problem(http.StatusServiceUnavailable, api.CodeUnavailable, "the key that trigger %s names cannot be read; the server's log says why", hook.Trigger)
		p.RetryAfter = 30
		return p
	}
	body, err := readBody(w, r, api.MaxPayload)
	if err != nil {
		return err
	}
	if err := claim.Check(keys, body); err != nil {
		return unsigned(err)
	}
	// 2. What it is: a request that is sent again as it was is the same message.
	id, err := key(r, "")
	if err != nil {
		return err
	}
	if id == "" {
		sum := sha256.Sum256(append([]byte(timestamp+"."), body...))
		id = hex.EncodeToString(sum[:16])
	}
	m, err := trigger.ReadHTTP(r.Header, body, id)
	if err != nil {
		return badMessage(err)
	}
	return s.take(w, r, control.Arrived{Trigger: hook.Trigger, Message: m, Actor: "trigger " + hook.Trigger})
}

// take hands a message on, and carries it through although the sender may leave.
func (s *Server) take(w http.ResponseWriter, r *http.Request, a control.Arrived) error {
	ctx, cancel := detached(r.Context())
	defer cancel()
	done, err := s.plane.TakeMessage(ctx, a)
	if err != nil {
		return err
	}
	if done.DeadLetter != "" {
		w.Header().Set("Location", "/v1/deadletters/"+done.DeadLetter)
		return writeJSON(w, http.StatusOK, api.Taken{DeadLetter: done.DeadLetter})
	}
	status := http.StatusCreated
	if done.Existed {
		status = http.StatusOK
	}
	w.Header().Set("Location", "/v1/runs/"+done.Run.ID)
	return writeJSON(w, status, api.Taken{Run: done.Run.ID, Existed: done.Existed})
}

func (s *Server) recordDeadLetter(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.NewDeadLetter](w, r, trigger.MaxBody, false)
	if err != nil {
		return err
	}
	m := &trigger.Message{ID: q.MessageID, Subscription: q.Subscription, OrderingKey: q.OrderingKey, Attributes: q.Attributes, Data: q.Data}
	if q.PublishTime != nil {
		m.PublishTime = q.PublishTime.Time
	}
	switch err := m.Check(); {
	case err != nil:
		return badMessage(err)
	case q.Attempts < 0:
		return invalidAt("body.attempts", "%d; want 0 or more", q.Attempts)
	}
	l, existed, err := s.plane.RecordDeadLetter(r.Context(), control.DeadLetter{Trigger: q.Trigger, Message: m, Attempts: q.Attempts, Reason: q.Reason})
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if existed {
		status = http.StatusOK
	}
	w.Header().Set("Location", "/v1/deadletters/"+l.ID)
	return writeJSON(w, status, letterOut(&l, false))
}

func (s *Server) listDeadLetters(ctx context.Context, in *Page) (*answer[api.List[api.DeadLetter]], error) {
	if err := letterReader(ctx, in.PageToken); err != nil {
		return nil, err
	}
	letters, next, err := s.plane.DeadLetters(ctx, in.limit(), in.PageToken)
	if err != nil {
		return nil, err
	}
	out := api.List[api.DeadLetter]{Items: []api.DeadLetter{}, NextPageToken: next}
	for i := range letters {
		out.Items = append(out.Items, letterOut(&letters[i], false))
	}
	return &answer[api.List[api.DeadLetter]]{Body: out}, nil
}

// letterReader refuses whoever does not see all tenants: a message that became no run is of none. It refuses ids that are
// none as well.
func letterReader(ctx context.Context, id string) error {
	if p := principal(ctx); !p.everywhere() {
		return problem(http.StatusForbidden, api.CodeForbidden, "%s is limited to tenants %s; dead letters concern all of them", p.Name, strings.Join(p.Tenants, ", "))
	}
	if len(id) > 26 || strings.ContainsFunc(id, func(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z') }) {
		return notFound("there is no dead letter %q", clip(id))
	}
	return nil
}

func (s *Server) replayDeadLetter(w http.ResponseWriter, r *http.Request) error {
	id := pathValue(r, "id")
	if err := letterReader(r.Context(), id); err != nil {
		return err
	}
	q, err := decode[api.Replay](w, r, maxSmall, true)
	if err != nil {
		return err
	}
	if q.Trigger != "" {
		if err := objectName("trigger", q.Trigger); err != nil {
			return err
		}
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	p := principal(r.Context())
	done, err := s.plane.ReplayDeadLetter(ctx, id, q.Trigger, p.Name)
	if err != nil {
		return err
	}
	out, err := s.whole(ctx, done.Run)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if done.Existed {
		status = http.StatusOK
	}
	w.Header().Set("Location", "/v1/runs/"+out.ID)
	return writeJSON(w, status, out)
}

func letterOut(l *control.DeadLetter, data bool) api.DeadLetter {
	m := l.Message
	out := api.DeadLetter{
		ID: l.ID, Trigger: l.Trigger, Subscription: m.Subscription, MessageID: m.ID, OrderingKey: m.OrderingKey, Attributes: m.Attributes,
		Attempts: l.Attempts, Reason: l.Reason, At: api.Time{Time: l.At.Time()}, Size: l.Size, Replays: l.Replays, Run: l.Run,
	}
	if !m.PublishTime.IsZero() {
		out.PublishTime = &api.Time{Time: m.PublishTime}
	}
	if data {
		out.Data = m.Value()
	}
	return out
}
