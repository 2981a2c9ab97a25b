package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Shared state: documents by key that runs of a tenant read and write. Each write names the version that it replaces, so
// that of two who read the same version one is told that the other was first; the write of an attempt also requires, in
// the same unit, that the attempt still holds its run.

// Bounds of shared state.
const (
	MaxStateKey   = 256     // bytes of a key
	MaxStateValue = 1 << 20 // bytes of a value
	MaxStatePage  = 100     // documents of one page of a list
	maxStateNonce = 128
)

// Expectations of a write of shared state beside a version.
const (
	StateAbsent = int64(0)  // nothing is there
	StateAny    = int64(-1) // something is there, of whatever version
)

// keepGone is for how long the version of a deleted document is kept: so long no version of its key comes again.
const (
	keepGone  = 7 * 24 * time.Hour
	tagGone   = "gone"  // no tenant's: theirs begin with tagHeld
	tagHeld   = "held/" // and the tenant
	goneStep  = 16      // deleted documents that one deletion looks at
	stateRoot = "state/"
)

// StateWriter is who writes: an attempt of a run, or a person or program.
type StateWriter struct {
	Run   string
	N     int
	Actor string // the agent, for an attempt
}

// StateDoc is a document of shared state.
type StateDoc struct {
	Tenant, Key string
	Version     int64 // 1 or more, rising with each write, also over a deletion
	Value       run.Payload
	UpdatedAt   run.Instant
	By          StateWriter
}

// StateWrite is one change of a document.
type StateWrite struct {
	Tenant, Key string
	Value       json.RawMessage
	Expect      int64 // the version that is replaced, StateAbsent or StateAny
	// Nonce makes a repeat of the same write the same write; "" for none.
	Nonce string
	By    StateWriter
}

// keptState is a document as it is stored.
type keptState struct {
	Value   run.Payload `json:"value"`
	At      run.Instant `json:"at"`
	Run     string      `json:"run,omitempty"`
	Attempt int         `json:"attempt,omitempty"`
	By      string      `json:"by,omitempty"`
	Nonce   string      `json:"nonce,omitempty"`
	Gone    bool        `json:"gone,omitempty"`
}

// goneCursor walks over deleted documents, some with each deletion.
type goneCursor struct {
	mu    sync.Mutex
	after string
}

func stateID(tenant, key string) string { return tenant + "/" + key }

// CheckStateKey says what is wrong with a key, or nil.
func CheckStateKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case len(key) > MaxStateKey:
		return fmt.Errorf("the key has %d bytes; want at most %d", len(key), MaxStateKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("the key %.80q has an empty part, or one of dots; want parts of letters, digits and -._~@:=+ with slashes between", key)
		}
		if at := strings.IndexFunc(part, func(r rune) bool { return !isStateRune(r) }); at >= 0 {
			return fmt.Errorf("the key %.80q has %.10q in it; want letters, digits and -._~@:=+ with slashes between", key, part[at:])
		}
	}
	return nil
}

func isStateRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._~@:=+", r)
}

// State returns a document, or a *Refusal with CodeNotFound.
func (p *Plane) State(ctx context.Context, tenant, key string) (StateDoc, error) {
	if err := CheckStateKey(key); err != nil {
		return StateDoc{}, refuse(CodeInvalid, "%v", err)
	}
	doc, kept, err := p.keptState(ctx, tenant, key)
	if err != nil {
		return StateDoc{}, err
	}
	if doc.Version == 0 || kept.Gone {
		return StateDoc{}, refuse(CodeNotFound, "tenant %s has no state under %s", tenant, key)
	}
	return kept.doc(tenant, key, doc.Version), nil
}

// StateValue returns a document with its value, also while others write it.
func (p *Plane) StateValue(ctx context.Context, tenant, key string) (StateDoc, json.RawMessage, error) {
	for range conflictTries {
		doc, err := p.State(ctx, tenant, key)
		if err != nil {
			return doc, nil, err
		}
		value, err := p.Value(ctx, doc.Value)
		if errors.Is(err, ErrValueGone) {
			continue // it was written anew between the two reads
		}
		if err != nil {
			return doc, nil, fmt.Errorf("read state %s of tenant %s: %w", key, tenant, err)
		}
		return doc, value, nil
	}
	return StateDoc{}, nil, contended(tenant, key)
}

// ListState returns documents whose keys begin with the prefix, by key, without large values, and the token of the next
// page.
func (p *Plane) ListState(ctx context.Context, tenant, prefix string, limit int, pageToken string) ([]StateDoc, string, error) {
	if err := checkStatePrefix(prefix); err != nil {
		return nil, "", refuse(CodeInvalid, "%v", err)
	}
	limit = min(max(limit, 1), MaxStatePage)
	first := stateID(tenant, prefix)
	after := pageToken
	if !strings.HasPrefix(pageToken, first) {
		if pageToken != "" {
			return nil, "", strayToken("the state")
		}
		after = before(first)
	}
	docs, err := p.store.Tagged(ctx, store.KindState, tagHeld+tenant, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list state of tenant %s: %w", tenant, err)
	}
	list := make([]StateDoc, 0, len(docs))
	for _, doc := range docs {
		key, ok := strings.CutPrefix(doc.ID, tenant+"/")
		if !ok || !strings.HasPrefix(key, prefix) {
			return list, "", nil
		}
		kept, err := decodeState(doc)
		if err != nil {
			return nil, "", err
		}
		list = append(list, kept.doc(tenant, key, doc.Version))
	}
	if len(docs) < limit {
		return list, "", nil
	}
	return list, docs[len(docs)-1].ID, nil
}

func checkStatePrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return CheckStateKey(strings.TrimSuffix(prefix, "/"))
}

// before is an id after which all that begins with the prefix comes, and nothing else that is one: ids are ASCII.
func before(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(rune(prefix[last]-1)) + "\U0010ffff"
}

// PutState writes a document. The error is a *Refusal, CodeStale with the version that is there where another is
// expected; it wraps run.ErrFenced for an attempt that no longer holds its run.
func (p *Plane) PutState(ctx context.Context, w StateWrite) (StateDoc, error) {
	var value bytes.Buffer
	switch err := CheckStateKey(w.Key); {
	case err != nil:
		return StateDoc{}, refuse(CodeInvalid, "%v", err)
	case len(w.Nonce) > maxStateNonce:
		return StateDoc{}, refuse(CodeInvalid, "the nonce has %d bytes; want at most %d", len(w.Nonce), maxStateNonce)
	case len(w.Value) > MaxStateValue:
		return StateDoc{}, refuse(CodeTooLarge, "the value of state %s has %d bytes; want at most %d: keep it elsewhere and write where", w.Key, len(w.Value), MaxStateValue)
	case json.Compact(&value, w.Value) != nil:
		return StateDoc{}, refuse(CodeInvalid, "the value of state %s is not JSON", w.Key)
	}
	return p.changeState(ctx, &w, value.Bytes())
}

// DeleteState removes a document; Value and Nonce are not looked at. Errors are as of PutState.
func (p *Plane) DeleteState(ctx context.Context, w StateWrite) error {
	if err := CheckStateKey(w.Key); err != nil {
		return refuse(CodeInvalid, "%v", err)
	}
	w.Nonce = ""
	if _, err := p.changeState(ctx, &w, nil); err != nil {
		return err
	}
	p.sweepState(context.WithoutCancel(ctx))
	return nil
}

// changeState writes a document, or deletes it where value is nil.
func (p *Plane) changeState(ctx context.Context, w *StateWrite, value []byte) (StateDoc, error) {
	for range conflictTries {
		// 1. What is there, and whether it is what the writer thinks.
		doc, kept, err := p.keptState(ctx, w.Tenant, w.Key)
		if err != nil {
			return StateDoc{}, err
		}
		if w.Nonce != "" && kept.Nonce == w.Nonce && kept.writer() == w.By && !kept.Gone {
			return kept.doc(w.Tenant, w.Key, doc.Version), nil // this very write came before, and its answer was lost
		}
		current := doc.Version
		if kept.Gone {
			current = 0
		}
		switch {
		case current == 0 && value == nil:
			return StateDoc{}, refuse(CodeNotFound, "tenant %s has no state under %s", w.Tenant, w.Key)
		case w.Expect == StateAny && current > 0:
		case w.Expect != current:
			return StateDoc{}, staleState(w, current)
		}
		// 2. What is to be there, in one unit with the fence.
		next := keptState{At: max(p.now(), kept.At), Run: w.By.Run, Attempt: w.By.N, By: w.By.Actor, Nonce: w.Nonce, Gone: value == nil}
		unit := store.Unit{Token: p.newID()}
		version, tag := doc.Version+1, tagGone
		if value != nil {
			tag = tagHeld + w.Tenant
			next.Value = run.Payload{Size: len(value), Inline: value}
			if len(value) > run.MaxInline {
				next.Value = run.Payload{Size: len(value), Ref: stateRoot + stateID(w.Tenant, w.Key) + "@" + strconv.FormatInt(version, 10)}
				unit.Writes = append(unit.Writes, store.Write{Expect: store.AnyVersion, Doc: store.Doc{
					Kind: store.KindPayload, ID: next.Value.Ref, Version: 1, Body: value,
				}})
			}
		}
		if old := kept.Value.Ref; old != "" && old != next.Value.Ref {
			unit.Writes = append(unit.Writes, store.Write{Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindPayload, ID: old}})
		}
		body, err := json.Marshal(&next)
		if err != nil {
			return StateDoc{}, fmt.Errorf("encode state %s of tenant %s: %w", w.Key, w.Tenant, err)
		}
		unit.Writes = append(unit.Writes, store.Write{Expect: doc.Version, Doc: store.Doc{
			Kind: store.KindState, ID: stateID(w.Tenant, w.Key), Version: version, Tag: tag, Body: body,
		}})
		if w.By.Run != "" {
			unit.Fences = []store.Fence{{Run: w.By.Run, Attempt: int64(w.By.N)}}
		}
		// 3. Who was first is told by the store.
		err = p.store.Commit(ctx, []store.Unit{unit})[0]
		switch {
		case err == nil:
			return next.doc(w.Tenant, w.Key, version), nil
		case errors.Is(err, store.ErrFenced):
			return StateDoc{}, fmt.Errorf("write state %s: attempt %s: %w", w.Key, runtime.AttemptID(w.By.Run, w.By.N), run.ErrFenced)
		case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists):
			return StateDoc{}, fmt.Errorf("write state %s of tenant %s: %w", w.Key, w.Tenant, err)
		}
	}
	return StateDoc{}, contended(w.Tenant, w.Key)
}

func contended(tenant, key string) error {
	return &Refusal{Code: CodeUnavailable, Detail: fmt.Sprintf("state %s of tenant %s is contended", key, tenant), RetryAfter: time.Second}
}

// staleState tells a writer what is there instead of what it expected.
func staleState(w *StateWrite, current int64) error {
	r := &Refusal{Code: CodeStale, Current: strconv.FormatInt(current, 10)}
	switch {
	case current == 0:
		r.Detail = fmt.Sprintf("state %s does not exist; write it with version 0 to create it", w.Key)
	case w.Expect == StateAbsent:
		r.Detail = fmt.Sprintf("state %s exists, in version %d; read it and write over that version", w.Key, current)
	default:
		r.Detail = fmt.Sprintf("state %s is in version %d, the write is over version %d; read it again and decide anew", w.Key, current, w.Expect)
	}
	return r
}

// keptState reads a document; its version is 0 where none was ever written.
func (p *Plane) keptState(ctx context.Context, tenant, key string) (store.Doc, keptState, error) {
	doc, err := p.store.Get(ctx, store.KindState, stateID(tenant, key))
	if errors.Is(err, store.ErrNotFound) {
		return store.Doc{}, keptState{}, nil
	}
	if err != nil {
		return doc, keptState{}, fmt.Errorf("read state %s of tenant %s: %w", key, tenant, err)
	}
	kept, err := decodeState(doc)
	return doc, kept, err
}

func decodeState(doc store.Doc) (keptState, error) {
	var kept keptState
	if err := json.Unmarshal(doc.Body, &kept); err != nil {
		return kept, fmt.Errorf("decode state %s: %w", doc.ID, err)
	}
	return kept, nil
}

func (k *keptState) writer() StateWriter { return StateWriter{Run: k.Run, N: k.Attempt, Actor: k.By} }

func (k *keptState) doc(tenant, key string, version int64) StateDoc {
	return StateDoc{Tenant: tenant, Key: key, Version: version, Value: k.Value, UpdatedAt: k.At, By: k.writer()}
}

// sweepState forgets the versions of what was deleted long ago, a few at a time, in turn over all of them.
func (p *Plane) sweepState(ctx context.Context) {
	p.gone.mu.Lock()
	defer p.gone.mu.Unlock()
	docs, err := p.store.Tagged(ctx, store.KindState, tagGone, p.gone.after, goneStep)
	if err != nil {
		return // the next deletion does it
	}
	p.gone.after = ""
	if len(docs) == goneStep {
		p.gone.after = docs[goneStep-1].ID
	}
	var units []store.Unit
	for _, doc := range docs {
		kept, err := decodeState(doc)
		if err != nil || kept.At.Add(keepGone) > p.now() {
			continue
		}
		units = append(units, store.Unit{Token: p.newID(), Writes: []store.Write{
			{Expect: doc.Version, Delete: true, Doc: store.Doc{Kind: store.KindState, ID: doc.ID}},
		}})
	}
	if len(units) == 0 {
		return
	}
	for _, err := range p.store.Commit(ctx, units) {
		if err != nil && !errors.Is(err, store.ErrConflict) {
			p.log.WarnContext(ctx, "forget what was deleted of the shared state", "error", err)
			return
		}
	}
}
