package server

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// fakeState is shared state in memory; attempt 1 of every run is fenced.
type fakeState struct {
	docs   map[string]control.StateDoc
	values map[string]json.RawMessage
}

func (f *fakeState) StateValue(_ context.Context, tenant, key string) (control.StateDoc, json.RawMessage, error) {
	d, ok := f.docs[tenant+"/"+key]
	if !ok {
		return d, nil, &control.Refusal{Code: control.CodeNotFound, Detail: "no such state"}
	}
	return d, f.values[tenant+"/"+key], nil
}

func (f *fakeState) ListState(_ context.Context, tenant, prefix string, limit int, pageToken string) (docs []control.StateDoc, next string, err error) {
	for _, id := range slices.Sorted(maps.Keys(f.docs)) {
		if strings.HasPrefix(id, tenant+"/"+prefix) && id > pageToken {
			if len(docs) == limit {
				return docs, tenant + "/" + docs[limit-1].Key, nil
			}
			docs = append(docs, f.docs[id])
		}
	}
	return docs, "", nil
}

func (f *fakeState) write(w *control.StateWrite) (control.StateDoc, error) {
	d := f.docs[w.Tenant+"/"+w.Key]
	switch {
	case w.By.N == 1:
		return d, run.ErrFenced
	case w.Expect != d.Version && (w.Expect != control.StateAny || d.Version == 0):
		return d, &control.Refusal{Code: control.CodeStale, Detail: "stale", Current: strconv.FormatInt(d.Version, 10)}
	}
	return control.StateDoc{Tenant: w.Tenant, Key: w.Key, Version: d.Version + 1, UpdatedAt: instant, By: w.By, Value: run.Payload{Size: len(w.Value)}}, nil
}

func (f *fakeState) PutState(_ context.Context, w control.StateWrite) (control.StateDoc, error) {
	d, err := f.write(&w)
	if err == nil {
		if f.docs == nil {
			f.docs, f.values = make(map[string]control.StateDoc), make(map[string]json.RawMessage)
		}
		f.docs[w.Tenant+"/"+w.Key], f.values[w.Tenant+"/"+w.Key] = d, w.Value
	}
	return d, err
}

func (f *fakeState) DeleteState(_ context.Context, w control.StateWrite) error {
	_, err := f.write(&w)
	if err == nil {
		delete(f.docs, w.Tenant+"/"+w.Key)
	}
	return err
}
