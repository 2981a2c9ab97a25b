package memory

import (
	"encoding/binary"

	"github.com/errand-run/errand/shared/store"
)

// index is one of the orders that documents are found in; it leads every key of the one ordered set.
type index byte

const (
	names index = iota
	tagged
	owned
	created
	tenants
	agents
	parents
	roots
	workers
	due
	indexes
)

// key composes an order-preserving key. Strings end in a zero byte, which the port keeps out of ids and keys, so no
// string's key is a prefix of another's.
type key []byte

func keyOf(x index) key                { return append(make(key, 0, 96), byte(x)) }
func (k key) byte(b uint8) key         { return append(k, b) }
func (k key) string(s string) key      { return append(append(k, s...), 0) }
func (k key) instant(ms int64) key     { return binary.BigEndian.AppendUint64(k, uint64(ms)) }
func (k key) end() key                 { return append(k, 0xff) } // above every key with this prefix: UTF-8 has no 0xff
func (k key) kind(kind store.Kind) key { return k.byte(byte(kind)) }

// keysOf returns the key of a document in every index, "" where it is not found by that index.
func keysOf(d *store.Doc) (ks [indexes]string) {
	ks[names] = string(keyOf(names).kind(d.Kind).string(d.ID))
	if d.Tag != "" {
		ks[tagged] = string(keyOf(tagged).kind(d.Kind).string(d.Tag).string(d.ID))
	}
	if d.Owner != "" {
		ks[owned] = string(keyOf(owned).string(d.Owner).kind(d.Kind).string(d.ID))
	}
	x := d.Index
	if x == nil {
		return ks
	}
	ks[created] = string(keyOf(created).instant(x.CreatedAt).string(d.ID))
	ks[tenants] = string(keyOf(tenants).string(x.Tenant).instant(x.CreatedAt).string(d.ID))
	ks[agents] = string(keyOf(agents).string(x.Tenant).string(x.Agent).instant(x.CreatedAt).string(d.ID))
	if x.Parent != "" {
		ks[parents] = string(keyOf(parents).string(x.Parent).instant(x.CreatedAt).string(d.ID))
	}
	if x.Root != "" {
		ks[roots] = string(keyOf(roots).string(x.Root).instant(x.CreatedAt).string(d.ID))
	}
	if x.Worker != "" {
		ks[workers] = string(keyOf(workers).string(x.Worker).string(d.ID))
	}
	if x.WakeAt > 0 {
		ks[due] = string(keyOf(due).byte(byte(x.Part)).instant(x.WakeAt).string(d.ID))
	}
	return ks
}
