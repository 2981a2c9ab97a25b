package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/errand-run/errand/shared/outside"
)

// line is a bus that answers or not.
type line struct {
	cut   atomic.Bool
	asked atomic.Int64
}

func (l *line) Reach(context.Context) error {
	l.asked.Add(1)
	if l.cut.Load() {
		return errors.New("connection refused")
	}
	return nil
}

func TestABusOutOfReachIsToldAtTheStartAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log outside.Log
		l := new(line)
		l.cut.Store(true)
		r := &reach{bus: l, log: log.Logger()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.watch(ctx) }()
		synctest.Wait()
		if text := log.String(); !r.out() || strings.Count(text, "out of reach") != 1 || !strings.Contains(text, "connection refused") {
			t.Errorf("out %v at the start, with the log %q", r.out(), text)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "out of reach"); n != 1 || l.asked.Load() < 10 {
			t.Errorf("told %d times, asked %d times in a minute", n, l.asked.Load())
		}
		l.cut.Store(false)
		time.Sleep(reachAgain)
		synctest.Wait()
		if r.out() || strings.Count(log.String(), "within reach again") != 1 {
			t.Errorf("out %v once it is back, with the log %q", r.out(), log.String())
		}
		asked := l.asked.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := l.asked.Load() - asked; n > 2 {
			t.Errorf("asked %d times in a quiet minute", n)
		}
		cancel()
		<-done
	})
}

func TestABusThatIsAlwaysThereIsNotOut(t *testing.T) {
	if (*reach)(nil).out() {
		t.Error("it is out")
	}
}
