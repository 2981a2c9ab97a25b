package control

import (
	"errors"
	"testing"
)

func TestATokenOfAnotherListIsRefusedAndIsNoFault(t *testing.T) {
	h := newHouse(t, agentNamed("a"))
	for _, token := range []string{"abc", "////"} {
		_, err := h.p.List(t.Context(), Filter{}, 10, token)
		var r *Refusal
		if !errors.As(err, &r) || r.Code != CodeInvalid || len(r.Faults) != 1 || r.Faults[0].Location != "pageToken" {
			t.Errorf("list after %q: %v, want a refusal that names pageToken", token, err)
		}
	}
}
