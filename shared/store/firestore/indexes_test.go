package firestore

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/errand-run/errand/shared/store"
)

var update = flag.Bool("update", false, "write generated files")

func TestIndexesFile(t *testing.T) {
	file := filepath.Join("..", "..", "..", "terraform", "modules", "firestore", "indexes.json")
	want, err := Indexes().File()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is stale: run make generate (-code +file):\n%s", file, diff)
	}
}

// shapes collects the queries that a store sends.
type shapes struct {
	mu  sync.Mutex
	all []*pb.StructuredQuery
}

func (s *shapes) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := streamer(ctx, desc, cc, method, opts...)
	return &shapeStream{cs, s}, err
}

type shapeStream struct {
	grpc.ClientStream
	s *shapes
}

func (c *shapeStream) SendMsg(m any) error {
	if q, ok := m.(*pb.RunQueryRequest); ok {
		c.s.mu.Lock()
		c.s.all = append(c.s.all, q.GetStructuredQuery())
		c.s.mu.Unlock()
	}
	return c.ClientStream.SendMsg(m)
}

// need is the index that a query needs: its equalities, in any order, and then its order. The field of an inequality
// leads the order, as the platform asks.
type need struct {
	collection string
	equal      []string
	order      []IndexField
}

func needOf(t *testing.T, q *pb.StructuredQuery) need {
	t.Helper()
	n := need{collection: q.GetFrom()[0].GetCollectionId()}
	var bounds []string
	var visit func(f *pb.StructuredQuery_Filter)
	visit = func(f *pb.StructuredQuery_Filter) {
		for _, sub := range f.GetCompositeFilter().GetFilters() {
			visit(sub)
		}
		ff := f.GetFieldFilter()
		switch {
		case ff == nil:
		case ff.GetOp() == pb.StructuredQuery_FieldFilter_EQUAL, ff.GetOp() == pb.StructuredQuery_FieldFilter_IN:
			n.equal = append(n.equal, ff.GetField().GetFieldPath())
			if v := ff.GetValue().GetArrayValue().GetValues(); len(v) > disjuncts {
				t.Errorf("%d values of %s in one query, and the platform takes %d", len(v), ff.GetField().GetFieldPath(), disjuncts)
			}
		default:
			bounds = append(bounds, ff.GetField().GetFieldPath())
		}
	}
	visit(q.GetWhere())
	for _, o := range q.GetOrderBy() {
		n.order = append(n.order, IndexField{o.GetField().GetFieldPath(), o.GetDirection().String()})
	}
	for _, b := range bounds {
		if len(n.order) == 0 || n.order[0].Field != b {
			t.Errorf("query of %s is bounded by %s, and not ordered by it: %v", n.collection, b, n.order)
		}
	}
	return n
}

func (n need) servedBy(x Index) bool {
	if x.Collection != n.collection || len(x.Fields) != len(n.equal)+len(n.order) {
		return false
	}
	var lead []string
	for _, f := range x.Fields[:len(n.equal)] {
		lead = append(lead, f.Field)
	}
	slices.Sort(lead)
	return slices.Equal(lead, slices.Sorted(slices.Values(n.equal))) && slices.Equal(x.Fields[len(n.equal):], n.order)
}

func TestEveryQueryIsServedByOneIndexAndEveryIndexServes(t *testing.T) {
	t.Parallel()
	var seen shapes
	pass := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	s := open(t, through(pass, seen.stream))
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	// 1. Every read of the port, in every form.
	_, err := s.Due(ctx, store.PartEnded, 10, 5, "a", 10)
	check(err)
	for kind := range collections {
		_, err = s.Owned(ctx, kind, "r", "a", 10)
		check(err)
		_, err = s.Tagged(ctx, kind, "t", "a", 10)
		check(err)
		_, err = s.Tagged(ctx, kind, "", "a", 10)
		check(err)
	}
	check(s.Held(ctx, func(store.Doc) error { return nil }))
	for by := store.ByCreated; by <= store.ByRoot; by++ {
		for _, oldest := range []bool{true, false} {
			q := store.Query{By: by, Tenant: "t", Agent: "a", Parent: "p", Root: "r", Oldest: oldest, Limit: 1}
			_, err = s.List(ctx, q)
			check(err)
			q.Since, q.Until = 1, 2
			_, err = s.List(ctx, q)
			check(err)
		}
	}
	must(t, s, store.Unit{Token: "purge", Purge: []string{"r", "q"}})
	// 2. Each against the list, and against what the platform indexes by itself: the fields that are not exempt.
	schema := Indexes()
	all := slices.Clone(schema.Indexes)
	exempt := map[Field]bool{}
	for _, f := range schema.Exemptions {
		exempt[f] = true
	}
	for _, c := range slices.Sorted(maps.Values(collections)) {
		for _, f := range []string{fieldID, fieldDoc, fieldOwner, fieldTag, fieldTenant, fieldAgent, fieldParent, fieldRoot, fieldWorker, fieldMade, fieldWake, fieldShard, fieldLane} {
			runs := slices.Contains([]string{fieldID, fieldDoc, fieldOwner, fieldTag}, f)
			if !exempt[Field{c, f}] && (runs || c == collections[store.KindRun]) {
				all = append(all, Index{Collection: c, Fields: []IndexField{{f, rising.String()}}})
			}
		}
	}
	used := make([]int, len(all))
	for _, q := range seen.all {
		n := needOf(t, q)
		var by []string
		for i, x := range all {
			if n.servedBy(x) {
				used[i]++
				by = append(by, fmt.Sprint(x.Fields))
			}
		}
		if len(by) != 1 {
			t.Errorf("query of %s where %v order by %v is served by %d indexes: %s", n.collection, n.equal, n.order, len(by), strings.Join(by, ", "))
		}
	}
	for i, n := range used {
		if n == 0 {
			t.Errorf("no query uses the index of %s over %v", all[i].Collection, all[i].Fields)
		}
	}
}

func TestEveryStoredFieldIsExemptOrListed(t *testing.T) {
	exempt := map[Field]bool{}
	for _, f := range Indexes().Exemptions {
		exempt[f] = true
	}
	if n := len(exempt); n > 150 {
		t.Errorf("%d exemptions, and a database takes 200 in all", n)
	}
	for kind, collection := range collections {
		d := store.Doc{Kind: kind, ID: "a", Version: 1, Owner: "o", Tag: "t", Body: []byte("b")}
		if kind == store.KindRun {
			d.Index = &store.Index{Tenant: "t", Agent: "a", Parent: "p", Root: "r", Worker: "w", Attempt: 1, CreatedAt: 1, WakeAt: 1, Part: store.PartHeld}
		}
		for field := range encode(&d, head{token: "token", prior: "prior", first: "first"}) {
			if indexed := !exempt[Field{collection, field}]; indexed != (field == fieldID) {
				t.Errorf("field %s of %s has automatic indexes: %v", field, collection, indexed)
			}
		}
	}
}
