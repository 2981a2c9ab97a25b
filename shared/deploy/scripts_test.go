package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeTools puts programs in front of PATH that write down how they are called, a line each, and returns that file.
func fakeTools(t *testing.T, says map[string]string) (path, calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	for name, text := range says {
		script := "#!/bin/sh\necho \"" + name + " $*\" >>" + calls + "\n" + text + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return dir + string(os.PathListSeparator) + os.Getenv("PATH"), calls
}

func TestDeploy(t *testing.T) {
	const sum = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	const pushed = "r.example/p/errand/control" + sum + "\nr.example/p/errand/checker:latest" + sum + "\nr.example:5000/p/errand/worker" + sum + "\n\n"
	for name, tt := range map[string]struct {
		images, services, jobs, pools string
		want                          []string
		fails                         string
	}{
		"each workload is updated once, with all its containers, and services last": {
			images: pushed, services: "errand-control/control=control errand-fn=worker", jobs: "errand-job=checker",
			pools: "errand-pool/agent=checker errand-pool/worker=worker",
			want: []string{
				"gcloud run jobs update errand-job --project p --region r --quiet --image r.example/p/errand/checker" + sum,
				"gcloud beta run worker-pools update errand-pool --project p --region r --quiet --container agent --image r.example/p/errand/checker" + sum + " --container worker --image r.example:5000/p/errand/worker" + sum,
				"gcloud run services update errand-control --project p --region r --quiet --container control --image r.example/p/errand/control" + sum,
				"gcloud run services update errand-fn --project p --region r --quiet --image r.example:5000/p/errand/worker" + sum,
			},
		},
		"a workload whose name begins another's is another": {
			images: pushed, services: "a=control a-b=checker",
			want: []string{
				"gcloud run services update a --project p --region r --quiet --image r.example/p/errand/control" + sum,
				"gcloud run services update a-b --project p --region r --quiet --image r.example/p/errand/checker" + sum,
			},
		},
		"an image that was not pushed stops it before anything is deployed": {
			images: pushed, services: "errand-control=control", pools: "errand-pool=ledger", fails: "errand-pool=ledger: no image of that name was pushed",
		},
		"a reference without a digest is refused": {
			images: "r.example/p/errand/control:latest\n", services: "errand-control=control", fails: "control:latest has no digest",
		},
		"a word that is no assignment is refused": {images: pushed, jobs: "errand-job", fails: "errand-job: want WORKLOAD=NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			path, calls := fakeTools(t, map[string]string{"gcloud": ""})
			images := filepath.Join(t.TempDir(), "images.txt")
			if err := os.WriteFile(images, []byte(tt.images), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "bash", ".ci/deploy", images)
			cmd.Dir = root(t)
			cmd.Env = append(os.Environ(), "PATH="+path, "PROJECT=p", "REGION=r", "SERVICES="+tt.services, "JOBS="+tt.jobs, "POOLS="+tt.pools)
			out, err := cmd.CombinedOutput()
			if (err != nil) != (tt.fails != "") || !strings.Contains(string(out), tt.fails) {
				t.Fatalf("it ended with %v and said %q; want it to say %q", err, out, tt.fails)
			}
			called, _ := os.ReadFile(calls) //nolint:gosec // there is none when nothing was called
			var got []string
			if len(called) > 0 {
				got = strings.Split(strings.TrimSpace(string(called)), "\n")
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

func TestSmoke(t *testing.T) {
	for name, tt := range map[string]struct {
		curl, gcloud, errand string
		fails                bool
	}{
		"a healthy deployment runs the agent as the build":   {gcloud: "echo the-token", errand: `[ "$ERRAND_TOKEN" = the-token ] && [ "$ERRAND_SERVER" = https://c.example ]`},
		"one that is not healthy fails":                      {curl: "exit 22", gcloud: "echo the-token", fails: true},
		"without a token it fails rather than ask as nobody": {gcloud: "exit 1", fails: true},
		"an agent that fails fails the build":                {gcloud: "echo the-token", errand: "exit 6", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			path, calls := fakeTools(t, map[string]string{"curl": tt.curl, "gcloud": tt.gcloud, "errand": tt.errand})
			cmd := exec.CommandContext(t.Context(), "bash", ".ci/smoke", "errand")
			cmd.Dir = root(t)
			cmd.Env = append(os.Environ(), "PATH="+path, "URL=https://c.example", "ACCOUNT=b@p.example", "AGENT=concierge", "INPUT=@f.json")
			out, err := cmd.CombinedOutput()
			if (err != nil) != tt.fails {
				t.Fatalf("it ended with %v and said %q", err, out)
			}
			called, err := os.ReadFile(calls) //nolint:gosec // it has just been written
			if err != nil {
				t.Fatal(err)
			}
			if want := "errand run concierge -i @f.json --wait"; !tt.fails && !strings.Contains(string(called), want) {
				t.Errorf("calls were %q, want %q among them", called, want)
			}
			if strings.Contains(string(out)+string(called), "the-token") {
				t.Error("the token is shown")
			}
		})
	}
}
