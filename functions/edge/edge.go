// Package edge is what the functions share: how they are configured, how they call the control plane, and how they answer
// a broker.
package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/trigger"
)

// Env looks a variable up, as os.LookupEnv does.
type Env func(name string) (value string, ok bool)

// Get is the variable's value, or otherwise where it is missing or empty.
func (e Env) Get(name, otherwise string) string {
	if v, ok := e(name); ok && v != "" {
		return v
	}
	return otherwise
}

// timeout bounds one try of a call: brokers give a push ten seconds to some minutes.
const timeout = 15 * time.Second

// Client calls the control plane at ERRAND_URL as the workload that the function is.
func Client(env Env, name string) (*api.Client, error) {
	url := env.Get("ERRAND_URL", "")
	if url == "" {
		return nil, errors.New("ERRAND_URL is missing: the address of the control plane")
	}
	return api.NewClient(api.Options{
		URL: url, Token: env.Get("ERRAND_TOKEN", ""), Tokens: identity.Metadata(identity.Options{}), Audience: env.Get("ERRAND_AUDIENCE", ""),
		UserAgent: "errand-" + name, Timeout: timeout, Retries: 2,
	})
}

// Body reads a POST, at most limit bytes of it; nil and an answer that was given if that is not what came.
func Body(w http.ResponseWriter, r *http.Request, limit int64) []byte {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		Refuse(w, http.StatusMethodNotAllowed, "want POST")
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		Refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", limit))
		return nil
	case err != nil:
		Refuse(w, http.StatusBadRequest, "the body could not be read")
		return nil
	case body == nil:
		body = []byte{}
	}
	return body
}

// Answer writes a value as JSON.
func Answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		Refuse(w, http.StatusInternalServerError, "the answer cannot be encoded")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Refuse writes why not. Brokers read the status alone; the rest is for people.
func Refuse(w http.ResponseWriter, status int, why string) {
	p := api.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: why}
	body, _ := json.Marshal(p) // texts and numbers always encode
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Fail answers with an error of the control plane, or of a message: 4xx where no repeat helps, else 429 or 503 with the
// time to come back. What the function itself does wrong is no fault of the message: it comes again.
func Fail(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	status, wait := http.StatusServiceUnavailable, 5
	var p *api.Problem
	if poison := trigger.IsPoison(err); poison != nil {
		status = http.StatusBadRequest
	} else if errors.As(err, &p) {
		switch {
		case p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden || p.Status >= 500:
			wait = max(p.RetryAfter, wait)
		case p.Status == http.StatusTooManyRequests:
			status, wait = p.Status, max(p.RetryAfter, 1)
		default:
			status = p.Status
		}
	}
	level := slog.LevelWarn
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(wait))
	} else {
		level = slog.LevelError
	}
	log.LogAttrs(r.Context(), level, "not taken", slog.Int("status", status), slog.String("error", err.Error()))
	Refuse(w, status, err.Error())
}
