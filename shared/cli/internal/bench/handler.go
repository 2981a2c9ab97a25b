package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/agent"
)

// task is the input of a run: what its handler does. Nothing is a task as well.
type task struct {
	Steps int    `json:"steps,omitempty"` // durable steps to record, one after the other
	Wait  string `json:"wait,omitempty"`  // signal to wait for
	// Unit is the number of a task that takes a while and has an effect outside; 0 for none.
	Unit int           `json:"unit,omitempty"`
	Work time.Duration `json:"work,omitempty"`
}

// answer is its output.
type answer struct {
	Began int64 `json:"began"` // when the handler was called, in nanoseconds since 1970
}

// handler is the agent that is measured.
type handler struct {
	path string
	log  *os.File // nil without effects
}

func newHandler(path string) (*handler, error) {
	if path == "" {
		return new(handler), nil
	}
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	h := &handler{path, log}
	return h, h.note(noteProcess, os.Getpid())
}

func (h *handler) handle(ctx context.Context, r *agent.Run, t task) (answer, error) {
	began := time.Now()
	for n := range t.Steps {
		_, err := agent.Step(ctx, r, "step-"+strconv.Itoa(n+1), func(context.Context) (bool, error) { return true, nil })
		if err != nil {
			return answer{}, err
		}
	}
	if t.Wait != "" {
		if _, err := agent.Wait[bool](ctx, r, t.Wait, 0); err != nil {
			return answer{}, err
		}
	}
	if t.Unit > 0 {
		if err := h.toil(ctx, r, t); err != nil {
			return answer{}, err
		}
	}
	return answer{Began: began.UnixNano()}, nil
}

// effectName is of the effect of a task with a unit.
const effectName = "note"

// toil works for a while and then does something to the outside world, once.
func (h *handler) toil(ctx context.Context, r *agent.Run, t task) error {
	if h.log == nil {
		return agent.Fail("NO_LOG", errors.New("a task with an effect needs a log"))
	}
	if err := h.note(noteBegun, t.Unit); err != nil {
		return err
	}
	if err := pause(ctx, t.Work); err != nil {
		return err
	}
	_, err := agent.Once(ctx, r, effectName, agent.Effect[bool]{
		Request:   t.Unit,
		Do:        func(context.Context, string) (bool, error) { return true, h.note(noteEffect, t.Unit) },
		Reconcile: func(context.Context, string) (bool, bool, error) { return h.effected(t.Unit) },
		OnUnknown: agent.Reconcile,
		Timeout:   time.Second,
	})
	if err != nil {
		return err
	}
	return h.note(noteDone, t.Unit)
}

func (h *handler) effected(unit int) (result, happened bool, err error) {
	d, err := readDiary(h.path)
	if err != nil {
		return false, false, err
	}
	return true, d.effects[unit] > 0, nil
}

// What a diary notes: a process began, a body began, its effect happened, it ended.
const (
	noteProcess = "process"
	noteBegun   = "begun"
	noteEffect  = "effect"
	noteDone    = "done"
)

// note appends in one call, so that a killed writer leaves a whole line or none.
func (h *handler) note(what string, n int) error {
	_, err := fmt.Fprintf(h.log, "%s %d %d\n", what, n, time.Now().UnixNano())
	return err
}

// diary is what handlers did, as the outside world saw it. It is no part of the product and forgets nothing.
type diary struct {
	process         int // the last one that began
	bodies, effects map[int]int
	begun           map[int]time.Time // when the unit's last body began
	done            map[int]bool
}

func readDiary(path string) (*diary, error) {
	d := &diary{bodies: map[int]int{}, effects: map[int]int{}, begun: map[int]time.Time{}, done: map[int]bool{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	// Handlers write meanwhile: of a line that crosses a page of memory, only the beginning may be there yet.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	scan := bufio.NewScanner(bytes.NewReader(text))
	for scan.Scan() {
		var what string
		var n int
		var at int64
		if _, err := fmt.Sscanf(scan.Text(), "%s %d %d", &what, &n, &at); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", path, scan.Text(), err)
		}
		switch what {
		case noteProcess:
			d.process = n
		case noteBegun:
			d.bodies[n]++
			d.begun[n] = time.Unix(0, at)
		case noteEffect:
			d.effects[n]++
		case noteDone:
			d.done[n] = true
		}
	}
	return d, scan.Err()
}

// left is how long the rest of n units takes from a moment on, each being one piece of work and slots of them going on at
// a time: without anything lost, and nothing between one piece and the next.
func (d *diary) left(now time.Time, n, slots int, piece time.Duration) time.Duration {
	free := make([]time.Duration, 0, slots) // when each slot has done what it does
	for unit, began := range d.begun {
		if !d.done[unit] && len(free) < slots {
			free = append(free, max(piece-now.Sub(began), 0))
		}
	}
	free = append(free, make([]time.Duration, slots-len(free))...)
	slices.Sort(free)
	// All pieces are equal: slots take the queue in turn, in the order in which they come free.
	for i := range n - len(d.begun) {
		free[i%slots] += piece
	}
	return slices.Max(free)
}

// busy is which part of the slots' time before a moment went into work, from 0 to 1.
func (d *diary) busy(now time.Time, slots int, piece time.Duration) float64 {
	var first time.Time
	var worked time.Duration
	for _, began := range d.begun {
		if began.After(now) {
			continue // a second body
		}
		if first.IsZero() || began.Before(first) {
			first = began
		}
		worked += min(now.Sub(began), piece)
	}
	if first.IsZero() {
		return 0
	}
	return float64(worked) / float64(now.Sub(first)) / float64(slots)
}

// repeated sums how often something happened beyond the first time.
func repeated(times map[int]int) int {
	sum := 0
	for _, n := range times {
		sum += max(n-1, 0)
	}
	return sum
}
