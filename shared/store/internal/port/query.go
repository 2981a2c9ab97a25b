package port

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/errand-run/errand/shared/store"
)

// Scan is a checked query, in the terms that every driver's index has.
type Scan struct {
	// Key is the prefix that the index is scanned under: none, the tenant, tenant and agent, parent or root.
	Key []string
	// Since and Until bound CreatedAt: Since <= CreatedAt < Until, always closed.
	Since, Until int64
	// Rising is the direction, by (CreatedAt, ID).
	Rising bool
	// After is the place of the last document of the page before; nil on the first page.
	After *Place
}

// Place is a document's position in a listing.
type Place struct {
	CreatedAt int64
	ID        string
}

// CheckQuery resolves a query, or refuses it with ErrInvalid or ErrTooLarge.
func CheckQuery(q store.Query) (Scan, error) {
	if err := CheckLimit(q.Limit); err != nil {
		return Scan{}, err
	}
	s := Scan{Since: q.Since, Until: q.Until, Rising: q.Oldest}
	switch q.By {
	case store.ByCreated:
	case store.ByTenant:
		s.Key = []string{q.Tenant}
	case store.ByTenantAgent:
		s.Key = []string{q.Tenant, q.Agent}
	case store.ByParent:
		s.Key = []string{q.Parent}
	case store.ByRoot:
		s.Key = []string{q.Root}
	default:
		return Scan{}, fmt.Errorf("list of runs: %w: no index %d", store.ErrInvalid, q.By)
	}
	for _, k := range s.Key {
		if k == "" {
			return Scan{}, fmt.Errorf("list of runs by index %d: %w: its key is empty", q.By, store.ErrInvalid)
		}
	}
	if s.Until == 0 {
		s.Until = math.MaxInt64
	}
	if q.After != "" {
		p, err := decodePlace(q)
		if err != nil {
			return Scan{}, err
		}
		s.After = &p
	}
	return s, nil
}

// Next returns the token of the page after docs: "" when docs do not fill the page.
func Next(q store.Query, docs []store.Doc) string {
	if len(docs) < q.Limit {
		return ""
	}
	last := &docs[len(docs)-1]
	b := append(make([]byte, 0, 64), tokenHead(q))
	b = binary.AppendUvarint(b, uint64(last.Index.CreatedAt))
	b = append(b, last.ID...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// tokenHead ties a token to the index and direction that it continues; the high bits are the token's version.
func tokenHead(q store.Query) byte {
	head := 0x10 | byte(q.By)<<1
	if q.Oldest {
		head |= 1
	}
	return head
}

func decodePlace(q store.Query) (Place, error) {
	bad := func(why string) (Place, error) {
		return Place{}, fmt.Errorf("list of runs: %w: page token %.40q %s: begin again without a token", store.ErrInvalid, q.After, why)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(q.After)
	if err != nil || len(b) < 3 {
		return bad("was not made by this store")
	}
	if b[0] != tokenHead(q) {
		return bad("belongs to another listing")
	}
	n, used := binary.Uvarint(b[1:])
	if used <= 0 || n > math.MaxInt64 {
		return bad("was not made by this store")
	}
	p := Place{CreatedAt: int64(n), ID: string(b[1+used:])}
	if checkID("page token", p.ID) != nil {
		return bad("was not made by this store")
	}
	return p, nil
}
