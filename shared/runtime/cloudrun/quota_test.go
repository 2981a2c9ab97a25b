package cloudrun

import (
	"testing"
	"time"
)

func TestQuota(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t.Run("a minute has as many starts as the quota, the first of them at once", func(t *testing.T) {
		q := newQuota(60, 180, begin)
		if n := q.allowed(begin); n != 10 {
			t.Errorf("%d at once, want 10", n)
		}
		n := 0
		for at := begin; at.Before(begin.Add(time.Minute)); at = at.Add(100 * time.Millisecond) {
			if _, ok := q.reserve(at, 0); ok {
				n++
			}
		}
		if n != 69 {
			t.Errorf("%d in the first minute, want 59 and the 10 that may come at once", n)
		}
	})
	t.Run("what would wait for longer than it may is not taken, and told how long it would be", func(t *testing.T) {
		q := newQuota(60, 60, begin)
		for range 10 {
			q.reserve(begin, 0)
		}
		for i := range 5 {
			if wait, ok := q.reserve(begin, 5*time.Second); !ok || wait != time.Duration(i+1)*time.Second {
				t.Errorf("start %d waits %s, %v", i, wait, ok)
			}
		}
		for range 3 { // each the same, for none was taken
			if wait, ok := q.reserve(begin, 5*time.Second); ok || wait != 6*time.Second {
				t.Errorf("the next waits %s, %v; want it refused for 6s", wait, ok)
			}
		}
	})
	t.Run("it is halved when the platform has enough, once for calls that were under way together", func(t *testing.T) {
		q := newQuota(60, 180, begin)
		later := begin.Add(time.Minute)
		for range 5 {
			if wait := q.exhausted(later); wait != 2*time.Second {
				t.Errorf("next start after %s, want 2s", wait)
			}
		}
		if q.minute != 30 || q.allowed(later) != 0 {
			t.Errorf("%v in a minute, %d at once", q.minute, q.allowed(later))
		}
	})
	t.Run("it never ends at none", func(t *testing.T) {
		q := newQuota(2, 2, begin)
		for i := range 10 {
			q.exhausted(begin.Add(time.Duration(i+1) * time.Minute))
		}
		if q.minute != least {
			t.Errorf("%v in a minute", q.minute)
		}
	})
	t.Run("it grows by one a minute while the platform takes starts, up to the most", func(t *testing.T) {
		q := newQuota(10, 12, begin)
		for s := range 600 {
			q.taken(begin.Add(time.Duration(s) * time.Second))
			if s == 119 && q.minute != 11 {
				t.Errorf("%v after two minutes, want 11", q.minute)
			}
		}
		if q.minute != 12 {
			t.Errorf("%v in a minute, want 12", q.minute)
		}
	})
}
