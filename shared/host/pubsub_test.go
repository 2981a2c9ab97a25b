package host

import (
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/pubsub"
	"github.com/errand-run/errand/shared/internal/emulator"
)

// TestARunThatPubSubHandsOver goes the way of the platform: Google's emulator carries the messages, processes execute.
func TestARunThatPubSubHandsOver(t *testing.T) { // case F08
	t.Setenv("PUBSUB_EMULATOR_HOST", emulator.PubSub(t))
	b, err := pubsub.Open(t.Context(), pubsub.Options{Project: "acme-worker", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Declare(t.Context(), bus.Pool("lake")); err != nil {
		t.Fatal(err)
	}
	r := launchOn(t, b, map[string]string{agent.EnvSlots: "2"}, "cat")
	// 1. Each hand-over comes twice.
	var runs []*record
	for range 4 {
		x := r.hand(t, `{"a":1}`)
		r.c.mu.Lock()
		again := r.c.message(x)
		r.c.mu.Unlock()
		if err := b.Publish(t.Context(), bus.Pool("lake"), []bus.Message{again})[0]; err != nil {
			t.Fatal(err)
		}
		runs = append(runs, x)
	}
	for _, x := range runs {
		x.end(t)
		if x.state != "succeeded" || x.n != 1 {
			t.Errorf("run %s is %s after %d attempts, failure %+v", x.id, x.state, x.n, x.failure)
		}
	}
	// 2. It ends when it is told to, within the platform's time.
	began := time.Now()
	if err := r.stop(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("the worker ended after %s: %v", time.Since(began), err)
	}
}
