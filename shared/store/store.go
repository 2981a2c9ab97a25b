// Package store is the port to durable state: a closed set of indexed reads and one write.
//
// The store holds documents. It does not know what a run is: the control stages decide, encode the outcome as a
// [Unit] of versioned writes, and hand over many units at once. Every rule about concurrency is in the unit: the
// version that each document must have, and the attempt that must still hold a run.
//
// Drivers live below this folder (memory, sqlite) and pass the one suite in storetest. This package imports the
// standard library only.
package store

import (
	"context"
	"errors"
)

// Kind names a family of documents. Ids are unique within a kind.
type Kind uint8

const (
	// KindRun is a run's record. Only runs carry an [Index].
	KindRun Kind = iota + 1
	// KindHistory is a chunk of history that spilled out of its run's record; Owner is the run.
	KindHistory
	// KindStep is the recorded end of a durable step; Owner is the run.
	KindStep
	// KindReceipt is the receipt of an external effect; Owner is the run that touched it last.
	KindReceipt
	// KindPayload is an input, output or result too large for its record. Payloads are written once.
	KindPayload
	// KindSession is the state of one session of an instance-shaped agent.
	KindSession
	// KindFleet is a declared object (agent, target, tenant, trigger), current or a kept revision.
	KindFleet
	// KindLease is the dispatcher's lease.
	KindLease
	// KindLog is a chunk of an attempt's log; Owner is the run.
	KindLog
	// KindMisc is the control plane's own small state (fair shares, signing keys).
	KindMisc
	// KindGate is a question to people that a run waits for; Owner is the run, Tag "open" while it can be decided.
	KindGate
	// KindState is a document of a tenant's shared state; Tag lists those of the tenant that are there. It has no Owner.
	KindState
)

func (k Kind) String() string {
	names := [...]string{"", "run", "history", "step", "receipt", "payload", "session", "fleet", "lease", "log", "misc", "gate", "state"}
	if int(k) < len(names) && k > 0 {
		return names[k]
	}
	return "unknown"
}

// Part is one of the parts of the due index, each of which is read for itself (see [Store.Due]). The numbers are stored.
type Part uint8

const (
	PartIdle  Part = 0  // has work to come, and no executor
	PartEnded Part = 32 // is to be removed
	PartHeld  Part = 64 // has an executor
)

// Valid reports whether there is such a part.
func (p Part) Valid() bool { return p == PartIdle || p == PartEnded || p == PartHeld }

// Limits of the port. A driver refuses more with [ErrTooLarge]; a caller never builds more.
const (
	MaxBody    = 10<<20 + 4096 // bytes in one document; a payload is up to 10 MiB
	MaxID      = 512           // bytes in an id or an index key
	MaxWrites  = 500           // writes in one unit
	MaxPage    = 2000          // documents in one page of any read
	MaxUnits   = 10_000        // units in one call of Commit
	AnyVersion = int64(-1)     // Write.Expect: whatever is there, or nothing
)

// Doc is a stored document.
type Doc struct {
	Kind    Kind
	ID      string
	Version int64 // 1 at creation, set by the writer; always rising
	// Owner is the run that the document belongs to and is purged with; "" for none.
	Owner string
	// Tag puts the document into one small listing of its kind (receipts: "unknown"); "" for none.
	Tag string
	// Index is what a run is found by. Set for KindRun, nil otherwise.
	Index *Index
	Body  []byte
}

// Index holds the keys that a run is found by. Instants are milliseconds since 1970 in UTC.
type Index struct {
	Tenant, Agent string
	Parent, Root  string // "" for none
	// Worker is the node (target, or worker of a polled target) that holds the run's live attempt; "" when none does.
	Worker string
	// Attempt is the number of the live attempt that may still report; 0 when none may. Fences compare with it.
	Attempt   int64
	CreatedAt int64
	// WakeAt is when the control plane must look at the run again; 0 for never.
	WakeAt int64
	Part   Part // where WakeAt stands
}

// Write puts or deletes one document.
type Write struct {
	Doc
	// Expect is the version the stored document must have: 0 for "must not exist", AnyVersion for no condition.
	// A put's Version is above its Expect.
	Expect int64
	// Delete removes the document; Kind, ID and Expect are all that is read, and Expect is not 0. With AnyVersion a
	// document that does not exist is no error.
	Delete bool
}

// Fence makes a unit conditional on an attempt that still holds its run: Index.Attempt of that run must equal Attempt.
// A fence on a run that does not exist, or with an Attempt below 1, never holds.
type Fence struct {
	Run     string
	Attempt int64
}

// Unit is one atomic change: all of its writes happen, or none. Its fences and expectations are judged against what is
// stored before the unit, and it writes each document at most once.
type Unit struct {
	// Token is unique to this unit. A driver whose transport may answer an applied commit with an error stores it
	// and reads back, so that the outcome told is the true one.
	Token  string
	Fences []Fence
	Writes []Write
	// Purge names runs whose owned documents (every kind, but not the run document itself) are deleted, save those
	// that the unit writes. In an exclusive store how many they are is the caller's to bound: they go in one transaction.
	// A driver for many processes takes any number, without reading their bodies; what one transaction does not take goes
	// first, and the unit last.
	Purge []string
}

// Outcomes of a unit, and errors of reads. Drivers wrap them; callers use errors.Is.
var (
	ErrNotFound = errors.New("no such document")
	// ErrExists: a write with Expect 0 found a document.
	ErrExists = errors.New("document exists already")
	// ErrConflict: a write found another version than it expects, or no document.
	ErrConflict = errors.New("document has another version")
	// ErrFenced: a fence found another attempt than it names.
	ErrFenced = errors.New("attempt no longer holds its run")
	// ErrTooLarge: over a limit of the port. Nothing of the unit was written.
	ErrTooLarge = errors.New("over a limit of the store")
	// ErrInvalid: the request can never succeed: a page token that is none, a run without an index. Nothing was written.
	ErrInvalid = errors.New("invalid request to the store")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrLocked: another process has the store open.
	ErrLocked = errors.New("store is open in another process")
)

// By chooses the index of a [Query].
type By uint8

const (
	ByCreated     By = iota + 1 // every run (operators)
	ByTenant                    // Tenant
	ByTenantAgent               // Tenant and Agent
	ByParent                    // Parent
	ByRoot                      // Root
)

// Query is one page of a listing of runs. Order is by (CreatedAt, ID), newest first unless Oldest is set. Since and Until
// bound CreatedAt: Since <= CreatedAt < Until, 0 for open. The keys that By names are not empty.
type Query struct {
	By                          By
	Tenant, Agent, Parent, Root string
	Since, Until                int64
	Oldest                      bool
	Limit                       int    // 1..MaxPage
	After                       string // Page.Next of the page before; "" for the first
}

// Page is an answer to a [Query]. Next is "" on the last page; a full last page may be followed by an empty one.
type Page struct {
	Docs []Doc
	Next string
}

// Store is durable state. All methods are safe for concurrent use. Returned documents are the caller's to keep;
// documents handed to Commit must not be changed afterwards. Reads see every commit that was acknowledged before they
// began. Every error wraps a sentinel above, or is an outage.
type Store interface {
	// Commit writes units and returns one outcome for each, in order: nil, or an error wrapping ErrExists,
	// ErrConflict, ErrFenced, ErrTooLarge, ErrInvalid or ErrClosed; any other error means that the outcome is not
	// known to the driver (a lost disk, say). It returns after the acknowledged units are durable. Units of one call
	// are applied in order, so a later unit sees an earlier one; a failed unit does not hinder the others. A driver may
	// let a call that only deletes and purges wait for others, and apply its units apart, but not for ever. A caller
	// whose ctx ends stops waiting and gets ctx.Err() for every unit: each of them may still be written.
	Commit(ctx context.Context, units []Unit) []error

	// Get returns a document, or ErrNotFound.
	Get(ctx context.Context, kind Kind, id string) (Doc, error)
	// GetMany returns documents in the order of ids; one that does not exist has Version 0.
	GetMany(ctx context.Context, kind Kind, ids []string) ([]Doc, error)
	// Due returns up to limit runs of a part with 0 < WakeAt <= until, ordered by (WakeAt, ID), strictly after the
	// cursor (afterWake, afterID).
	Due(ctx context.Context, part Part, until int64, afterWake int64, afterID string, limit int) ([]Doc, error)
	// Held calls each for every run that has a Worker, in no certain order, as they come: whoever takes over waits for the
	// last of them, and they may be many. It ends with the first error of each, and returns it as it is.
	Held(ctx context.Context, each func(Doc) error) error
	// List returns a page of runs.
	List(ctx context.Context, q Query) (Page, error)
	// Owned returns up to limit documents of a kind that belong to a run, by ID, strictly after afterID.
	Owned(ctx context.Context, kind Kind, owner, afterID string, limit int) ([]Doc, error)
	// Tagged returns up to limit documents of a kind with that Tag, by ID, strictly after afterID. Tag "" lists the
	// whole kind (fleet objects).
	Tagged(ctx context.Context, kind Kind, tag, afterID string, limit int) ([]Doc, error)

	// Exclusive reports whether this process is the only one that can have the store open.
	Exclusive() bool
	// Describe names driver, place and sync policy in one line, for people.
	Describe() string
	// Close waits for commits under way and releases the store.
	Close() error
}
