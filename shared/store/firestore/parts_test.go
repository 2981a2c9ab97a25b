package firestore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"

	"github.com/errand-run/errand/shared/store"
)

// noise is a body that no two parts of are alike.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

// partsIn lists the parts in a database, each with whether it expires.
func partsIn(t *testing.T, s *Store) map[string]bool {
	t.Helper()
	it := s.client.ListDocuments(t.Context(), &pb.ListDocumentsRequest{
		Parent: s.database + "/documents", CollectionId: partsCollection, PageSize: 300, Mask: &pb.DocumentMask{FieldPaths: []string{fieldExpires}},
	})
	out := map[string]bool{}
	for d, err := range it.All() {
		if err != nil {
			t.Fatal(err)
		}
		_, out[d.GetName()] = d.GetFields()[fieldExpires]
	}
	return out
}

func TestBodiesOfEverySizeComeBackEqualOrAreRefused(t *testing.T) { // case F15
	t.Parallel()
	for title, c := range map[string]struct {
		size, parts int
	}{
		"99 KB":                       {99_000, 0},
		"101 KB":                      {101_000, 0},
		"the most that is inline":     {inlineMost, 0},
		"one byte more":               {inlineMost + 1, 1},
		"one byte less than 1 MiB":    {1<<20 - 1, 2},
		"one byte more than 1 MiB":    {1<<20 + 1, 2},
		"parts that are exactly full": {3 * partSize, 3},
		"10 MiB":                      {10 << 20, 11},
		"the longest of the port":     {store.MaxBody, maxParts},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s, body := open(t), noise(c.size)
			must(t, s, unitOf(put(store.KindPayload, "p", 0, body)))
			d, err := again(t, s).Get(t.Context(), store.KindPayload, "p")
			if err != nil || !bytes.Equal(d.Body, body) {
				t.Fatalf("got %d bytes, %v; want the %d bytes that were written", len(d.Body), err, len(body))
			}
			parts := partsIn(t, s)
			for p, expires := range parts {
				if expires {
					t.Errorf("part %s of a body that is in use expires", p)
				}
			}
			if len(parts) != c.parts {
				t.Errorf("%d parts, want %d", len(parts), c.parts)
			}
		})
	}
	t.Run("more is refused with its size and the limit, and nothing is left", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		err := s.Commit(t.Context(), []store.Unit{unitOf(put(store.KindPayload, "p", 0, make([]byte, store.MaxBody+1)))})[0]
		if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(store.MaxBody+1)) || !strings.Contains(err.Error(), fmt.Sprint(store.MaxBody)) {
			t.Errorf("got %v", err)
		}
		if parts := partsIn(t, s); len(parts) > 0 || s.Stats().Writes > 0 {
			t.Errorf("%d parts and %d writes are left", len(parts), s.Stats().Writes)
		}
	})
}

func TestPartsGoWithTheirDocument(t *testing.T) {
	t.Parallel()
	const kind = store.KindPayload
	large, larger := noise(2*partSize), noise(4*partSize)
	for title, c := range map[string]struct {
		unit store.Unit
		want error
		left int
	}{
		"when it is replaced by a smaller one":             {unitOf(put(kind, "p", 1, []byte("small"))), nil, 0},
		"when it is replaced by a larger one":              {unitOf(put(kind, "p", 1, larger)), nil, 4},
		"when it is replaced whatever it was":              {unitOf(put(kind, "p", store.AnyVersion, larger)), nil, 4},
		"when it is deleted":                               {unitOf(remove(kind, "p", 1)), nil, 0},
		"when it is deleted whatever it was":               {unitOf(remove(kind, "p", store.AnyVersion)), nil, 0},
		"when its run is purged":                           {store.Unit{Token: "purge", Purge: []string{"r"}}, nil, 0},
		"and those of a unit that is refused go with that": {unitOf(put(kind, "p", 0, larger)), store.ErrExists, 2},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			must(t, s, unitOf(ownedBy(put(kind, "p", 0, large), "r")))
			// By a process that remembers nothing.
			if err := again(t, s).Commit(t.Context(), []store.Unit{c.unit})[0]; !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if parts := partsIn(t, s); len(parts) != c.left {
				t.Errorf("%d parts are left, want %d", len(parts), c.left)
			}
		})
	}
}

func TestPartsOfACrashExpire(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := &faults{}
	s := open(t, through(f.unary, f.stream), func(o *Options) { o.Clock = func() time.Time { return now } })
	f.arm(func(_ int, method string) *fault {
		if method == "Commit" {
			return &fault{code: codes.Unavailable}
		}
		return nil
	})
	if err := s.Commit(t.Context(), []store.Unit{unitOf(put(store.KindPayload, "p", 0, noise(2*partSize)))})[0]; err == nil {
		t.Fatal("it was written")
	}
	parts := partsIn(t, s)
	for p, expires := range parts {
		if !expires {
			t.Errorf("part %s stays for ever", p)
		}
	}
	if len(parts) != 2 {
		t.Errorf("%d parts, want 2", len(parts))
	}
}

func TestABodyWithoutAllOfItsPartsIsGone(t *testing.T) { // case F15
	t.Parallel()
	s := open(t)
	must(t, s, unitOf(ownedBy(put(store.KindPayload, "p", 0, noise(3*partSize)), "r")))
	h, _ := s.known.get(name{store.KindPayload, "p"})
	s.removeParts([]string{s.partPath(name{store.KindPayload, "p"}, h.token, 1)})
	_, err := s.Get(t.Context(), store.KindPayload, "p")
	if !errors.Is(err, store.ErrNotFound) || !strings.Contains(err.Error(), `payload "p"`) || !strings.Contains(err.Error(), "part 2 of 3") {
		t.Errorf("got %v, want that part 2 of 3 of the payload is gone", err)
	}
	docs, err := s.Owned(t.Context(), store.KindPayload, "r", "", 5)
	if err != nil || len(docs) != 1 || docs[0].ID != "p" || docs[0].Version != 1 || docs[0].Body != nil {
		t.Errorf("a listing has %+v, %v; want the payload without a body", docs, err)
	}
	must(t, s, store.Unit{Token: "purge", Purge: []string{"r"}})
	if parts := partsIn(t, s); len(parts) > 0 {
		t.Errorf("%d parts are left after the purge", len(parts))
	}
}

func TestAReaderMeetsOneBodyOrTheNext(t *testing.T) {
	t.Parallel()
	// The document is replaced between the read of it and that of its parts.
	f := &faults{}
	s := open(t, through(f.unary, f.stream))
	other := again(t, s)
	first, next := noise(2*partSize), noise(2*partSize+1)
	must(t, s, unitOf(put(store.KindPayload, "p", 0, first)))
	f.arm(func(n int, _ string) *fault {
		if n == 1 {
			must(t, other, unitOf(put(store.KindPayload, "p", 1, next)))
		}
		return nil
	})
	d, err := s.Get(t.Context(), store.KindPayload, "p")
	if err != nil || d.Version != 2 || !bytes.Equal(d.Body, next) {
		t.Errorf("got version %d with %d bytes, %v; want the next", d.Version, len(d.Body), err)
	}
}

func TestAUnitLargerThanOneCommitIsWrittenAsOne(t *testing.T) {
	t.Parallel()
	s := open(t)
	var ws []store.Write
	for i := range 12 {
		ws = append(ws, put(store.KindStep, fmt.Sprint("s-", i), 0, noise(800_000+i)))
	}
	must(t, s, unitOf(put(store.KindMisc, "there", 0, nil)))
	refused := unitOf(append([]store.Write{put(store.KindMisc, "there", 0, nil)}, ws...)...)
	if err := s.Commit(t.Context(), []store.Unit{refused})[0]; !errors.Is(err, store.ErrExists) {
		t.Fatalf("got %v, want ErrExists", err)
	}
	if parts := partsIn(t, s); len(parts) > 0 {
		t.Errorf("%d parts of a refused unit are left", len(parts))
	}
	must(t, s, unitOf(ws...))
	for i := range ws {
		d, err := s.Get(t.Context(), store.KindStep, ws[i].ID)
		if err != nil || !bytes.Equal(d.Body, ws[i].Body) {
			t.Errorf("step %d came back with %d bytes, %v", i, len(d.Body), err)
		}
	}
}
