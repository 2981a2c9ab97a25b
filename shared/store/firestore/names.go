package firestore

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/errand-run/errand/shared/store"
)

// name is what the port calls a document.
type name struct {
	kind store.Kind
	id   string
}

// collections holds the name of the collection of each kind.
var collections = map[store.Kind]string{
	store.KindRun:     "runs",
	store.KindHistory: "history",
	store.KindStep:    "steps",
	store.KindReceipt: "receipts",
	store.KindPayload: "payloads",
	store.KindSession: "sessions",
	store.KindFleet:   "fleet",
	store.KindLease:   "leases",
	store.KindLog:     "logs",
	store.KindMisc:    "misc",
	store.KindGate:    "gates",
	store.KindState:   "state",
}

// partsCollection holds the parts of bodies that are too large for their documents.
const partsCollection = "parts"

// letters has no underscore, which begins ids that the platform keeps for itself.
var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// key is a document's id in its collection: a hash, so that ids that rise together do not fall into one key range, and
// so that any bytes make an id.
func key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return letters.EncodeToString(sum[:20])
}

// path is the full name of a document, as requests have it.
func (s *Store) path(n name) string {
	return s.database + "/documents/" + collections[n.kind] + "/" + key(n.id)
}

// partPath is the full name of a part of the body that the unit with a token gave to a document.
func (s *Store) partPath(n name, token string, part int) string {
	return s.database + "/documents/" + partsCollection + "/" +
		key(collections[n.kind]+"/"+n.id) + "-" + token + "-" + strconv.Itoa(part)
}

func (n name) String() string { return fmt.Sprintf("%s %q", n.kind, n.id) }

// tokens numbers the units of a store.
type tokens struct{ n atomic.Int64 }

// token makes what the documents of a unit hold: the unit's own token and this call of it, since a caller may hand
// over one unit twice, and only one of the two may find itself written.
func (s *Store) token(u *store.Unit) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", s.nonce, s.calls.n.Add(1), u.Token))
	return letters.EncodeToString(sum[:15])
}
