package cloudrun

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
)

// kind is a collection of the Admin API, or what a bare address stands for.
type kind string

const (
	services    kind = "services"
	instances   kind = "instances"
	jobs        kind = "jobs"
	workerPools kind = "workerPools"
	byAddress   kind = "" // served somewhere
)

// resource is what a target names.
type resource struct {
	kind kind
	name string // projects/P/locations/R/COLLECTION/X, or the address
}

func parseResource(text string) (resource, error) {
	if strings.Contains(text, "://") {
		u, err := checkAddress(text)
		return resource{byAddress, u}, err
	}
	parts := strings.Split(text, "/")
	if len(parts) == 6 && parts[0] == "projects" && parts[2] == "locations" && parts[1] != "" && parts[3] != "" && parts[5] != "" {
		switch k := kind(parts[4]); k {
		case services, instances, jobs, workerPools:
			return resource{k, text}, nil
		}
	}
	return resource{}, fmt.Errorf("resource %.200q: want projects/PROJECT/locations/REGION/COLLECTION/NAME with collection services, instances, jobs or workerPools, or an https address", text)
}

// checkAddress gives a service's address without a slash at its end. A token is sent there: it is https, or on this
// machine.
func checkAddress(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("address %.200q: want https://HOST, with a path at most", text)
	case u.Scheme == "https", u.Scheme == "http" && loopback(u.Hostname()):
		return strings.TrimRight(u.String(), "/"), nil
	}
	return "", fmt.Errorf("address %.200q: want https, for a token goes there; http serves on this machine alone", text)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// cache keeps what was fetched, by name, for a while. The zero value with ttl set is ready. Safe for concurrent use.
type cache[V any] struct {
	ttl     time.Duration
	mu      sync.Mutex
	entries map[string]*entry[V]
}

type entry[V any] struct {
	turn  chan struct{} // held by whoever fetches
	value V
	until time.Time
}

// maxEntries bounds a cache; there are no more targets than that.
const maxEntries = 10_000

// get returns what is kept, or fetches it: once for all who wait. An error is kept for nobody.
func (c *cache[V]) get(ctx context.Context, name string, fetch func(context.Context) (V, error)) (value V, err error) {
	c.mu.Lock()
	if c.entries == nil || len(c.entries) >= maxEntries {
		c.entries = make(map[string]*entry[V])
	}
	e := c.entries[name]
	if e == nil {
		e = &entry[V]{turn: make(chan struct{}, 1)}
		c.entries[name] = e
	}
	c.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return value, ctx.Err()
	}
	defer func() { <-e.turn }()
	if time.Now().Before(e.until) {
		return e.value, nil
	}
	if value, err = fetch(ctx); err == nil {
		e.value, e.until = value, time.Now().Add(c.ttl)
	}
	return value, err
}

// drop forgets what is kept under a name.
func (c *cache[V]) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, name)
}
