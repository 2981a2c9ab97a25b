package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// State is a document of shared state: a value under a key of a tenant, in versions.
type State struct {
	Key     string `json:"key"`
	Tenant  string `json:"tenant"`
	Version int64  `json:"version"` // 1 or more; the next write is over this one
	// Value is any JSON, MaxStateValue bytes at most. Lists leave it out.
	Value     json.RawMessage `json:"value,omitempty"`
	Size      int             `json:"size"` // of the value, in bytes
	UpdatedAt Time            `json:"updatedAt"`
	// By wrote this version: the agent of Run and Attempt, or a person or program.
	By      string `json:"by,omitempty"`
	Run     string `json:"run,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Etag    string `json:"etag"`
}

// PutState is a write of shared state.
type PutState struct {
	Value json.RawMessage `json:"value"`
	// Nonce makes a repeat of the call, after an answer that was lost, the same write.
	Nonce string `json:"nonce,omitempty"`
}

// Bounds of shared state.
const (
	MaxStateKey   = 256     // bytes of a key
	MaxStateValue = 1 << 20 // bytes of a value
)

// Versions of a write of shared state that are none.
const (
	StateAbsent = int64(0)  // nothing is to be there yet
	StateAny    = int64(-1) // whatever is there, but something
)

// State reads a document of shared state. A token is that of an attempt, "" for the client's own.
func (c *Client) State(ctx context.Context, token, key string) (*State, error) {
	out := new(State)
	_, err := c.do(ctx, call{method: http.MethodGet, path: statePath(key), query: c.stateQuery(token), bearer: token, repeatable: true, out: out})
	return out, err
}

// PutState writes a document over exactly a version of it, StateAbsent to create it. A Problem of CodeStale tells in
// Current which version is there instead, 0 for none.
func (c *Client) PutState(ctx context.Context, token, key string, version int64, p PutState) (*State, error) {
	out := new(State)
	k := call{method: http.MethodPut, path: statePath(key), query: c.stateQuery(token), bearer: token, body: &p, repeatable: p.Nonce != "", out: out}
	if version == StateAbsent {
		k.noneMatch = "*"
	} else {
		k.match = stateMatch(version)
	}
	_, err := c.do(ctx, k)
	return out, err
}

// DeleteState removes a document in exactly a version, or in any.
func (c *Client) DeleteState(ctx context.Context, token, key string, version int64) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: statePath(key), query: c.stateQuery(token), bearer: token, match: stateMatch(version)})
	return err
}

// States lists the documents whose keys begin with the prefix, by key, without values.
func (c *Client) States(ctx context.Context, token, prefix string) iter.Seq2[State, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[State], error) {
		q := p.query(c.stateQuery(token))
		if prefix != "" {
			q.Set("prefix", prefix)
		}
		out := new(List[State])
		_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/state", query: q, bearer: token, repeatable: true, out: out})
		return out, err
	})
}

// stateQuery names the tenant; an attempt has one already.
func (c *Client) stateQuery(token string) url.Values {
	q := url.Values{}
	if token == "" && c.tenant != "" {
		q.Set("tenant", c.tenant)
	}
	return q
}

func statePath(key string) string {
	parts := strings.Split(key, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/v1/state/" + strings.Join(parts, "/")
}

func stateMatch(version int64) string {
	if version == StateAny {
		return "*"
	}
	return `"` + strconv.FormatInt(version, 10) + `"`
}
