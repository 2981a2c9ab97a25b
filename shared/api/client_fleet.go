package api

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Collections of declared objects.
const (
	Agents    = "agents"
	Targets   = "targets"
	Tenants   = "tenants"
	Models    = "models"
	Workflows = "workflows"
	Schedules = "schedules"
	Triggers  = "triggers"
	Jobs      = "jobs"
)

// Page asks for a part of a list: at most Limit items (the server's default when 0), after those before Token.
type Page struct {
	Limit int
	Token string
}

func (p Page) query(q url.Values) url.Values {
	if q == nil {
		q = url.Values{}
	}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Token != "" {
		q.Set("pageToken", p.Token)
	}
	return q
}

// pages walks a list page by page. It ends after the first error, which it yields.
func pages[T any](ctx context.Context, first Page, get func(context.Context, Page) (*List[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for p := first; ; {
			list, err := get(ctx, p)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range list.Items {
				if !yield(item, nil) {
					return
				}
			}
			if list.NextPageToken == "" {
				return
			}
			p.Token = list.NextPageToken
		}
	}
}

// ApplyOptions of Client.Apply.
type ApplyOptions struct {
	DryRun bool // say what would happen, change nothing
	Prune  bool // delete what is declared but not in the manifests
}

// Apply declares manifests, YAML or JSON, all or nothing.
func (c *Client) Apply(ctx context.Context, manifests []byte, o ApplyOptions) (*ApplyResult, error) {
	q := url.Values{}
	if o.DryRun {
		q.Set("dryRun", "true")
	}
	if o.Prune {
		q.Set("prune", "true")
	}
	out := new(ApplyResult)
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/apply", query: q, raw: manifests, media: "application/yaml", repeatable: true, out: out,
	})
	return out, err
}

// Object returns one declared object of a collection such as [Agents], with its etag.
func (c *Client) Object(ctx context.Context, collection, name string) (*Object, error) {
	out := new(Object)
	_, err := c.do(ctx, call{method: http.MethodGet, path: objectPath(collection, name), repeatable: true, out: out})
	return out, err
}

// ListObjects returns a page of a collection.
func (c *Client) ListObjects(ctx context.Context, collection string, p Page) (*List[Object], error) {
	out := new(List[Object])
	_, err := c.do(ctx, call{
		method: http.MethodGet, path: "/v1/" + url.PathEscape(collection), query: p.query(nil), repeatable: true, out: out,
	})
	return out, err
}

// Objects walks a whole collection.
func (c *Client) Objects(ctx context.Context, collection string) iter.Seq2[Object, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[Object], error) {
		return c.ListObjects(ctx, collection, p)
	})
}

// DeleteObject removes a declared object; with an etag only that version of it, else whatever is there.
func (c *Client) DeleteObject(ctx context.Context, collection, name, etag string) error {
	_, err := c.do(ctx, call{
		method: http.MethodDelete, path: objectPath(collection, name), match: etag, repeatable: true,
	})
	return err
}

func objectPath(collection, name string) string {
	return "/v1/" + url.PathEscape(collection) + "/" + url.PathEscape(name)
}

// PauseAgent stops new starts of an agent; what runs goes on.
func (c *Client) PauseAgent(ctx context.Context, name string) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: objectPath(Agents, name) + ":pause", body: struct{}{}, repeatable: true})
	return err
}

// ResumeAgent undoes PauseAgent.
func (c *Client) ResumeAgent(ctx context.Context, name string) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: objectPath(Agents, name) + ":resume", body: struct{}{}, repeatable: true})
	return err
}

// StatsFilter narrows Stats. Zero fields select all; a zero Window is the server's default.
type StatsFilter struct {
	Agent, Tenant string
	Window        time.Duration
}

// Stats returns counts and latencies.
func (c *Client) Stats(ctx context.Context, f StatsFilter) (*Stats, error) {
	q := url.Values{}
	set(q, "agent", f.Agent)
	set(q, "tenant", or(f.Tenant, c.tenant))
	if f.Window > 0 {
		q.Set("window", f.Window.String())
	}
	out := new(Stats)
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/stats", query: q, repeatable: true, out: out})
	return out, err
}

// Version says what the server is.
func (c *Client) Version(ctx context.Context) (*Version, error) {
	out := new(Version)
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/version", repeatable: true, out: out})
	return out, err
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func or(value, otherwise string) string {
	if value != "" {
		return value
	}
	return otherwise
}
