package arrivals

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Limits of recorded arrivals.
const (
	MaxRecorded = 2_000_000
	MaxLine     = 64 << 10 // bytes
	maxFaults   = 20       // lines that are reported
	maxAttempts = 100      // of a line
)

// Line is one recorded submission, in a file with one JSON object a line.
type Line struct {
	At       time.Time     `json:"at"`
	Tenant   string        `json:"tenant,omitempty"` // default when empty
	Agent    string        `json:"agent"`
	Priority *int          `json:"priority,omitempty"`
	Session  string        `json:"session,omitempty"`
	Attempts []LineAttempt `json:"attempts"` // at least one; the last one stands for those beyond
	Input    int64         `json:"inputTokens,omitempty"`
	Output   int64         `json:"outputTokens,omitempty"`
	USD      float64       `json:"usd,omitempty"` // for tokens
}

// LineAttempt is how long an attempt took and, unless it succeeded, how it failed.
type LineAttempt struct {
	Took  fleet.Duration `json:"took"`
	Class string         `json:"class,omitempty"`
	Code  string         `json:"code,omitempty"`
}

// Read reads arrivals in either form: a document of kind Arrivals, or recorded lines of JSON. The name is for messages.
func Read(name string, r io.Reader) (*Set, error) {
	b := bufio.NewReaderSize(r, 4096)
	head, err := b.Peek(4096)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("read arrivals from %s: %w", name, err)
	}
	if isLines(head) {
		return readLines(name, b)
	}
	var f File
	if err := manifest.Read(manifest.File{Name: name, Data: b}, &f); err != nil {
		return nil, err
	}
	return f.set()
}

// isLines reports whether the text begins with a recorded line rather than with a document.
func isLines(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return len(line) > 0 && line[0] == '{' && !bytes.Contains(head, []byte(`"apiVersion"`)) && !bytes.Contains(head, []byte(`apiVersion:`))
}

// kinds finds the kind of a recorded submission.
type kinds map[kindKey]*forecast.Kind

type kindKey struct {
	tenant, agent, session string
	priority               int
}

// maxKinds bounds them.
const maxKinds = 200_000

func (k kinds) of(tenant, agent, session string, priority *int) (*forecast.Kind, error) {
	key := kindKey{tenant, agent, session, -1}
	if priority != nil {
		key.priority = *priority
	}
	if known := k[key]; known != nil {
		return known, nil
	}
	if len(k) >= maxKinds {
		return nil, fmt.Errorf("more than %d different tenants, agents, priorities and sessions", maxKinds)
	}
	made := &forecast.Kind{Tenant: tenant, Agent: agent, Priority: priority}
	if session != "" {
		made.Sessions = []string{session}
	}
	k[key] = made
	return made, nil
}

func readLines(name string, r io.Reader) (*Set, error) {
	var list []forecast.Arrival
	var faults []manifest.Issue
	found := make(kinds)
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, MaxLine)
	for n := 1; scan.Scan(); n++ {
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 {
			continue
		}
		if len(list) >= MaxRecorded {
			return nil, fmt.Errorf("%s:%d: more than %d recorded runs; take a shorter stretch", name, n, MaxRecorded)
		}
		a, err := parseLine(text, found)
		if err == nil {
			list = append(list, a)
			continue
		}
		if len(faults) == maxFaults {
			return nil, &manifest.Error{Issues: faults, Cut: true}
		}
		faults = append(faults, manifest.Issue{File: name, Line: n, Column: 1, Message: err.Error()})
	}
	if err := scan.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s: a line has more than %d bytes", name, MaxLine)
	} else if err != nil {
		return nil, fmt.Errorf("read arrivals from %s: %w", name, err)
	}
	if len(faults) > 0 {
		return nil, &manifest.Error{Issues: faults}
	}
	set, err := recorded(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return set, nil
}

// parseLine reads one line, strictly.
func parseLine(text []byte, found kinds) (forecast.Arrival, error) {
	var a forecast.Arrival
	var l Line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return a, fmt.Errorf("not a recorded run: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, errors.New("something follows the object on its line")
	}
	if l.Tenant == "" {
		l.Tenant = fleet.DefaultTenant
	}
	switch {
	case run.At(l.At) <= 0:
		return a, errors.New("at: required; write it like " + defaultStart.Format(time.RFC3339))
	case !fleet.IsName(l.Agent):
		return a, fmt.Errorf("agent: %.80q is not a name", l.Agent)
	case !fleet.IsName(l.Tenant):
		return a, fmt.Errorf("tenant: %.80q is not a name", l.Tenant)
	case l.Priority != nil && (*l.Priority < 0 || *l.Priority > fleet.MaxPriority):
		return a, fmt.Errorf("priority: %d is outside 0 to %d", *l.Priority, fleet.MaxPriority)
	case len(l.Session) > run.MaxName:
		return a, fmt.Errorf("session: more than %d bytes", run.MaxName)
	case len(l.Attempts) == 0 || len(l.Attempts) > maxAttempts:
		return a, fmt.Errorf("attempts: want 1 to %d, each with how long it took", maxAttempts)
	case l.Input < 0 || l.Output < 0 || !(l.USD >= 0 && l.USD <= run.MaxUSD) || l.Input > run.MaxTokens || l.Output > run.MaxTokens:
		return a, errors.New("inputTokens, outputTokens, usd: below zero or too much")
	}
	rec := &forecast.Recorded{Usage: run.Usage{InputTokens: l.Input, OutputTokens: l.Output, USD: l.USD}}
	for i, x := range l.Attempts {
		if x.Took < 0 || x.Took.Std() > forecast.MaxWindow {
			return a, fmt.Errorf("attempts[%d].took: %s is outside 0 to %s", i, x.Took, forecast.MaxWindow)
		}
		if x.Class != "" && !slices.Contains(fleet.Classes(), x.Class) {
			return a, fmt.Errorf("attempts[%d].class: %.80q is not one of %v", i, x.Class, fleet.Classes())
		}
		rec.Attempts = append(rec.Attempts, forecast.RecordedAttempt{Took: x.Took.Std(), Class: run.Class(x.Class), Code: x.Code})
	}
	kind, err := found.of(l.Tenant, l.Agent, l.Session, l.Priority)
	return forecast.Arrival{At: run.At(l.At), Kind: kind, Recorded: rec}, err
}

// Stored reads the runs that a store has recorded, the oldest first: when they came and what their attempts took. Runs
// that have not ended count as they are so far; one that never ran is taken to end at once.
func Stored(ctx context.Context, s store.Store, since, until run.Instant) (*Set, error) {
	var list []forecast.Arrival
	found := make(kinds)
	q := store.Query{By: store.ByCreated, Oldest: true, Since: int64(since), Until: int64(until), Limit: store.MaxPage}
	for {
		page, err := s.List(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("list the runs of the store: %w", err)
		}
		for _, doc := range page.Docs {
			r, err := run.DecodeRecord(doc.Body)
			if err != nil {
				return nil, fmt.Errorf("run %s of the store: %w", doc.ID, err)
			}
			if r.Kind != "" && r.Kind != run.KindAgent {
				continue
			}
			if len(list) >= MaxRecorded {
				return nil, fmt.Errorf("the store has more than %d runs in that time; take a shorter stretch", MaxRecorded)
			}
			a, err := recall(r, found)
			if err != nil {
				return nil, err
			}
			list = append(list, a)
		}
		if page.Next == "" {
			return recorded(list)
		}
		q.After = page.Next
	}
}

// recall is a stored run as an arrival. What was given back before it started took nothing and is left out.
func recall(r *run.Record, found kinds) (forecast.Arrival, error) {
	rec := &forecast.Recorded{Usage: r.Usage}
	for i := range r.Attempts {
		x := &r.Attempts[i]
		if x.StartedAt == 0 {
			continue
		}
		at := forecast.RecordedAttempt{Took: max(x.EndedAt, x.StartedAt).Sub(x.StartedAt), Code: x.Code}
		if x.Outcome == run.OutcomeFailed {
			at.Class = x.Class
			if at.Class == "" {
				at.Class = run.ClassUser
			}
		}
		rec.Attempts = append(rec.Attempts, at)
	}
	priority := r.Priority
	kind, err := found.of(r.Tenant, r.Agent, r.Session, &priority)
	return forecast.Arrival{At: max(r.CreatedAt, r.NotBefore), Kind: kind, Recorded: rec}, err
}

// recorded makes a set of a list.
func recorded(list []forecast.Arrival) (*Set, error) {
	if len(list) == 0 {
		return nil, errors.New("no run is recorded")
	}
	slices.SortStableFunc(list, func(a, b forecast.Arrival) int { return int(min(max(a.At-b.At, -1), 1)) })
	for i := range list {
		list[i].Seed = uint64(i) // of the jitter of its backoffs
	}
	first, last := list[0].At, list[len(list)-1].At
	took := last.Sub(first)
	if took >= forecast.MaxWindow {
		return nil, fmt.Errorf("runs come from %s to %s; want less than %d days from the first to the last; take a shorter stretch",
			first.Time().Format(time.RFC3339), last.Time().Format(time.RFC3339), forecast.MaxWindow/(24*time.Hour))
	}
	// Until the last one has come, and as long again at most, so that its end is seen.
	window := min(took+max(min(took, time.Hour), time.Minute), forecast.MaxWindow)
	return &Set{
		Start: first, Window: window, Expected: float64(len(list)),
		Source: func(uint64) forecast.Source { return &replay{list} },
	}, nil
}

// replay gives a list.
type replay struct{ list []forecast.Arrival }

// Next implements forecast.Source.
func (r *replay) Next() (forecast.Arrival, bool, error) {
	if len(r.list) == 0 {
		return forecast.Arrival{}, false, nil
	}
	a := r.list[0]
	r.list = r.list[1:]
	return a, true, nil
}
