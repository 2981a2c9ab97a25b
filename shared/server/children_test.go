package server

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func TestChildrenAreCalledAndRead(t *testing.T) {
	s := newSite(t)
	s.plane.grants["good"] = grantOf("run1", 2)
	r := s.do("POST", "/v1/attempts/run1.2/children", `{"step":"all/of it","first":1000,"size":1002,"max":4,"children":[{"agent":"a","input":{"n":1}},{"workflow":"w"}]}`, "Authorization", "Bearer good")
	if diff := cmp.Diff(`{"children":[{"run":"child1000","item":1000},{"run":"child1001","item":1001}]}`+"\n", string(r.body)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	want := []control.ChildCalls{{Run: "run1", N: 2, Step: "all/of it", First: 1000, Size: 1002, Max: 4, Calls: []runtime.Call{
		{Agent: "a", Input: json.RawMessage(`{"n":1}`)}, {Workflow: "w"},
	}}}
	if diff := cmp.Diff(want, s.plane.called); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	r = s.do("GET", "/v1/attempts/run1.2/children/all%2Fof%20it?pageToken=7&limit=2", "", "Authorization", "Bearer good")
	wantPage := `{"items":[{"item":0,"run":"run1x","state":"succeeded","output":{"a":1}},` +
		`{"item":1,"run":"all/of it","state":"failed","reason":"NonRetryable","code":"C","message":"7/2"}],"nextPageToken":"2"}` + "\n"
	if diff := cmp.Diff(wantPage, string(r.body)); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

func TestARunTellsItsPlaceInItsFamily(t *testing.T) {
	s := newSite(t)
	s.plane.runs["abc"] = &run.Record{
		Spec: run.Spec{ID: "abc", Agent: "echo", Tenant: "acme", CreatedAt: instant, Parent: "p", Root: "q", Stage: "all", Depth: 2},
		Seq:  3, State: run.Waiting, UpdatedAt: instant, Park: &run.Park{On: run.OnChildren, Step: "kids", Size: 5, Tolerate: 1, Need: 3},
	}
	got := s.do("GET", "/v1/runs/abc", "")
	want := `{"id":"abc","agent":"echo","tenant":"acme","state":"waiting","priority":0,"attempt":0,"parent":"p","root":"q","stage":"all","item":0,"depth":2,` +
		`"createdAt":"2026-01-01T00:00:00.000Z","cost":{"usd":0,"tokens":0},` +
		`"waitsFor":{"on":"children","step":"kids","size":5,"tolerate":1,"need":3},"etag":"3"}` + "\n"
	if diff := cmp.Diff(want, string(got.body)); diff != "" {
		t.Errorf("run (-want +got):\n%s", diff)
	}
}
