package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/errand-run/errand/shared/api"
)

// fakeShared is a document of shared state.
type fakeShared struct {
	version int64
	value   json.RawMessage
	nonce   string
}

// state serves shared state under "open/"; every other key is forbidden. Before the first write of a key under
// "open/busy" that is over a version, somebody else writes.
func (f *fake) state(w http.ResponseWriter, req *http.Request, key, token string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, refusal := f.find(strings.TrimPrefix(token, "token-"), token); refusal != nil {
		f.answer(w, nil, refusal)
		return
	}
	if !strings.HasPrefix(key, "open/") {
		f.answer(w, nil, problemOf(403, api.CodeForbidden, "not yours"))
		return
	}
	d := f.shared[key]
	if d == nil {
		d = new(fakeShared)
	}
	if req.Method == http.MethodPut {
		var p api.PutState
		_ = json.Unmarshal(body, &p)
		expect, _ := strconv.ParseInt(strings.Trim(req.Header.Get("If-Match"), `"`), 10, 64)
		if strings.HasPrefix(key, "open/busy") && (d.version == 0 || strings.HasSuffix(key, "always")) {
			d.version++
			d.value = json.RawMessage(`100`)
		}
		switch {
		case d.nonce != "" && d.nonce == p.Nonce:
		case expect != d.version:
			f.keepShared(key, d)
			problem := problemOf(412, api.CodeStale, "stale")
			problem.Current = strconv.FormatInt(d.version, 10)
			f.answer(w, nil, problem)
			return
		default:
			d.version++
			d.value, d.nonce = p.Value, p.Nonce
		}
		f.keepShared(key, d)
	}
	if d.version == 0 {
		f.answer(w, nil, problemOf(404, api.CodeNotFound, "none"))
		return
	}
	f.answer(w, &api.State{Key: key, Version: d.version, Value: d.value}, nil)
}

func (f *fake) keepShared(key string, d *fakeShared) {
	if f.shared == nil {
		f.shared = make(map[string]*fakeShared)
	}
	f.shared[key] = d
}

func TestState(t *testing.T) {
	add := func(ctx context.Context, r *Run, key string) (int, error) {
		return UpdateState(ctx, r, key, func(old int) (int, error) { return old + 1, nil })
	}
	tests := map[string]struct {
		handler func(ctx context.Context, r *Run, _ int) (int, error)
		lose    string // the answer to the first call whose path ends so
		output  string
		code    string
	}{
		"a document that is not there is the zero value in version 0": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				v, version, err := GetState[int](ctx, r, "open/none")
				return v + int(version), err
			},
			output: `0`,
		},
		"what was written is read": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				version, err := PutState(ctx, r, "open/a", 0, 41)
				if err != nil || version != 1 {
					return int(version), err
				}
				v, _, err := GetState[int](ctx, r, "open/a")
				return v, err
			},
			output: `41`,
		},
		"an update over what somebody else wrote meanwhile begins again": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) { return add(ctx, r, "open/busy") },
			output:  `101`,
		},
		"a write whose answer was lost is not done twice": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				version, err := PutState(ctx, r, "open/b", 0, 9)
				return int(version), err
			},
			lose: "/open/b", output: `1`,
		},
		"others who are always first are told": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_, err := add(ctx, r, "open/busy-always")
				var stale *StaleState
				if !errors.As(err, &stale) || stale.Current != updateTries || stale.Key != "open/busy-always" {
					return 0, Fail("NOT_STALE", err)
				}
				return 7, nil
			},
			output: `7`,
		},
		"a stale write tells the version that is there": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				if _, err := PutState(ctx, r, "open/c", 0, 1); err != nil {
					return 0, err
				}
				_, err := PutState(ctx, r, "open/c", 0, 2)
				var stale *StaleState
				if !errors.As(err, &stale) {
					return 0, Fail("NOT_STALE", err)
				}
				return int(stale.Current), nil
			},
			output: `1`,
		},
		"a key that the agent may not use": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) { return add(ctx, r, "closed/a") }, code: CodePermissionDenied,
		},
		"a value that is too large": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_, err := PutState(ctx, r, "open/d", 0, strings.Repeat("x", api.MaxStateValue))
				return 0, err
			},
			code: CodeResultTooLarge,
		},
		"a value of another type": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				if _, err := PutState(ctx, r, "open/e", 0, "text"); err != nil {
					return 0, err
				}
				return add(ctx, r, "open/e")
			},
			code: CodeInputInvalid,
		},
		"an error of the function writes nothing": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_, err := UpdateState(ctx, r, "open/f", func(int) (int, error) { return 5, Fail("NO_MONEY", errBoom) })
				if _, version, _ := GetState[int](ctx, r, "open/f"); version != 0 {
					return 0, Fail("WRITTEN", nil)
				}
				return 0, err
			},
			code: "NO_MONEY",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.lose != "" {
					f.loseAfter = map[string]int{tt.lose: 1}
				}
				r := perform(t, f, `1`, tt.handler)
				switch {
				case tt.code != "" && (r.state != "failed" || r.failure.Code != tt.code):
					t.Errorf("%s (%s); want failed with %s", r.state, r.why(), tt.code)
				case tt.code == "" && (r.state != "succeeded" || string(r.output) != tt.output):
					t.Errorf("%s with %s (%s); want %s", r.state, r.output, r.why(), tt.output)
				}
			})
		})
	}
}
