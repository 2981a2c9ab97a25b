package e2e

import (
	"errors"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of retention: what has ended goes when its time is over, and says so before.

func TestAFinishedRunIsRemovedAfterItsTime(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("brief", "actor", "worker", quick+"\n\tretain: 1s"), p.agent("lasting", "actor", "worker", quick+"\n\tretain: forever"))
	brief, lasting := s.submit("brief", `{"scenes": []}`), s.submit("lasting", `{"scenes": []}`)
	s.ends(lasting.ID)
	// 1. While it is there it tells until when.
	done := s.ends(brief.ID)
	if done.ExpiresAt == nil || done.ExpiresAt.Sub(done.EndedAt.Time).Seconds() != 1 {
		t.Errorf("it ended %v and expires %v", done.EndedAt, done.ExpiresAt)
	}
	// 2. Then it is gone, and the other one stays, also over a kill of the server.
	s.isGone(brief.ID)
	s.Reboot()
	s.isGone(brief.ID)
	if r := s.get(lasting.ID); r.ExpiresAt != nil {
		t.Errorf("%s expires %v", r.ID, r.ExpiresAt)
	}
	stdout, stderr, code := s.errand("explain", lasting.ID)
	if code != 0 || !strings.Contains(stdout, "kept for ever") {
		t.Errorf("explain: exit %d\n%s%s", code, stdout, stderr)
	}
	_, stderr, code = s.errand("describe", "run", brief.ID)
	if code == 0 || !strings.Contains(stderr, "retain") {
		t.Errorf("describe of a removed run: exit %d\n%s", code, stderr)
	}
}

// isGone waits until there is no such run.
func (s *server) isGone(id string) {
	s.t.Helper()
	outside.Eventually(s.t, outside.Patience, "run "+id+" is removed", func() bool {
		_, err := s.Client.Run(s.t.Context(), id, 0)
		var problem *api.Problem
		return errors.As(err, &problem) && problem.Code() == api.CodeNotFound
	})
}
