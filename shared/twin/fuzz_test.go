package twin

import (
	"testing"

	"cloud.google.com/go/run/apiv2/runpb"
)

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"512Mi", "1.5Gi", "64M", "1000", "1k", "3Ki", "-1", "", "9999999999999999999Ti", "1e9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseBytes(s); (err == nil) != (n > 0) {
			t.Errorf("%q: %d bytes and %v", s, n, err)
		}
	})
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{"512Mi": 512 << 20, "1.5Gi": 3 << 29, "64M": 64_000_000, "1000": 1000, "2k": 2000, "3Ki": 3 << 10, "1T": 1e12} {
		if got, err := parseBytes(s); got != want {
			t.Errorf("%s is %d (%v), want %d", s, got, err, want)
		}
	}
}

// FuzzNames: whatever the name, an accepted one has the shape that the code behind counts on.
func FuzzNames(f *testing.F) {
	f.Add("projects/twin-project/locations/europe-west1/jobs/a", "after:1")
	f.Add("projects/twin-project/locations/europe-west1/jobs/-", "YWZ0ZXI6MQ")
	f.Add("projects//locations//jobs/", "")
	f.Fuzz(func(t *testing.T, name, token string) {
		tw := &Twin{opts: Options{Project: "twin-project"}}
		if tw.checkName(name, false, "jobs") == nil {
			if lastID(name) == "" || locationOf(name)+"/jobs/"+lastID(name) != name {
				t.Errorf("%q passes for a name", name)
			}
		}
		all := []int64{1, 2, 3, 4, 5}
		page, next, err := paginate(all, func(n int64) int64 { return n }, 2, token)
		if err == nil && (len(page) > 2 || next != "" && len(page) != 2) {
			t.Errorf("token %q gives page %v and next %q", token, page, next)
		}
	})
}

// FuzzOverrides: whatever gcloud sends, it is refused or leads to a job that can run.
func FuzzOverrides(f *testing.F) {
	f.Add([]byte(`{"overrides":{"taskCount":3,"timeoutSeconds":60,"containerOverrides":[{"args":["a"],"env":[{"name":"A","value":"1"}]}]}}`))
	f.Add([]byte(`{"overrides":{"timeoutSeconds":-9223372036854775808}}`))
	f.Add([]byte(`{"overrides":{"containerOverrides":[{"name":"x","clearArgs":true}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r v1RunJob
		if decode(body, &r) != nil {
			return
		}
		template := &runpb.ExecutionTemplate{TaskCount: 1, Template: &runpb.TaskTemplate{Containers: []*runpb.Container{{Image: "a"}}}}
		e, err := override(template, r.overrides())
		if err != nil {
			return
		}
		if e.GetTaskCount() < 1 || e.GetTaskCount() > maxTaskCount || checkContainers("", e.GetTemplate().GetContainers(), 0, false) != nil {
			t.Errorf("%s leads to %v", body, e)
		}
		if d := e.GetTemplate().GetTimeout(); d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxTaskTimeout) {
			t.Errorf("%s leads to a timeout of %s", body, d.AsDuration())
		}
	})
}
