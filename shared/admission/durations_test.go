package admission_test

import (
	"testing"
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
)

func TestExpectedIsWhatWasLearnedElseDeclaredElseASecond(t *testing.T) {
	for name, tc := range map[string]struct {
		declared time.Duration
		learned  []time.Duration
		want     time.Duration
	}{
		"nobody knows":                        {want: time.Second},
		"the agent declares it":               {declared: 20 * time.Second, want: 20 * time.Second},
		"the first attempt is taken as it is": {declared: 20 * time.Second, learned: []time.Duration{4 * time.Second}, want: 4 * time.Second},
		"later ones move it by an eighth":     {learned: []time.Duration{4 * time.Second, 12 * time.Second}, want: 5 * time.Second},
		"it is never less than a millisecond": {learned: []time.Duration{0}, want: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			a := &fleet.Agent{Meta: fleet.Meta{Name: "a"}, Lifetime: fleet.Lifetime{Expected: fleet.Duration(tc.declared)}}
			var d admission.Durations
			for _, took := range tc.learned {
				d.Learn("a", took)
			}
			if got := d.Expected(a); got != tc.want {
				t.Errorf("expected %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAChargeCountsEverySlot(t *testing.T) {
	a := &fleet.Agent{Needs: fleet.Needs{Slots: 3}}
	if got := admission.Charge(a, 2*time.Second); got != 6000 {
		t.Errorf("charge %d, want 6000", got)
	}
	if got := admission.Charge(&fleet.Agent{}, 2*time.Second); got != 2000 {
		t.Errorf("charge of an agent without needs %d, want 2000", got)
	}
}
