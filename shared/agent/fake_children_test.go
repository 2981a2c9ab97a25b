package agent

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// children serves calls and what became of them. A child ends at once as its input says: {"fail": CODE} fails, {"refuse":
// true} is not let in, anything else comes back.
func (f *fake) children(w http.ResponseWriter, req *http.Request, path, token string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	attempt, step, _ := strings.Cut(strings.TrimPrefix(path, "/v1/attempts/"), "/children")
	r, refusal := f.find(attempt, token)
	if refusal != nil {
		f.answer(w, nil, refusal)
		return
	}
	if req.Method == http.MethodGet {
		first, _ := strconv.Atoi(req.URL.Query().Get("pageToken"))
		all := r.results(strings.TrimPrefix(step, "/"))
		page := &api.List[api.ChildResult]{Items: all[first:min(first+2, len(all))]}
		if first+2 < len(all) {
			page.NextPageToken = strconv.Itoa(first + 2)
		}
		f.answer(w, page, nil)
		return
	}
	var q api.Children
	_ = json.Unmarshal(body, &q)
	for _, c := range q.Children {
		if c.Agent == "forbidden" {
			f.answer(w, nil, problemOf(403, api.CodeForbidden, "agent a may not call agent forbidden"))
			return
		}
	}
	f.call(r, q.Step, q.First, q.Children)
	f.answer(w, &api.Spawned{}, nil)
}

func (f *fake) call(r *fakeRun, step string, first int, calls []api.Call) {
	if r.called == nil {
		r.called = make(map[string][]api.Call)
	}
	r.called[step] = append(r.called[step][:min(first, len(r.called[step]))], calls...)
}

// results are what became of the children of a step.
func (r *fakeRun) results(step string) []api.ChildResult {
	var all []api.ChildResult
	for i, c := range r.called[step] {
		var in struct{ Fail string }
		_ = json.Unmarshal(c.Input, &in)
		x := api.ChildResult{Item: i, Run: step + "/" + strconv.Itoa(i), State: "succeeded", Output: c.Input}
		if in.Fail != "" {
			x = api.ChildResult{Item: i, Run: x.Run, State: "failed", Reason: "NonRetryable", Code: in.Fail, Message: "no"}
		}
		all = append(all, x)
	}
	return all
}

// join ends a park on children.
func (f *fake) join(r *fakeRun) {
	if len(r.park.Children) > 0 {
		f.call(r, r.park.Step, 0, r.park.Children)
	}
	j := api.Joined{Size: r.park.Size, Paged: r.paged, Children: r.results(r.park.Step)}
	for _, c := range j.Children {
		if c.State == "succeeded" {
			j.Succeeded++
		} else {
			j.Failed++
		}
	}
	if r.paged {
		j.Children = nil
	}
	raw, _ := json.Marshal(j)
	f.wakeWith(r, raw)
}
