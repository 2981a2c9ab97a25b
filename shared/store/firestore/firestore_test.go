package firestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(emulator.Main(m)) }

var projects atomic.Int64

// open opens an empty store: a project of its own in the emulator.
func open(t testing.TB, change ...func(o *Options)) *Store {
	t.Helper()
	o := Options{Project: fmt.Sprint("test-", projects.Add(1)), Endpoint: emulator.Firestore(t)}
	for _, c := range change {
		c(&o)
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// again opens the database of a store a second time, as another process does.
func again(t testing.TB, s *Store) *Store {
	t.Helper()
	return open(t, func(o *Options) { o.Project = strings.Split(s.database, "/")[1] })
}

// through has a store's requests pass interceptors.
func through(unary grpc.UnaryClientInterceptor, stream grpc.StreamClientInterceptor) func(o *Options) {
	return func(o *Options) {
		o.ClientOptions = append(o.ClientOptions,
			option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(unary)),
			option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(stream)))
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store { return open(t) })
}

func TestReopen(t *testing.T) {
	databases := map[string]string{}
	storetest.Reopen(t, func(t *testing.T, dir string) store.Store {
		return open(t, func(o *Options) {
			if databases[dir] == "" {
				databases[dir] = o.Project
			}
			o.Project = databases[dir]
		})
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	cases := map[string]struct {
		o    Options
		want string
	}{
		"no project":                {Options{}, `project "": want the id of a Google Cloud project`},
		"a project that is a path":  {Options{Project: "a/b"}, `project "a/b"`},
		"a database that is a path": {Options{Project: "p", Database: "d/e"}, `database "d/e": want the id of a database of project p`},
		"no room for requests":      {Options{Project: "p", Concurrency: -1}, "-1 requests at once: want 1 to 1000"},
		"no room for documents":     {Options{Project: "p", Known: -1}, "-1 documents to remember"},
		"nobody at the address":     {Options{Project: "p", Endpoint: "127.0.0.1:1"}, "open store firestore:p/(default) in the emulator on 127.0.0.1:1: read the versions"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if s, err := Open(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v; want %q", s, err, c.want)
			}
		})
	}
}

func TestDatabasesOfAProjectAreApart(t *testing.T) {
	a := open(t)
	b := open(t, func(o *Options) { o.Project, o.Database = strings.Split(a.database, "/")[1], "second" })
	must(t, a, unitOf(put(store.KindMisc, "x", 0, nil)))
	if _, err := b.Get(t.Context(), store.KindMisc, "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the other database has it: %v", err)
	}
	if want := b.place; !strings.Contains(b.Describe(), want) || b.Exclusive() {
		t.Errorf("it describes itself as %q, exclusive: %v", b.Describe(), b.Exclusive())
	}
}

func TestReadsTakeAnyBytes(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := put(store.KindRun, "aé", 0, nil)
	w.Owner, w.Index.WakeAt = "o", 1
	must(t, s, unitOf(w))
	ctx := t.Context()
	for title, c := range map[string]struct {
		read func() ([]store.Doc, error)
		want int
	}{
		"an owner that no document can have": {func() ([]store.Doc, error) { return s.Owned(ctx, store.KindRun, "\xff", "", 5) }, 0},
		"a tag that no document can have":    {func() ([]store.Doc, error) { return s.Tagged(ctx, store.KindRun, "t\xc3", "", 5) }, 0},
		"a kind that there is not":           {func() ([]store.Doc, error) { return s.Tagged(ctx, 99, "", "", 5) }, 0},
		"a part that there is not":           {func() ([]store.Doc, error) { return s.Due(ctx, 200, 5, 0, "", 5) }, 0},
		"a place before broken bytes":        {func() ([]store.Doc, error) { return s.Owned(ctx, store.KindRun, "o", "a\xc3", 5) }, 0},
		"a place behind broken bytes":        {func() ([]store.Doc, error) { return s.Due(ctx, 0, 5, 1, "A\xff", 5) }, 1},
		"a listing by a broken key": {func() ([]store.Doc, error) {
			p, err := s.List(ctx, store.Query{By: store.ByTenant, Tenant: "\xff", Limit: 5})
			return p.Docs, err
		}, 0},
		"a document by broken bytes": {func() ([]store.Doc, error) {
			docs, err := s.GetMany(ctx, store.KindRun, []string{"\xff"})
			if len(docs) == 1 && docs[0].Version == 0 {
				docs = nil
			}
			return docs, err
		}, 0},
	} {
		if docs, err := c.read(); err != nil || len(docs) != c.want {
			t.Errorf("%s finds %d documents, %v; want %d", title, len(docs), err, c.want)
		}
	}
}

func TestWhatWasNotWrittenByAStoreIsRefused(t *testing.T) {
	good := func() *pb.Document {
		w := put(store.KindRun, "a", 0, nil)
		return &pb.Document{Name: "the-name", Fields: encode(&w.Doc, head{token: "t", first: "t"})}
	}
	if _, err := decode(store.KindRun, good()); err != nil {
		t.Fatal(err)
	}
	inner := func(d *pb.Document) map[string]*pb.Value { return d.GetFields()[fieldDoc].GetMapValue().GetFields() }
	for title, c := range map[string]struct {
		damage func(d *pb.Document)
		want   string
	}{
		"nothing":                 {func(d *pb.Document) { d.Fields = nil }, "no id"},
		"no version":              {func(d *pb.Document) { delete(d.GetFields(), fieldDoc) }, "version is 0"},
		"a version of text":       {func(d *pb.Document) { inner(d)[fieldVersion] = text("1") }, "version is 0"},
		"parts below none":        {func(d *pb.Document) { inner(d)[fieldParts] = number(-1) }, "-1 parts"},
		"parts without end":       {func(d *pb.Document) { inner(d)[fieldParts] = number(1 << 40) }, "parts"},
		"a body without end":      {func(d *pb.Document) { inner(d)[fieldSize] = number(1 << 40) }, "bytes"},
		"a shard after the last":  {func(d *pb.Document) { d.GetFields()[fieldShard] = number(256 + 32) }, "shard is 288"},
		"a shard below the first": {func(d *pb.Document) { d.GetFields()[fieldShard] = number(-1) }, "shard is -1"},
	} {
		d := good()
		c.damage(d)
		if _, err := decode(store.KindRun, d); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "the-name") {
			t.Errorf("%s: got %v, want the document's name and %q", title, err, c.want)
		}
	}
}

// put is a write of the version after the expected one.
func put(kind store.Kind, id string, expect int64, body []byte) store.Write {
	w := store.Write{Doc: store.Doc{Kind: kind, ID: id, Version: max(expect, 0) + 1, Body: body}, Expect: expect}
	if kind == store.KindRun {
		w.Index = &store.Index{Tenant: "acme", Agent: "echo", Root: id, CreatedAt: 1, Attempt: 1}
	}
	return w
}

func remove(kind store.Kind, id string, expect int64) store.Write {
	return store.Write{Doc: store.Doc{Kind: kind, ID: id}, Expect: expect, Delete: true}
}

func ownedBy(w store.Write, run string) store.Write {
	w.Owner = run
	return w
}

var units atomic.Int64

func unitOf(ws ...store.Write) store.Unit {
	return store.Unit{Token: fmt.Sprint("unit-", units.Add(1)), Writes: ws}
}

func must(t testing.TB, s *Store, us ...store.Unit) {
	t.Helper()
	for i, err := range s.Commit(context.WithoutCancel(t.Context()), us) {
		if err != nil {
			t.Fatalf("unit %d: %v", i, err)
		}
	}
}
