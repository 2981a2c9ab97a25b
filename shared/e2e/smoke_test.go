package e2e

import "testing"

func TestARunGoesThroughTheFleet(t *testing.T) {
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", "shape: pool"))
	r := s.ends(s.submit("actor", `{"scenes": [{"say": "hello"}]}`).ID)
	if r.State != "succeeded" {
		t.Fatalf("%+v", r)
	}
}
