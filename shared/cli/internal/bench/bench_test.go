package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFiguresAreMediansWithTheirRange(t *testing.T) {
	var w Workload
	for _, v := range []float64{30, 10, 20} {
		w.add([]Figure{{Name: "throughput", Unit: "runs/s", Values: []float64{v}}})
	}
	want := []Figure{{Name: "throughput", Unit: "runs/s", Median: 20, Min: 10, Max: 30, Values: []float64{30, 10, 20}}}
	if diff := cmp.Diff(want, w.Figures); diff != "" {
		t.Error(diff)
	}
	w.Figures[0].take(40)
	if got := w.Figures[0].Median; got != 25 {
		t.Errorf("median of an even number of values: %v, want 25", got)
	}
}

func TestPercentile(t *testing.T) {
	var all []time.Duration
	for n := range 100 {
		all = append(all, time.Duration(n+1))
	}
	for p, want := range map[float64]time.Duration{0.5: 51, 0.99: 100, 1: 100} {
		if got := percentile(all, p); got != want {
			t.Errorf("percentile %v = %d, want %d", p, got, want)
		}
	}
	if got := percentile(all[:1], 0.99); got != 1 {
		t.Errorf("percentile of one value = %d", got)
	}
}
