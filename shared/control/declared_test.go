package control

import (
	"context"
	"testing"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

// meddler is a store in which something happens between a read of declarations and its answer.
type meddler struct {
	store.Store
	meanwhile func()
}

func (m *meddler) Tagged(ctx context.Context, kind store.Kind, tag, after string, limit int) ([]store.Doc, error) {
	docs, err := m.Store.Tagged(ctx, kind, tag, after, limit)
	if do := m.meanwhile; do != nil {
		m.meanwhile = nil
		do()
	}
	return docs, err
}

func TestWhatIsDeclaredWhileTheFleetIsReadStays(t *testing.T) {
	m := &meddler{Store: memory.Open()}
	h := &house{t: t, store: m, now: began}
	h.open()
	m.meanwhile = func() {
		if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("late")), ApplyOptions{}); err != nil {
			t.Error(err)
		}
	}
	if err := h.p.loadDeclarations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.p.DeclaredOne(t.Context(), fleet.KindAgent, "late"); err != nil {
		t.Errorf("what was declared during the read is gone: %v", err)
	}
}

func TestAnAgentThatWasJustAskedForInVainIsFoundOnceItIsDeclared(t *testing.T) {
	d := newDistrict(t, cloudTarget("pool", fleet.Pool))
	if out := d.c.Submit(t.Context(), []Submission{{Agent: "late"}})[0]; out.Err == nil {
		t.Fatal("an agent that nobody declared was taken")
	}
	if _, err := d.b.Apply(t.Context(), fleetOf(agentNamed("late")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	submitAt(t, d.c, Submission{Agent: "late"})
}
