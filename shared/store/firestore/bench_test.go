package firestore

import (
	"fmt"
	"testing"

	"github.com/errand-run/errand/shared/store"
)

// The figures are the emulator's, which is one process with one lock: they bound what this package costs, not what the
// platform does.
func BenchmarkUnits(b *testing.B) {
	const perCall = 1000
	body := make([]byte, 1500)
	next := func(i int) string { return fmt.Sprint("r-", i) }
	for title, unit := range map[string]func(i int) store.Unit{
		"one write": func(i int) store.Unit { return unitOf(put(store.KindRun, next(i), 0, body)) },
		"two writes": func(i int) store.Unit {
			return unitOf(put(store.KindRun, next(i), 0, body), ownedBy(put(store.KindStep, next(i), 0, body), next(i)))
		},
	} {
		b.Run(title, func(b *testing.B) {
			s, n := open(b), 0
			for b.Loop() {
				us := make([]store.Unit, perCall)
				for i := range us {
					us[i] = unit(n)
					n++
				}
				must(b, s, us...)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "units/s")
		})
	}
	b.Run("update of a remembered version", func(b *testing.B) {
		s, n := open(b), 0
		us := make([]store.Unit, perCall)
		for i := range us {
			us[i] = unitOf(put(store.KindRun, next(i), 0, body))
		}
		must(b, s, us...)
		for v := int64(1); b.Loop(); v++ {
			for i := range us {
				us[i] = unitOf(put(store.KindRun, next(i), v, body))
			}
			must(b, s, us...)
			n += perCall
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "units/s")
	})
	b.Run("fenced by another run", func(b *testing.B) {
		s, n := open(b), 0
		must(b, s, unitOf(put(store.KindRun, "a", 0, body)))
		for b.Loop() {
			u := unitOf(put(store.KindStep, next(n), 0, body))
			u.Fences = []store.Fence{{Run: "a", Attempt: 1}}
			must(b, s, u)
			n++
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "units/s")
	})
}
