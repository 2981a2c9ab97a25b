package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

func TestWhatIsWrongIsSaidOnce(t *testing.T) {
	fault := api.Fault{Location: "body.grace", Message: "-1s; want 0s to 1h0m0s"}
	for name, c := range map[string]struct {
		p    api.Problem
		want []string
	}{
		"a fault that the detail says": {api.Problem{Detail: "body.grace: -1s; want 0s to 1h0m0s", Errors: []api.Fault{fault}},
			[]string{"cancel run x: body.grace: -1s; want 0s to 1h0m0s"}},
		"faults that it sums up": {api.Problem{Detail: "2 things are wrong", Errors: []api.Fault{fault, {Message: "and this"}}},
			[]string{"cancel run x: 2 things are wrong", "body.grace: -1s; want 0s to 1h0m0s", "and this"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, problemLines("cancel run x", &c.p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
