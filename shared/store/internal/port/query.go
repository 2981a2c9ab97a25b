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
	// Key is the prefix that the index is scanned under: none, the tenant, tenant and agent, parent, root or worker.
	Key []string
	// Since and Until bound CreatedAt: Since <= CreatedAt < Until, always closed.
	Since, Until int64
	// Rising is the direction, by (CreatedAt, ID), or (Worker, ID) for ByWorker.
	Rising bool
	// After is the place of the last document of the page before; nil on the first page.
	After *Place
}

// Place is a document's position in a listing. Worker is set for ByWorker, CreatedAt for the others.
type Place struct {
	CreatedAt int64
	Worker    string
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
	case store.ByWorker:
		if q.Since != 0 || q.Until != 0 {
			return Scan{}, fmt.Errorf("list of runs by worker: %w: it takes no bounds of time", store.ErrInvalid)
		}
		s.Rising = true
		if q.Worker != "" {
			s.Key = []string{q.Worker}
		}
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
	if q.By == store.ByWorker {
		b = binary.AppendUvarint(b, uint64(len(last.Index.Worker)))
		b = append(b, last.Index.Worker...)
	} else {
		b = binary.AppendUvarint(b, uint64(last.Index.CreatedAt))
	}
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
	rest, p := b[1+used:], Place{CreatedAt: int64(n)}
	if q.By == store.ByWorker {
		if n > uint64(len(rest)) || n > store.MaxID {
			return bad("was not made by this store")
		}
		p = Place{Worker: string(rest[:n])}
		rest = rest[n:]
	}
	p.ID = string(rest)
	if checkID("page token", p.ID) != nil || !clean(p.Worker) {
		return bad("was not made by this store")
	}
	return p, nil
}
