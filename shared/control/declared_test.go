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

func TestOnlyAgentsThatAskForMoreThanOneRunAreWarnedOfJob(t *testing.T) {
	job := func(j *fleet.JobSpec) *fleet.Agent {
		return agentNamed("a", func(a *fleet.Agent) { a.Shape, a.Job = fleet.Job, j })
	}
	for name, x := range map[string]struct {
		agent *fleet.Agent
		warns bool
	}{
		"a pool":                              {agentNamed("a"), false},
		"a service":                           {agentNamed("a", func(a *fleet.Agent) { a.Shape = fleet.Service }), false},
		"a job that says nothing of it":       {job(nil), false},
		"a job of one completion":             {job(&fleet.JobSpec{Completions: new(1)}), false},
		"a job of several completions":        {job(&fleet.JobSpec{Completions: new(3)}), true},
		"a job with a limit of its own":       {job(&fleet.JobSpec{BackoffLimit: new(0)}), true},
		"a job whose completions are indexed": {job(&fleet.JobSpec{Completions: new(1), CompletionMode: "Indexed"}), true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			done, err := h.p.Apply(t.Context(), fleetOf(x.agent), ApplyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(done[0].Warnings) > 0; got != x.warns {
				t.Errorf("warnings %q, want some: %t", done[0].Warnings, x.warns)
			}
		})
	}
}
