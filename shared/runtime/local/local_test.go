package local_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/local"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	process.Warden()
	runtimetest.Program()
	goleak.VerifyTestMain(m)
}

// open makes a runtime with the given changes to its options.
func open(t *testing.T, c *runtimetest.Control, change ...func(*local.Options)) *local.Runtime {
	t.Helper()
	o := local.Options{
		Reporter: c, URL: c.URL, Held: c.Held, SaveSession: c.Save, Grace: 5 * time.Second, WorkerToken: "worker-token",
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&o)
	}
	rt, err := local.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c.Use(rt)
	t.Cleanup(func() {
		if err := rt.Close(context.Background(), 5*time.Second); err != nil {
			t.Error(err)
		}
	})
	return rt
}

// agent is one whose program is the test binary.
func agent(shape fleet.Shape, protocol fleet.Protocol, slots int) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: "checker"}, Shape: shape}
	runtimetest.Command(a, "agent")
	a.Run.Protocol, a.Run.Slots = protocol, slots
	a.SetDefaults()
	return a
}

func TestConformance(t *testing.T) {
	for name, tt := range map[string]struct {
		shape    fleet.Shape
		protocol fleet.Protocol
		slots    int
	}{
		"pool of stdio programs": {fleet.Pool, fleet.Stdio, 1},
		"job of stdio programs":  {fleet.Job, fleet.Stdio, 1},
		"pool of workers":        {fleet.Pool, fleet.Worker, 8},
		"job of workers":         {fleet.Job, fleet.Worker, 1},
		"service over http":      {fleet.Service, fleet.HTTP, 8},
		"instance over http":     {fleet.Instance, fleet.HTTP, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtimetest.Run(t, runtimetest.Harness{
				Open:  func(t *testing.T, c *runtimetest.Control) runtime.Runtime { return open(t, c) },
				Agent: func(*testing.T) *fleet.Agent { return agent(tt.shape, tt.protocol, tt.slots) },
			})
		})
	}
}
