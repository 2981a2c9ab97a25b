// Package notify is the function that tells the outside what happened to runs: it takes the events that the control plane
// publishes and posts each to a webhook, signed, once as far as this process knows. The receiver tells the repeats that
// remain by the header X-Errand-Event.
package notify

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/shared/signature"
	"github.com/errand-run/errand/shared/trigger"
)

// settings are what the environment says.
type settings struct {
	url   *url.URL
	keys  string // where they are
	chat  bool
	types []string // of events; empty for all
	base  string   // of links
}

func read(env edge.Env) (*settings, bool, error) {
	var faults []error
	fault := func(name, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	private := false
	switch v := env.Get("ERRAND_NOTIFY_PRIVATE", "false"); v {
	case "true":
		private = true
	case "false":
	default:
		fault("ERRAND_NOTIFY_PRIVATE", "want true or false")
	}
	s := &settings{keys: env.Get("ERRAND_NOTIFY_KEYS", ""), base: strings.TrimRight(env.Get("ERRAND_URL", ""), "/")}
	// The address may hold the webhook's own secret, so it is never repeated, and may stand in a file.
	address := env.Get("ERRAND_NOTIFY_URL", "")
	if path, ok := strings.CutPrefix(address, "file:"); ok {
		var err error
		if address, err = readFile(path); err != nil {
			fault("ERRAND_NOTIFY_URL", "%v", err)
		}
	}
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && !(private && u.Scheme == "http") {
		fault("ERRAND_NOTIFY_URL", "want https://HOST/PATH without credentials, or file:/PATH of a file that holds it")
	}
	s.url = u
	if _, err := signature.Keys(s.keys, env); err != nil {
		fault("ERRAND_NOTIFY_KEYS", "%v", err)
	}
	switch form := env.Get("ERRAND_NOTIFY_FORM", "event"); form {
	case "event":
	case "chat":
		s.chat = true
		if s.base == "" {
			fault("ERRAND_URL", "missing: links in chats lead there")
		}
	default:
		fault("ERRAND_NOTIFY_FORM", "want event or chat")
	}
	for t := range strings.SplitSeq(env.Get("ERRAND_NOTIFY_TYPES", ""), ",") {
		if t = strings.TrimSpace(t); t != "" {
			s.types = append(s.types, t)
		}
	}
	return s, private, errors.Join(faults...)
}

func readFile(path string) (string, error) {
	const most = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(raw)), err
}

// New makes the function.
func New(env edge.Env, log *slog.Logger) (http.HandlerFunc, error) {
	s, private, err := read(env)
	if err != nil {
		return nil, err
	}
	keys := func() ([][]byte, error) { return signature.Keys(s.keys, env) } // anew: a mounted secret changes
	return s.handler(newSender(s.url, keys, private), log), nil
}

func (s *settings) handler(to *sender, log *slog.Logger) http.HandlerFunc {
	var told memory
	return func(w http.ResponseWriter, r *http.Request) {
		// 1. What happened.
		body := edge.Body(w, r, trigger.MaxBody)
		if body == nil {
			return
		}
		m, err := trigger.Read(r.Header, body)
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		e, err := eventOf(m)
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		if len(s.types) > 0 && !slices.Contains(s.types, e.Type) {
			edge.Answer(w, http.StatusOK, map[string]string{"event": e.ID, "outcome": "not of interest"})
			return
		}
		// 2. Once.
		switch told.begin(e.ID) {
		case done:
			edge.Answer(w, http.StatusOK, map[string]string{"event": e.ID, "outcome": "told before"})
			return
		case underWay:
			edge.Fail(w, r, log, errors.New("the same event is being told at the moment"))
			return
		}
		sent := false
		defer func() { told.end(e.ID, sent) }()
		// 3. Tell.
		out := e.raw
		if s.chat {
			if out, err = e.chat(s.base); err != nil {
				edge.Fail(w, r, log, err)
				return
			}
		}
		err = to.send(r.Context(), e.ID, out)
		if f := new(failure); errors.As(err, &f) && f.hopeless {
			// Refused, so that the broker gives it up in the end and it is seen among the dead letters.
			log.ErrorContext(r.Context(), "the webhook does not take the event", "event", e.ID, "error", err)
			edge.Refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		sent = true
		edge.Answer(w, http.StatusOK, map[string]string{"event": e.ID, "outcome": "told"})
	}
}

// memory knows the last events that were told, and those under way.
type memory struct {
	mu   sync.Mutex
	seen map[string]standing
	ring [maxRemembered]string
	next int
}

const maxRemembered = 10_000

type standing int

const (
	unknown standing = iota
	underWay
	done
)

// begin returns how an event stands, and if that is unknown, puts it under way.
func (m *memory) begin(id string) standing {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := m.seen[id]; at != unknown {
		return at
	}
	if m.seen == nil {
		m.seen = make(map[string]standing)
	}
	m.seen[id] = underWay
	return unknown
}

// end remembers an event that was told, and forgets one that was not.
func (m *memory) end(id string, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, id)
	if !told {
		return
	}
	delete(m.seen, m.ring[m.next])
	m.ring[m.next] = id
	m.next = (m.next + 1) % maxRemembered
	m.seen[id] = done
}
