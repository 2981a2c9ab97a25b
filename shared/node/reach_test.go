package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// line is a bus that answers or not.
type line struct {
	cut   bool
	asked int
}

func (l *line) Reach(context.Context) error {
	l.asked++
	if l.cut {
		return errors.New("connection refused")
	}
	return nil
}

func TestABusOutOfReachIsToldAtTheStartAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := &line{cut: true}
		r := &reach{bus: l, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.watch(ctx) }()
		synctest.Wait()
		if text := log.String(); !r.out() || strings.Count(text, "out of reach") != 1 || !strings.Contains(text, "connection refused") {
			t.Errorf("out %v at the start, with the log %q", r.out(), text)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "out of reach"); n != 1 || l.asked < 10 {
			t.Errorf("told %d times, asked %d times in a minute", n, l.asked)
		}
		l.cut = false
		time.Sleep(reachAgain)
		synctest.Wait()
		if r.out() || strings.Count(log.String(), "within reach again") != 1 {
			t.Errorf("out %v once it is back, with the log %q", r.out(), log.String())
		}
		asked := l.asked
		time.Sleep(time.Minute)
		if n := l.asked - asked; n > 2 {
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
