package control

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// A page of a filtered list takes a bounded time, however few runs are what is asked for, and its token leads on.
func TestAFilteredPageEndsInTime(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	const all = 3*scanPage + 50
	for i := range all {
		state := run.Failed
		if i%100 == 0 {
			state = run.Suspended
		}
		h.put(fmt.Sprintf("r%04d", i), "", state)
	}
	slow := time.Duration(0)
	h.p.cfg.Monotonic = func() time.Duration { slow += scanTime; return slow } // every look takes too long
	counted := &listed{Store: h.store}
	h.p.store = counted
	found, pages, token := 0, 0, ""
	for {
		counted.read = 0
		page, err := h.p.List(t.Context(), Filter{States: []run.State{run.Suspended}}, 100, token)
		if err != nil {
			t.Fatal(err)
		}
		if counted.read > scanPage {
			t.Errorf("page %d looked at %d runs", pages, counted.read)
		}
		found, pages = found+len(page.Runs), pages+1
		if token = page.Next; token == "" {
			break
		}
	}
	if found != all/100+1 || pages != all/scanPage+1 {
		t.Errorf("%d runs on %d pages", found, pages)
	}
}

type listed struct {
	store.Store
	read int
}

func (c *listed) List(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := c.Store.List(ctx, q)
	c.read += len(page.Docs)
	return page, err
}

func TestWhoSeesOneTenantIsServedByItsIndex(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.put("a", "", run.Failed)
	counted := &listed{Store: h.store}
	h.p.store = counted
	page, err := h.p.List(t.Context(), Filter{Tenants: []string{"other"}}, 10, "")
	if err != nil || len(page.Runs) != 0 || counted.read != 0 {
		t.Errorf("%d runs, %d looked at, %v", len(page.Runs), counted.read, err)
	}
}
