package control

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/store"
)

const (
	keyID   = "signing-key" // of the document in the store
	maxKeys = 8
	// rereadKeys is how long keys are used before they are asked for again. Keys are rotated in steps that are longer.
	rereadKeys = time.Minute
)

// keySize is that of a key, at least, and of what HMAC-SHA256 makes with it, in bytes.
const keySize = 32

// signingKey is one secret and what is made of it once.
type signingKey struct {
	secret []byte
	id     string    // the kid of its tokens; "" for the store's own key, which never has another beside it
	header string    // of its tokens, with the dot
	macs   sync.Pool // of hash.Hash under the secret
}

func newSigningKey(secret []byte, named bool) *signingKey {
	k := &signingKey{secret: secret}
	k.macs.New = func() any { return hmac.New(sha256.New, secret) }
	head := `{"alg":"HS256","typ":"JWT"}`
	if named {
		sum := k.mac([]byte("key id"))
		k.id = base64.RawURLEncoding.EncodeToString(sum[:6]) // tells keys apart, and tells nothing of them
		head = `{"alg":"HS256","typ":"JWT","kid":"` + k.id + `"}`
	}
	k.header = base64.RawURLEncoding.EncodeToString([]byte(head)) + "."
	return k
}

// mac is the HMAC-SHA256 of the parts, one after the other.
func (k *signingKey) mac(parts ...[]byte) (sum [keySize]byte) {
	h := k.macs.Get().(hash.Hash)
	h.Reset()
	for _, p := range parts {
		_, _ = h.Write(p) // cannot fail
	}
	h.Sum(sum[:0])
	k.macs.Put(h)
	return sum
}

// keyring is the keys of one moment: the first signs, all verify. It is never changed, only replaced.
type keyring struct{ keys []*signingKey }

// byID returns the key of that id, or nil.
func (r *keyring) byID(id string) *signingKey {
	for _, k := range r.keys {
		if k.id == id {
			return k
		}
	}
	return nil
}

// newKeyring makes a ring of configured secrets; one that is given twice counts once.
func newKeyring(secrets [][]byte) (*keyring, error) {
	switch n := len(secrets); {
	case n == 0:
		return nil, errors.New("no signing key is given; want one at least")
	case n > maxKeys:
		return nil, fmt.Errorf("%d signing keys are given; want %d at most", n, maxKeys)
	}
	r := new(keyring)
	for i, secret := range secrets {
		if len(secret) < keySize {
			return nil, fmt.Errorf("signing key %d has %d bytes, want %d at least", i+1, len(secret), keySize)
		}
		if k := newSigningKey(bytes.Clone(secret), true); r.byID(k.id) == nil {
			r.keys = append(r.keys, k)
		}
	}
	return r, nil
}

// same reports whether two rings hold the same keys in the same order.
func (r *keyring) same(o *keyring) bool {
	if len(r.keys) != len(o.keys) {
		return false
	}
	for i := range r.keys {
		if !hmac.Equal(r.keys[i].secret, o.keys[i].secret) {
			return false
		}
	}
	return true
}

// keys holds the ring in use, and asks its source for another now and then, when it is used: no timer runs.
type keys struct {
	source func() ([][]byte, error) // nil for the store's key, which stays
	log    *slog.Logger
	ring   atomic.Pointer[keyring]

	asked   atomic.Int64 // when the source was asked last, in ns
	asking  sync.Mutex
	changed func() // after the ring was replaced
}

// loadKeys asks the source or, without one, uses the key in the store, or makes one and keeps it there.
func loadKeys(ctx context.Context, st store.Store, source func() ([][]byte, error), now time.Time, log *slog.Logger) (*keys, error) {
	k := &keys{source: source, log: log, changed: func() {}}
	k.asked.Store(now.UnixNano())
	if source == nil {
		secret, err := storedKey(ctx, st)
		if err != nil {
			return nil, err
		}
		k.ring.Store(&keyring{keys: []*signingKey{newSigningKey(secret, false)}})
		return k, nil
	}
	secrets, err := source()
	if err != nil {
		return nil, fmt.Errorf("read the signing keys: %w", err)
	}
	ring, err := newKeyring(secrets)
	if err != nil {
		return nil, err
	}
	k.ring.Store(ring)
	return k, nil
}

// storedKey is the key that the processes of a store share when none is configured.
func storedKey(ctx context.Context, st store.Store) ([]byte, error) {
	for {
		doc, err := st.Get(ctx, store.KindMisc, keyID)
		switch {
		case err == nil && len(doc.Body) < keySize:
			return nil, fmt.Errorf("the signing key in the store has %d bytes, want %d at least", len(doc.Body), keySize)
		case err == nil:
			return doc.Body, nil
		case !errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("read the signing key: %w", err)
		}
		fresh := make([]byte, keySize)
		_, _ = rand.Read(fresh)
		unit := store.Unit{Token: keyID, Writes: []store.Write{{Doc: store.Doc{Kind: store.KindMisc, ID: keyID, Version: 1, Body: fresh}}}}
		if err := st.Commit(ctx, []store.Unit{unit})[0]; err != nil && !errors.Is(err, store.ErrExists) {
			return nil, fmt.Errorf("keep a new signing key: %w", err)
		}
	}
}

// at returns the ring to use now.
func (k *keys) at(now time.Time) *keyring {
	if k.source != nil {
		if age := now.UnixNano() - k.asked.Load(); age >= int64(rereadKeys) || age < 0 {
			k.reread(now)
		}
	}
	return k.ring.Load()
}

// reread asks the source again. Others go on with the keys that there are meanwhile, and so does everybody when the
// source fails: a secret that cannot be read for a while must not stop the fleet.
func (k *keys) reread(now time.Time) {
	if !k.asking.TryLock() {
		return
	}
	defer k.asking.Unlock()
	k.asked.Store(now.UnixNano())
	secrets, err := k.source()
	var ring *keyring
	if err == nil {
		ring, err = newKeyring(secrets)
	}
	switch {
	case err != nil:
		k.log.Warn("the signing keys cannot be read again; those read before stay in use", "error", err)
	case !ring.same(k.ring.Load()):
		k.ring.Store(ring)
		k.changed()
		k.log.Info("signing keys changed", "keys", len(ring.keys), "signs", ring.keys[0].id)
	}
}
