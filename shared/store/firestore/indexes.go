package firestore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/errand-run/errand/shared/store"
)

//go:generate go test -run TestIndexesFile . -update

// Index is a composite index of one collection: equalities first, then the order of the query. The platform keeps one
// direction in each, so a listing that goes both ways has two.
type Index struct {
	Collection string       `json:"collection"`
	Fields     []IndexField `json:"fields"`
}

// IndexField is a field of an index; Order is ASCENDING or DESCENDING.
type IndexField struct {
	Field string `json:"field"`
	Order string `json:"order"`
}

// Field is a field of a collection.
type Field struct {
	Collection string `json:"collection"`
	Field      string `json:"field"`
}

// Schema is what a database has to be told besides the documents.
type Schema struct {
	// Indexes that the closed set of reads needs, each used by one shape of query.
	Indexes []Index `json:"indexes"`
	// Exemptions are fields without automatic indexes: every field but the id, by which whole kinds are listed. Those of
	// a map hold for all that is in it.
	Exemptions []Field `json:"exemptions"`
	// TTL are fields whose passing deletes the document.
	TTL []Field `json:"ttl"`
}

// Indexes returns the one list of indexes, exemptions and expiries.
func Indexes() Schema {
	var s Schema
	kinds := slices.Sorted(maps.Keys(collections))
	index := func(collection string, fields ...IndexField) {
		s.Indexes = append(s.Indexes, Index{Collection: collection, Fields: fields})
	}
	exempt := func(collection string, fields ...string) {
		for _, f := range fields {
			s.Exemptions = append(s.Exemptions, Field{Collection: collection, Field: f})
		}
	}
	up := func(f string) IndexField { return IndexField{Field: f, Order: rising.String()} }
	down := func(f string) IndexField { return IndexField{Field: f, Order: falling.String()} }

	// 1. What every kind is found by.
	for _, k := range kinds {
		index(collections[k], up(fieldOwner), up(fieldID))
		index(collections[k], up(fieldTag), up(fieldID))
		exempt(collections[k], fieldDoc, fieldOwner, fieldTag)
	}
	// 2. What runs are found by. What rises with time for all runs stands behind a lane.
	runs := collections[store.KindRun]
	index(runs, up(fieldShard), up(fieldWake), up(fieldID))
	index(runs, up(fieldWorker), up(fieldID))
	for _, dir := range []func(string) IndexField{up, down} {
		index(runs, up(fieldLane), dir(fieldMade), dir(fieldID))
		index(runs, up(fieldTenant), up(fieldLane), dir(fieldMade), dir(fieldID))
		index(runs, up(fieldTenant), up(fieldAgent), up(fieldLane), dir(fieldMade), dir(fieldID))
		index(runs, up(fieldParent), dir(fieldMade), dir(fieldID))
		index(runs, up(fieldRoot), dir(fieldMade), dir(fieldID))
	}
	exempt(runs, fieldTenant, fieldAgent, fieldParent, fieldRoot, fieldWorker, fieldMade, fieldWake, fieldShard, fieldLane)
	// 3. Parts are found by name alone.
	exempt(partsCollection, fieldBody, fieldExpires)
	s.TTL = []Field{{Collection: partsCollection, Field: fieldExpires}}

	slices.SortFunc(s.Indexes, func(a, b Index) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(fmt.Sprint(a.Fields), fmt.Sprint(b.Fields)))
	})
	slices.SortFunc(s.Exemptions, func(a, b Field) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.Field, b.Field))
	})
	return s
}

// File is the list in the form that infrastructure code reads.
func (s Schema) File() ([]byte, error) {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the list of indexes: %w", err)
	}
	return append(b, '\n'), nil
}
