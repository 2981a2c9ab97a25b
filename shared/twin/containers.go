package twin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Container is a container instance that runs.
type Container struct {
	ID       string
	Resource string // full name of the service, task, pool or instance
	PIDs     []int  // of its containers, each leads a process group
	Began    time.Time
	// ColdStart is how long it took from the decision to start it until it was up; 0 while it starts.
	ColdStart time.Duration
}

// Containers are the container instances that run below a name, which may have "-" for any id and be shorter than the
// instances' own: Parent(), or a job. "" is all of them. The oldest comes first.
func (t *Twin) Containers(below string) []Container {
	t.mu.Lock()
	var found []*unit
	for _, u := range t.units {
		if within(u.plan.resource, below) {
			found = append(found, u)
		}
	}
	t.mu.Unlock()
	all := make([]Container, len(found))
	for i, u := range found {
		all[i] = u.view()
	}
	slices.SortFunc(all, func(a, b Container) int { return byAge(a.Began, a.ID, b.Began, b.ID) })
	return all
}

func byAge(a time.Time, aID string, b time.Time, bID string) int {
	return cmp.Or(a.Compare(b), cmp.Compare(aID, bID))
}

func (u *unit) view() Container {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := Container{ID: u.id, Resource: u.plan.resource, Began: u.began}
	if !u.up.IsZero() {
		c.ColdStart = u.up.Sub(u.began)
	}
	for _, p := range u.procs {
		c.PIDs = append(c.PIDs, p.PID())
	}
	return c
}

// within reports whether a name is, or lies anywhere below, another.
func within(name, above string) bool {
	if above == "" {
		return true
	}
	n, a := strings.Split(name, "/"), strings.Split(above, "/")
	if len(a) > len(n) {
		return false
	}
	for i := range a {
		if a[i] != "-" && a[i] != n[i] {
			return false
		}
	}
	return true
}

func (t *Twin) unit(id string) (*unit, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u, ok := t.units[id]
	if !ok {
		return nil, fmt.Errorf("container instance %.20s: it does not run", id)
	}
	return u, nil
}

// Kill ends a container instance now: by SIGKILL as a crash or a lost machine does, by SIGTERM with the grace as a
// preemption does. What the platform does about it follows: a task is tried again, a pool replaces the instance.
func (t *Twin) Kill(id string, by syscall.Signal) error {
	u, err := t.unit(id)
	if err != nil {
		return err
	}
	u.kill(by)
	return nil
}

// Cut parts a container instance from what Options.Through names, or mends that: open connections end, new ones are
// reset.
func (t *Twin) Cut(id string, cut bool) error {
	u, err := t.unit(id)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.links) == 0 {
		return fmt.Errorf("container instance %.20s: no variable of Options.Through is set in it", id)
	}
	for _, l := range u.links {
		l.set(cut)
	}
	return nil
}
