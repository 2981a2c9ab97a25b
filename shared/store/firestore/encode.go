package firestore

import (
	"fmt"
	"math"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/errand-run/errand/shared/store"
)

// Fields of a document. What reads look for stands at the top, and is absent when empty, so that no index holds it; all
// else is in the map fieldDoc, which no index holds.
const (
	fieldID     = "id"
	fieldOwner  = "owner"
	fieldTag    = "tag"
	fieldTenant = "tenant"
	fieldAgent  = "agent"
	fieldParent = "parent"
	fieldRoot   = "root"
	fieldWorker = "worker"
	fieldMade   = "createdAt"
	fieldWake   = "wakeAt"
	fieldShard  = "shard" // see shardOf
	// fieldLane spreads what is ordered by time over as many key ranges: see lanes.
	fieldLane = "lane"
	fieldDoc  = "doc"

	// Within fieldDoc.
	fieldVersion = "version"
	fieldToken   = "token"
	fieldPrior   = "prior" // token of the version before
	fieldFirst   = "first" // token of the unit that created the document
	fieldAttempt = "attempt"
	fieldBody    = "body"
	fieldParts   = "parts" // how many hold the body
	fieldSize    = "size"  // bytes in all of them

	// Of a part.
	fieldExpires = "expireAt"
)

// lanes is over how many key ranges runs are spread that are listed by their creation. One range takes about 500 new runs
// a second, and one query merges up to 30 of them.
const lanes = 16

// shards is over how many key ranges each part of the due index is spread.
const shards = 8

// shardOf is the key range n of a part.
func shardOf(part store.Part, n int) int { return int(part)/32*shards + n }

// partOf is the part that a shard belongs to.
func partOf(shard int64) store.Part { return store.Part(min(shard/shards*32, math.MaxUint8)) }

// headMask asks for what a head needs, and for no body.
func headMask() *pb.DocumentMask {
	paths := []string{fieldID}
	for _, f := range []string{fieldVersion, fieldToken, fieldPrior, fieldFirst, fieldAttempt, fieldParts} {
		paths = append(paths, fieldDoc+"."+f)
	}
	return &pb.DocumentMask{FieldPaths: paths}
}

func text(s string) *pb.Value  { return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}} }
func number(n int64) *pb.Value { return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}} }
func bytesOf(b []byte) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_BytesValue{BytesValue: b}}
}

// encode makes the fields of a document as it will be; its body is inline, or in parts when h says so.
func encode(d *store.Doc, h head) map[string]*pb.Value {
	// 1. What every document has.
	inner := map[string]*pb.Value{fieldVersion: number(d.Version), fieldToken: text(h.token), fieldFirst: text(h.first)}
	if h.prior != "" {
		inner[fieldPrior] = text(h.prior)
	}
	if h.parts > 0 {
		inner[fieldParts], inner[fieldSize] = number(int64(h.parts)), number(int64(len(d.Body)))
	} else if len(d.Body) > 0 {
		inner[fieldBody] = bytesOf(d.Body)
	}
	fields := map[string]*pb.Value{
		fieldID:  text(d.ID),
		fieldDoc: {ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: inner}}},
	}
	set := func(field, value string) {
		if value != "" {
			fields[field] = text(value)
		}
	}
	set(fieldOwner, d.Owner)
	set(fieldTag, d.Tag)
	// 2. What runs are found by.
	if x := d.Index; x != nil {
		set(fieldTenant, x.Tenant)
		set(fieldAgent, x.Agent)
		set(fieldParent, x.Parent)
		set(fieldRoot, x.Root)
		set(fieldWorker, x.Worker)
		fields[fieldMade] = number(x.CreatedAt)
		fields[fieldShard] = number(int64(shardOf(x.Part, int(key(d.ID)[0])%shards)))
		fields[fieldLane] = number(int64(laneOf(d.ID)))
		if x.WakeAt > 0 {
			fields[fieldWake] = number(x.WakeAt)
		}
		inner[fieldAttempt] = number(x.Attempt)
	}
	return fields
}

// laneOf spreads runs by id, as evenly as hashes are.
func laneOf(id string) int { return int(key(id)[0]) % lanes }

// stored is a document as it was read.
type stored struct {
	doc  store.Doc
	head head
	size int // of a body in parts
}

// decode reads a document of a kind. A masked one has no more than the mask lets through.
func decode(kind store.Kind, d *pb.Document) (stored, error) {
	f := d.GetFields()
	inner := f[fieldDoc].GetMapValue().GetFields()
	out := stored{
		doc: store.Doc{
			Kind: kind, ID: f[fieldID].GetStringValue(), Version: inner[fieldVersion].GetIntegerValue(),
			Owner: f[fieldOwner].GetStringValue(), Tag: f[fieldTag].GetStringValue(), Body: inner[fieldBody].GetBytesValue(),
		},
		head: head{
			version: inner[fieldVersion].GetIntegerValue(), attempt: inner[fieldAttempt].GetIntegerValue(),
			updated: d.GetUpdateTime().AsTime(), token: inner[fieldToken].GetStringValue(),
			prior: inner[fieldPrior].GetStringValue(), first: inner[fieldFirst].GetStringValue(),
			parts: int(inner[fieldParts].GetIntegerValue()),
		},
		size: int(inner[fieldSize].GetIntegerValue()),
	}
	if kind == store.KindRun {
		out.doc.Index = &store.Index{
			Tenant: f[fieldTenant].GetStringValue(), Agent: f[fieldAgent].GetStringValue(),
			Parent: f[fieldParent].GetStringValue(), Root: f[fieldRoot].GetStringValue(), Worker: f[fieldWorker].GetStringValue(),
			Attempt: inner[fieldAttempt].GetIntegerValue(), CreatedAt: f[fieldMade].GetIntegerValue(),
			WakeAt: f[fieldWake].GetIntegerValue(), Part: partOf(f[fieldShard].GetIntegerValue()),
		}
	}
	bad := func(why string) (stored, error) {
		return stored{}, fmt.Errorf("document %s was not written by this store: %s; was the database used for something else?", d.GetName(), why)
	}
	shard := f[fieldShard].GetIntegerValue()
	switch {
	case out.doc.ID == "":
		return bad("it has no id")
	case out.doc.Version < 1:
		return bad(fmt.Sprintf("its version is %d", out.doc.Version))
	case out.head.parts < 0 || out.head.parts > maxParts:
		return bad(fmt.Sprintf("its body has %d parts, and %d at most may be", out.head.parts, maxParts))
	case out.size < 0 || out.size > store.MaxBody:
		return bad(fmt.Sprintf("its body has %d bytes, and %d at most may be", out.size, store.MaxBody))
	case shard < 0 || !partOf(shard).Valid():
		return bad(fmt.Sprintf("its shard is %d", shard))
	}
	return out, nil
}
