package firestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/store"
)

// fault is what becomes of one request.
type fault struct {
	code codes.Code
	lost bool   // the request was applied, and its reply is lost; else it never arrives
	then func() // what others do before the store hears of it
}

// faults decides about each request of a store by its number and method, once it is armed.
type faults struct {
	mu      sync.Mutex
	decide  func(n int, method string) *fault
	methods []string // of the requests so far
}

func (f *faults) arm(decide func(n int, method string) *fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide, f.methods = decide, nil
}

func (f *faults) next(method string) *fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.methods)
	f.methods = append(f.methods, path.Base(method))
	if f.decide == nil {
		return nil
	}
	return f.decide(n, path.Base(method))
}

func (f *fault) err() error {
	if f.then != nil {
		f.then()
	}
	return status.Error(f.code, "made by a test")
}

func (f *faults) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	x := f.next(method)
	if x != nil && !x.lost {
		return x.err()
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if x != nil {
		return x.err()
	}
	return err
}

func (f *faults) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	x := f.next(method)
	if x != nil && !x.lost {
		return nil, x.err()
	}
	cs, err := streamer(ctx, desc, cc, method, opts...)
	if x != nil && err == nil {
		return &brokenStream{cs, x}, nil
	}
	return cs, err
}

// brokenStream breaks where it should end.
type brokenStream struct {
	grpc.ClientStream
	f *fault
}

func (b *brokenStream) RecvMsg(m any) error {
	err := b.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return b.f.err()
	}
	return err
}

func openFaulty(t *testing.T) (*Store, *faults) {
	t.Helper()
	f := &faults{}
	return open(t, through(f.unary, f.stream)), f
}

// once makes the nth request fail.
func once(nth int, x fault) func(n int, method string) *fault {
	return func(n int, _ string) *fault {
		if n == nth {
			return &x
		}
		return nil
	}
}

var sentinels = []error{
	store.ErrExists, store.ErrConflict, store.ErrFenced, store.ErrTooLarge, store.ErrInvalid, store.ErrClosed, store.ErrNotFound,
}

// told is the outcome in the terms of the port; an outage is itself.
func told(err error) error {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return s
		}
	}
	return err
}

// versions of what a store holds, as another process reads it.
func versions(t *testing.T, s *Store, names ...name) map[name]int64 {
	t.Helper()
	other, got := again(t, s), map[name]int64{}
	for _, n := range names {
		docs, err := other.GetMany(t.Context(), n.kind, []string{n.id})
		if err != nil {
			t.Fatal(err)
		}
		got[n] = docs[0].Version
	}
	return got
}

func TestTheOutcomeToldIsTheTrueOneWhateverRequestFails(t *testing.T) {
	t.Parallel()
	const run, step, misc = store.KindRun, store.KindStep, store.KindMisc
	big := bytes.Repeat([]byte("0123456789"), 200_000)
	given := []store.Unit{unitOf(put(run, "a", 0, nil)), unitOf(put(misc, "old", 0, nil)), unitOf(put(misc, "old", 1, nil)), unitOf(ownedBy(put(step, "owned", 0, nil), "a"))}
	fenced := func(attempt int64, ws ...store.Write) store.Unit {
		u := unitOf(ws...)
		u.Fences = []store.Fence{{Run: "a", Attempt: attempt}}
		return u
	}
	purge := unitOf(remove(run, "a", 1))
	purge.Purge = []string{"a"}
	cases := map[string]struct {
		unit  store.Unit
		want  error
		state map[name]int64
	}{
		"a creation":                            {unitOf(put(misc, "new", 0, nil)), nil, map[name]int64{{misc, "new"}: 1}},
		"a creation of what exists":             {unitOf(put(misc, "old", 0, nil)), store.ErrExists, map[name]int64{{misc, "old"}: 2}},
		"an update":                             {unitOf(put(run, "a", 1, nil)), nil, map[name]int64{{run, "a"}: 2}},
		"an update of an earlier version":       {unitOf(put(misc, "old", 1, nil)), store.ErrConflict, map[name]int64{{misc, "old"}: 2}},
		"a replacement of any version":          {unitOf(store.Write{Doc: store.Doc{Kind: misc, ID: "old", Version: 9}, Expect: store.AnyVersion}), nil, map[name]int64{{misc, "old"}: 9}},
		"a deletion":                            {unitOf(remove(misc, "old", 2)), nil, map[name]int64{{misc, "old"}: 0}},
		"a deletion of what does not exist":     {unitOf(remove(misc, "none", store.AnyVersion)), nil, map[name]int64{{misc, "none"}: 0}},
		"a unit of several writes":              {unitOf(put(run, "a", 1, nil), put(step, "s", 0, nil), remove(misc, "old", 2)), nil, map[name]int64{{run, "a"}: 2, {step, "s"}: 1, {misc, "old"}: 0}},
		"a unit that is refused":                {unitOf(put(run, "a", 1, nil), put(step, "s", 0, nil), put(misc, "old", 0, nil)), store.ErrExists, map[name]int64{{run, "a"}: 1, {step, "s"}: 0, {misc, "old"}: 2}},
		"a unit fenced by a run that it writes": {fenced(1, put(run, "a", 1, nil), put(step, "s", 0, nil)), nil, map[name]int64{{run, "a"}: 2, {step, "s"}: 1}},
		"a unit fenced by another run":          {fenced(1, put(step, "s", 0, nil)), nil, map[name]int64{{step, "s"}: 1}},
		"a unit of a fenced attempt":            {fenced(7, put(step, "s", 0, nil)), store.ErrFenced, map[name]int64{{step, "s"}: 0}},
		"a body in parts":                       {unitOf(put(store.KindPayload, "p", 0, big)), nil, map[name]int64{{store.KindPayload, "p"}: 1}},
		"a purge":                               {purge, nil, map[name]int64{{run, "a"}: 0, {step, "owned"}: 0}},
	}
	for title, c := range cases {
		// 1. Without faults, to see which requests there are.
		s, f := openFaulty(t)
		must(t, s, given...)
		f.arm(nil)
		if err := told(s.Commit(t.Context(), []store.Unit{c.unit})[0]); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", title, err, c.want)
			continue
		}
		methods := slices.Clone(f.methods)
		if len(methods) > 14 {
			methods = methods[:1] // a purge asks for each kind: one stands for all
		}
		// 2. Each request with each fault.
		for nth, method := range methods {
			for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.ResourceExhausted} {
				for _, lost := range []bool{true, false} {
					if lost && code == codes.ResourceExhausted {
						continue // it says that nothing was done
					}
					what := map[bool]string{true: "applied, and the reply lost", false: "not arrived"}[lost]
					t.Run(fmt.Sprintf("%s, whose %s is %s with %s", title, method, what, code), func(t *testing.T) {
						t.Parallel()
						s, f := openFaulty(t)
						must(t, s, given...)
						f.arm(once(nth, fault{code: code, lost: lost}))
						err := s.Commit(t.Context(), []store.Unit{c.unit})[0]
						if got := told(err); !errors.Is(got, c.want) || c.want == nil && err != nil {
							t.Errorf("got %v, want %v; requests: %v", err, c.want, f.methods)
						}
						if got := versions(t, s, slices.Collect(maps.Keys(c.state))...); !maps.Equal(got, c.state) {
							t.Errorf("stored is %v, want %v; requests: %v", got, c.state, f.methods)
						}
					})
				}
			}
		}
	}
}

func TestOutcomesWhileOthersWriteToo(t *testing.T) {
	t.Parallel()
	misc := store.KindMisc
	update := func(from int64) store.Unit { return unitOf(put(misc, "x", from, nil)) }
	cases := map[string]struct {
		unit  func() store.Unit
		lost  bool
		other func(s *Store) // between the request and what the store hears of it
		want  error          // nil for success, errOpen for an outcome that nobody knows
	}{
		"an update that arrived is written, and was updated since": {
			unit: func() store.Unit { return update(1) }, lost: true,
			other: func(s *Store) { must(t, s, update(2)) },
		},
		"an update that arrived, and was updated twice since, is not known": {
			unit: func() store.Unit { return update(1) }, lost: true,
			other: func(s *Store) { must(t, s, update(2), update(3)) }, want: errOpen,
		},
		"an update that did not arrive, before two others, is not known": {
			unit:  func() store.Unit { return update(1) },
			other: func(s *Store) { must(t, s, update(1), update(2)) }, want: errOpen,
		},
		"a creation that arrived is written, however often it was updated since": {
			unit: func() store.Unit { return unitOf(put(misc, "y", 0, nil)) }, lost: true,
			other: func(s *Store) {
				for v := range int64(5) {
					must(t, s, unitOf(put(misc, "y", v+1, nil)))
				}
			},
		},
		"an update that did not arrive, before another, is a conflict": {
			unit:  func() store.Unit { return update(1) },
			other: func(s *Store) { must(t, s, update(1)) }, want: store.ErrConflict,
		},
		"a creation that did not arrive, before another, exists": {
			unit:  func() store.Unit { return unitOf(put(misc, "y", 0, nil)) },
			other: func(s *Store) { must(t, s, unitOf(put(misc, "y", 0, nil))) }, want: store.ErrExists,
		},
		"a creation that arrived is written, whatever else was": {
			unit: func() store.Unit { return unitOf(put(misc, "y", 0, nil)) }, lost: true,
			other: func(s *Store) { must(t, s, update(1)) },
		},
		"a unit that arrived is known by any document that is left of it": {
			unit: func() store.Unit { return unitOf(put(misc, "x", 1, nil), put(misc, "y", 0, nil)) }, lost: true,
			other: func(s *Store) { must(t, s, update(2)) },
		},
		"a unit that did not arrive is refused by what is left as it was": {
			unit:  func() store.Unit { return unitOf(put(misc, "x", 1, nil), put(misc, "y", 0, nil)) },
			other: func(s *Store) { must(t, s, update(1), update(2)) }, want: store.ErrConflict,
		},
		"a replacement of any version comes after what others wrote": {
			unit:  func() store.Unit { return unitOf(put(misc, "x", store.AnyVersion, nil)) },
			other: func(s *Store) { must(t, s, update(1)) },
		},
	}
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s, f := openFaulty(t)
			other := again(t, s)
			must(t, s, unitOf(put(misc, "x", 0, nil)))
			f.arm(once(0, fault{code: codes.Unavailable, lost: c.lost, then: func() { c.other(other) }}))
			err := s.Commit(t.Context(), []store.Unit{c.unit()})[0]
			got := told(err)
			right := errors.Is(got, c.want)
			if errors.Is(c.want, errOpen) {
				right = err != nil && !slices.Contains(sentinels, got)
			}
			if !right {
				t.Errorf("got %v, want %v; requests: %v", err, c.want, f.methods)
			}
		})
	}
}

var errOpen = errors.New("an error that is no outcome")

func TestRepeatsAreBounded(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		decide   func(n int, method string) *fault
		open     bool // the outcome is an outage
		stored   int64
		requests int // at most
	}{
		"nothing arrives": {
			func(int, string) *fault { return &fault{code: codes.Unavailable} }, true, 0, 1 + failTries,
		},
		"no write arrives": {
			func(_ int, m string) *fault {
				if m == "BatchWrite" {
					return &fault{code: codes.Unavailable}
				}
				return nil
			}, true, 0, 2 * failTries,
		},
		"every write is throttled": {
			func(_ int, m string) *fault {
				if m == "BatchWrite" {
					return &fault{code: codes.ResourceExhausted}
				}
				return nil
			}, true, 0, failTries,
		},
		"every reply to a write is lost": {
			func(_ int, m string) *fault {
				if m == "BatchWrite" {
					return &fault{code: codes.DeadlineExceeded, lost: true}
				}
				return nil
			}, false, 1, 2,
		},
		"the reply is lost, and then nothing arrives": {
			func(n int, _ string) *fault { return &fault{code: codes.Unavailable, lost: n == 0} }, true, 1, 1 + failTries,
		},
		"the caller may not write": {
			func(int, string) *fault { return &fault{code: codes.PermissionDenied} }, true, 0, 1,
		},
	}
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s, f := openFaulty(t)
			f.arm(c.decide)
			err := s.Commit(t.Context(), []store.Unit{unitOf(put(store.KindMisc, "x", 0, nil))})[0]
			if c.open != (err != nil) || err != nil && slices.Contains(sentinels, told(err)) {
				t.Errorf("got %v, want an outage: %v", err, c.open)
			}
			if n := len(f.methods); n > c.requests {
				t.Errorf("%d requests, at most %d: %v", n, c.requests, f.methods)
			}
			x := name{store.KindMisc, "x"}
			if got := versions(t, s, x)[x]; got != c.stored {
				t.Errorf("stored is version %d, want %d", got, c.stored)
			}
		})
	}
}

func TestReadsAreRepeated(t *testing.T) {
	t.Parallel()
	s, f := openFaulty(t)
	must(t, s, unitOf(ownedBy(put(store.KindRun, "a", 0, bytes.Repeat([]byte("x"), inlineMost+1)), "b")))
	cases := map[string]func(ctx context.Context) ([]store.Doc, error){
		"get":    func(ctx context.Context) ([]store.Doc, error) { return s.GetMany(ctx, store.KindRun, []string{"a"}) },
		"owned":  func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, store.KindRun, "b", "", 5) },
		"tagged": func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, store.KindRun, "", "", 5) },
		"list": func(ctx context.Context) ([]store.Doc, error) {
			p, err := s.List(ctx, store.Query{By: store.ByTenant, Tenant: "acme", Limit: 5})
			return p.Docs, err
		},
	}
	for title, read := range cases {
		for _, lost := range []bool{true, false} {
			for nth := range 2 { // the document, and the parts of its body
				f.arm(once(nth, fault{code: codes.Unavailable, lost: lost}))
				docs, err := read(t.Context())
				if err != nil || len(docs) != 1 || len(docs[0].Body) != inlineMost+1 || len(f.methods) != 3 {
					t.Errorf("%s, request %d fails, at its end: %v: got %d documents, %v, after %v", title, nth, lost, len(docs), err, f.methods)
				}
			}
		}
	}
	f.arm(func(int, string) *fault { return &fault{code: codes.Unavailable} })
	if _, err := s.Get(t.Context(), store.KindRun, "a"); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("a store that cannot be reached says %v, want an outage", err)
	}
}

func TestWhatIsHeldIsGivenOnceThoughTheQueryBreaksOff(t *testing.T) {
	s, f := openFaulty(t)
	for i := range 5 {
		w := put(store.KindRun, fmt.Sprint("r-", i), 0, []byte("x"))
		w.Index.Worker = "w"
		must(t, s, unitOf(w))
	}
	f.arm(once(0, fault{code: codes.Unavailable, lost: true})) // it gives all, and breaks where it should end
	var got []string
	if err := s.Held(t.Context(), func(d store.Doc) error {
		got = append(got, d.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"r-0", "r-1", "r-2", "r-3", "r-4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(f.methods) != 2 {
		t.Errorf("requests %q, want a query and one more from where it broke off", f.methods)
	}
}
