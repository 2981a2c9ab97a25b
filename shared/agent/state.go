package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// updateTries is how often UpdateState meets another's write before it gives up.
const updateTries = 20

// StaleState is the error of a write over a version that is not there any more: somebody else wrote since it was read.
type StaleState struct {
	Key     string
	Current int64 // the version that is there; 0 for none
}

func (e *StaleState) Error() string {
	if e.Current == 0 {
		return fmt.Sprintf("state %q: it does not exist any more", e.Key)
	}
	return fmt.Sprintf("state %q: somebody else wrote it first: it is in version %d", e.Key, e.Current)
}

// GetState reads the document under a key of the tenant's shared state, and the version that the next write is over. A
// key without a document gives the zero value and version 0. The agent's permissions.state must name the key.
func GetState[T any](ctx context.Context, r *Run, key string) (value T, version int64, err error) {
	if err := r.shares(); err != nil {
		return value, 0, err
	}
	doc, err := patiently(ctx, r, func() (*api.State, error) { return r.client.State(ctx, r.a.Token, key) })
	var p *api.Problem
	switch {
	case errors.As(err, &p) && p.Code() == api.CodeNotFound:
		return value, 0, nil
	case err != nil:
		return value, 0, stateError("read", key, err)
	}
	if err := json.Unmarshal(doc.Value, &value); err != nil {
		return value, doc.Version, failf(CodeInputInvalid, "state %q: version %d does not fit %s: %w", key, doc.Version, typeName[T](), decoding(err))
	}
	return value, doc.Version, nil
}

// PutState writes the document under a key over exactly a version of it, 0 to create it, and returns the new version.
// The value is at most api.MaxStateValue bytes of JSON. The error wraps a [*StaleState] where the document is in another
// version, and [ErrFenced] where the attempt no longer holds its run: then nothing was written.
func PutState(ctx context.Context, r *Run, key string, version int64, value any) (int64, error) {
	if err := r.shares(); err != nil {
		return 0, err
	}
	raw, err := encode(value)
	switch {
	case err != nil:
		return 0, failf(CodeOutputInvalid, "state %q: value: %w", key, err)
	case len(raw) > api.MaxStateValue:
		return 0, failf(CodeResultTooLarge, "state %q: value of %d bytes: at most %d; keep it elsewhere and write where", key, len(raw), api.MaxStateValue)
	case version < 0:
		return 0, failf(CodeInputInvalid, "state %q: version %d; want that of GetState, or 0 to create it", key, version)
	}
	put := api.PutState{Value: raw, Nonce: rand.Text()}
	doc, err := patiently(ctx, r, func() (*api.State, error) { return r.client.PutState(ctx, r.a.Token, key, version, put) })
	if err != nil {
		return 0, stateError("write", key, err)
	}
	return doc.Version, nil
}

// UpdateState reads the document under a key, lets fn make the next value of it, and writes that over what was read;
// where somebody else was first it begins again, 20 times at most. It returns the value that was written. fn is called
// with the zero value where there is no document, and may be called several times. An error of fn ends it, and nothing
// is written. Where others were first each time, the error wraps a [*StaleState].
func UpdateState[T any](ctx context.Context, r *Run, key string, fn func(old T) (T, error)) (T, error) {
	var zero T
	var b backoff
	for try := 1; ; try++ {
		old, version, err := GetState[T](ctx, r, key)
		if err != nil {
			return zero, err
		}
		next, err := fn(old)
		if err != nil {
			return zero, fmt.Errorf("update state %q: %w", key, err)
		}
		_, err = PutState(ctx, r, key, version, next)
		var stale *StaleState
		switch {
		case err == nil:
			return next, nil
		case !errors.As(err, &stale):
			return zero, err
		case try == updateTries:
			return zero, fmt.Errorf("update: gave up after %d tries: %w", try, err)
		}
		b.failed(time.Now(), err)
		t := time.NewTimer(time.Until(b.until))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return zero, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// shares says why the run can use no shared state, or nil.
func (r *Run) shares() error {
	if r.client == nil {
		return errNoServer
	}
	return nil
}

// stateError says what an answer of the server means for the run.
func stateError(verb, key string, err error) error {
	var p *api.Problem
	err = fmt.Errorf("%s state %q: %w", verb, key, err)
	if !errors.As(err, &p) || passing(p) {
		return err
	}
	switch {
	case p.Code() == api.CodeStale:
		current, _ := strconv.ParseInt(p.Current, 10, 64) // 0 where a server tells none
		return fmt.Errorf("%w: %w", &StaleState{Key: key, Current: current}, err)
	case p.Code() == api.CodeFenced, p.Code() == api.CodeUnauthorized:
		return fmt.Errorf("%w: %w", ErrFenced, err)
	case p.Code() == api.CodeForbidden:
		return &Error{Code: CodePermissionDenied, Final: true, Err: err}
	case p.Code() == api.CodeInvalid:
		return &Error{Code: CodeNameInvalid, Final: true, Err: err}
	case p.Status == http.StatusRequestEntityTooLarge:
		return &Error{Code: CodeResultTooLarge, Final: true, Err: err}
	}
	return err
}
