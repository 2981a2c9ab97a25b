package cloudbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// number is an environment variable's value, or def where there is none.
func number(t *testing.T, name string, def int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number from 1", name, text)
	}
	return n
}

// declared are the objects of a text.
func declared(t *testing.T, text string) []fleet.Object {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	var out []fleet.Object
	for _, o := range set.Objects {
		out = append(out, o.Object)
	}
	return out
}

// leader is the control process that leads, and its epoch; nil while none says that it does.
func leader(ctx context.Context, b *cloudbox.Box) (*cloudbox.Control, int64) {
	var leads *cloudbox.Control
	var newest int64
	for _, c := range b.Control() {
		if ok, epoch, err := c.Leads(ctx); err == nil && ok && epoch >= newest {
			leads, newest = c, epoch
		}
	}
	return leads, newest
}

// awaitLeader waits for a leader.
func awaitLeader(t *testing.T, b *cloudbox.Box) (*cloudbox.Control, int64) {
	t.Helper()
	var c *cloudbox.Control
	var epoch int64
	outside.Eventually(t, time.Minute, "a control process leads", func() bool {
		c, epoch = leader(t.Context(), b)
		return c != nil
	})
	return c, epoch
}

// stored is a run with its history, as they are in the store.
type stored struct {
	record *run.Record
	events []run.Event
}

// histories reads every run and checks that its history folds to its record and never has two attempts under way.
func histories(t *testing.T, b *cloudbox.Box) []stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	st, err := b.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var out []stored
	q := store.Query{By: store.ByTenant, Tenant: "default", Limit: store.MaxPage}
	for {
		page, err := st.List(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Docs {
			r, err := run.DecodeRecord(d.Body)
			if err != nil {
				t.Fatal(err)
			}
			s := stored{record: r}
			// A short history is in the record alone.
			if len(r.Tail) == 0 || r.Tail[0].Seq != 1 {
				docs, err := st.Owned(ctx, store.KindHistory, r.ID, "", store.MaxPage)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range docs {
					chunk, err := run.DecodeEvents(d.Body)
					if err != nil {
						t.Fatal(err)
					}
					s.events = append(s.events, chunk...)
				}
			}
			s.events = append(s.events, r.Tail...)
			folds(t, s)
			if err := oneAtATime(s.events); err != nil {
				t.Errorf("run %s: %v", r.ID, err)
			}
			out = append(out, s)
		}
		if page.Next == "" {
			return out
		}
		q.After = page.Next
	}
}

func folds(t *testing.T, s stored) {
	t.Helper()
	folded, err := run.Fold(s.record.Spec, s.events)
	if err != nil {
		t.Errorf("history of run %s: %v", s.record.ID, err)
		return
	}
	have := s.record.Clone()
	have.Tail = nil
	if !bytes.Equal(run.Encode(have), run.Encode(folded)) {
		t.Errorf("history of run %s does not fold to its record:\nrecord %+v\nfolded %+v", s.record.ID, have, folded)
	}
}

// oneAtATime tells a history in which an attempt is assigned twice, or begins while another one holds the run.
func oneAtATime(events []run.Event) error {
	last, holds := 0, 0
	for _, e := range events {
		switch e.Type {
		case run.EvAssigned:
			if holds != 0 || e.Attempt <= last {
				return fmt.Errorf("event %d assigns attempt %d; the last one was %d, and %d holds the run", e.Seq, e.Attempt, last, holds)
			}
			last, holds = e.Attempt, e.Attempt
		case run.EvStarted:
			if e.Attempt != holds {
				return fmt.Errorf("event %d starts attempt %d while %d holds the run", e.Seq, e.Attempt, holds)
			}
		case run.EvStartFailed, run.EvReleased, run.EvParked, run.EvBackedOff, run.EvSucceeded, run.EvFailed, run.EvCanceled:
			holds = 0
		}
	}
	return nil
}

func TestOneAtATime(t *testing.T) {
	ev := func(kind run.EventType, n int) run.Event { return run.Event{Type: kind, Attempt: n} }
	for name, c := range map[string]struct {
		events []run.Event
		ok     bool
	}{
		"one after the other":           {[]run.Event{ev(run.EvAssigned, 1), ev(run.EvStarted, 1), ev(run.EvBackedOff, 1), ev(run.EvAssigned, 2), ev(run.EvStarted, 2)}, true},
		"a number that is given twice":  {[]run.Event{ev(run.EvAssigned, 1), ev(run.EvStartFailed, 1), ev(run.EvAssigned, 1)}, false},
		"a second beside the first":     {[]run.Event{ev(run.EvAssigned, 1), ev(run.EvStarted, 1), ev(run.EvAssigned, 2)}, false},
		"a start of one that is fenced": {[]run.Event{ev(run.EvAssigned, 1), ev(run.EvBackedOff, 1), ev(run.EvAssigned, 2), ev(run.EvStarted, 1)}, false},
	} {
		if err := oneAtATime(c.events); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
