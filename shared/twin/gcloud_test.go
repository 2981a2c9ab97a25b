package twin_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/twin"
)

// gcloud runs the real thing against a twin, which is its proxy and what it finds behind it.
func (w *world) gcloud(args ...string) (output string, err error) {
	w.t.Helper()
	program, err := exec.LookPath("gcloud")
	if err != nil {
		const missing = "gcloud is not in PATH (Debian package google-cloud-cli): executing jobs with it is not tested"
		if os.Getenv("ERRAND_EMULATORS_REQUIRED") != "" { // as CI sets it for Google's emulators
			w.t.Fatal(missing)
		}
		w.t.Skip("SKIPPED, so nothing is known of this part: " + missing)
	}
	dir := w.t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("any"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	host, port := must2(w.t)(net.SplitHostPort(w.HTTP()))
	cmd := exec.CommandContext(w.ctx, program, append(args, "--project", "twin-project", "--region", "europe-west1", "--quiet")...)
	cmd.Env = append(os.Environ(),
		"CLOUDSDK_CONFIG="+filepath.Join(dir, "config"),
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1", "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN=http://run.test/", "CLOUDSDK_PROXY_TYPE=http",
		"CLOUDSDK_PROXY_ADDRESS="+host, "CLOUDSDK_PROXY_PORT="+port, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="+token,
	)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must2(t *testing.T) func(string, string, error) (string, string) {
	return func(a, b string, err error) (string, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}

func TestGcloudExecutesJobs(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("report", jobShape{}, shell(`echo "$1" "$GREETING" $CLOUD_RUN_TASK_INDEX/$CLOUD_RUN_TASK_COUNT; exit ${CODE:-0}`, "GREETING=hello"))
	tests := []struct {
		name  string
		args  []string
		fails bool
		want  string // in what gcloud prints
		lines []string
		tasks int
	}{
		{
			name: "Without waiting it returns once the execution runs", args: nil, want: "has successfully started running", tasks: 1,
		},
		{
			name:  "Overrides reach the tasks",
			args:  []string{"--wait", "--tasks=2", "--task-timeout=77s", "--update-env-vars=GREETING=good day", `--args=^|^echo $GREETING over|x`},
			want:  "has successfully completed",
			lines: []string{"good day over", "good day over"}, tasks: 2,
		},
		{
			name: "A failed execution is a failure of the command", args: []string{"--wait", "--update-env-vars=CODE=3"}, fails: true, want: "The execution failed", tasks: 1,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			w.lines.mu.Lock()
			w.lines.all = nil
			w.lines.mu.Unlock()
			out, err := w.gcloud(append([]string{"run", "jobs", "execute", "report"}, test.args...)...)
			if (err != nil) != test.fails || !strings.Contains(out, test.want) {
				t.Fatalf("gcloud gave %v and printed:\n%s\nwant %q in it", err, out, test.want)
			}
			all := w.Executions("report")
			e := w.finish(all[len(all)-1].GetName())
			if int(e.GetTaskCount()) != test.tasks {
				t.Errorf("the execution has %d tasks, want %d", e.GetTaskCount(), test.tasks)
			}
			if got := w.lines.texts(); test.lines != nil && fmt.Sprint(got) != fmt.Sprint(test.lines) {
				t.Errorf("the tasks printed %q, want %q", got, test.lines)
			}
			if strings.Contains(strings.Join(test.args, " "), "task-timeout") && e.GetTemplate().GetTimeout().AsDuration().Seconds() != 77 {
				t.Errorf("the timeout is %s, want 77s", e.GetTemplate().GetTimeout().AsDuration())
			}
		})
	}
}

// rest calls version 1 of the REST API as a client does that has the twin as its proxy.
func (w *world) rest(method, target, body, token string) (int, string) {
	w.t.Helper()
	proxy := must[*url.URL](w.t)(url.Parse("http://" + w.HTTP()))
	r := must[*http.Request](w.t)(http.NewRequestWithContext(w.ctx, method, target, strings.NewReader(body)))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy)}
	defer transport.CloseIdleConnections()
	a, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	return a.StatusCode, string(must[[]byte](w.t)(io.ReadAll(a.Body)))
}

func TestTheRESTAPI(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{}, shell("exec sleep 60"))
	const base = "http://europe-west1-run.test/apis/run.googleapis.com/v1/namespaces/twin-project/"
	for name, test := range map[string]struct {
		method, target, body, token string
		code                        int
		want                        string
	}{
		"no token":                {"GET", base + "jobs/a", "", "", 401, "UNAUTHENTICATED"},
		"another project":         {"GET", strings.Replace(base, "twin-project", "elsewhere", 1) + "jobs/a", "", "x", 403, "PERMISSION_DENIED"},
		"another region":          {"GET", strings.Replace(base, "europe-west1", "us-east1", 1) + "jobs/a", "", "x", 404, "NOT_FOUND"},
		"a job":                   {"GET", base + "jobs/a", "", "x", 200, `"kind":"Job"`},
		"jobs":                    {"GET", base + "jobs", "", "x", 200, `"kind":"JobList"`},
		"an override of an image": {"POST", base + "jobs/a:run", `{"overrides":{"containerOverrides":[{"image":"other"}]}}`, "x", 400, "image"},
		"an override of resources": {
			"POST", base + "jobs/a:run", `{"overrides":{"containerOverrides":[{"resources":{}}]}}`, "x", 400, "resources",
		},
		"a timeout out of range": {"POST", base + "jobs/a:run", `{"overrides":{"timeoutSeconds":9223372036854775807}}`, "x", 400, "timeout"},
		"no JSON":                {"POST", base + "jobs/a:run", `{`, "x", 400, "INVALID_ARGUMENT"},
		"another verb":           {"POST", base + "jobs/a:walk", ``, "x", 404, "NOT_FOUND"},
		"another path":           {"GET", base + "pods", ``, "x", 404, "NOT_FOUND"},
		"no execution":           {"GET", base + "executions/none", ``, "x", 404, "NOT_FOUND"},
		"a strange selector":     {"GET", base + "executions?labelSelector=a%3Db", ``, "x", 400, "label selector"},
	} {
		code, body := w.rest(test.method, test.target, test.body, test.token)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %d with %q", name, code, body, test.code, test.want)
		}
	}
	if n := len(w.Executions("a")); n != 0 {
		t.Fatalf("%d executions were made", n)
	}
	// The answer is lost, the execution is there, and can be cancelled.
	w.Fault(twin.Rule{On: "Jobs.RunJob", Of: "a", Do: twin.Reset(true)})
	if code, body := w.rest("POST", base+"jobs/a:run", "", "x"); code != 0 {
		t.Errorf("the call that is reset got %d %s", code, body)
	}
	made := w.Executions("a")
	if len(made) != 1 {
		t.Fatalf("%d executions were made, want 1", len(made))
	}
	if code, body := w.rest("POST", base+"executions/"+last(made[0].GetName())+":cancel", "{}", "x"); code != 200 {
		t.Errorf("cancel got %d %s", code, body)
	}
	w.finish(made[0].GetName())
	selector := url.QueryEscape("run.googleapis.com/job = a") // gcloud's spelling
	if code, body := w.rest("GET", base+"executions?labelSelector="+selector, "", "x"); code != 200 || !strings.Contains(body, last(made[0].GetName())) {
		t.Errorf("the list of executions is %d %s", code, body)
	}
	if code, body := w.rest("GET", base+"executions/"+last(made[0].GetName()), "", "x"); code != 200 || !strings.Contains(body, `"reason":"Cancelled"`) {
		t.Errorf("the cancelled execution is told as %d %s", code, body)
	}
}
