package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/internal/emulator"
)

// TestTwin runs the scripts of testdata/twin: a whole cloud each.
func TestTwin(t *testing.T) {
	emulator.Need(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/twin",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "serve": serveTwin, "end": end, "page": page, "killleader": killLeader,
		},
	})
}

// twinPatience bounds a start: two virtual machines of Java are part of it.
const twinPatience = 2 * time.Minute

func serveTwin(ts *testscript.TestScript, neg bool, args []string) {
	serveWithin(ts, twinPatience, append([]string{"--twin"}, args...))
}

// page fetches a page without a token, and wants a text in it: page PATH TEXT.
func page(ts *testscript.TestScript, neg bool, args []string) {
	resp, err := http.Get(ts.Getenv("ERRAND_SERVER") + args[0])
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	ts.Check(err)
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), args[1]) {
		ts.Fatalf("GET %s: status %d:\n%s", args[0], resp.StatusCode, body)
	}
}

var controlProcess = regexp.MustCompile(`(?m)^(control-\d): (http://\S+), process (\d+)$`)

// killLeader ends the control process that leads, as a machine that fails does, and waits until it is there again.
func killLeader(ts *testscript.TestScript, neg bool, args []string) {
	value, _ := running.Load(ts.Name() + " dev")
	log := value.(*child).log
	for deadline := time.Now().Add(twinPatience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, m := range controlProcess.FindAllStringSubmatch(ts.ReadFile(log), -1) {
			var health struct {
				Leader bool `json:"leader"`
			}
			resp, err := http.Get(m[2] + "/health/ready")
			ts.Check(err)
			err = json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&health)
			resp.Body.Close()
			if err != nil || !health.Leader {
				continue
			}
			pid, err := strconv.Atoi(m[3])
			ts.Check(err)
			ts.Check(syscall.Kill(pid, syscall.SIGKILL))
			for again := "was started again\" name=" + m[1]; !strings.Contains(ts.ReadFile(log), again); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					ts.Fatalf("%s was not started again:\n%s", m[1], ts.ReadFile(log))
				}
			}
			return
		}
	}
	ts.Fatalf("nobody leads:\n%s", ts.ReadFile(log))
}

// TestTheTwinRunsTheExample runs the invoices over emulators, control processes and containers, and wants every run to
// succeed on the workload of its agent.
func TestTheTwinRunsTheExample(t *testing.T) {
	emulator.Need(t)
	if testing.Short() {
		t.Skip("it builds four agents")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	path, err := exec.LookPath("errand")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := filepath.Abs("../../examples/invoices")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, "dev", "--twin", "--once", "--addr", "127.0.0.1:0", "-o", "json", "-f", folder)
	cmd.Dir = t.TempDir()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("dev --twin: %v\n%s", err, said.String())
	}
	var list []api.Run
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	type result struct{ State, Target string }
	got, want := make(map[string]map[result]int), make(map[string]map[result]int)
	add := func(to map[string]map[result]int, agent string, r result) {
		if to[agent] == nil {
			to[agent] = make(map[result]int)
		}
		to[agent][r]++
	}
	for _, r := range list {
		target := ""
		if len(r.Attempts) > 0 {
			target = r.Attempts[len(r.Attempts)-1].Target
		}
		add(got, r.Agent, result{r.State, target})
		add(want, r.Agent, result{"succeeded", r.Agent})
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 4 {
		t.Errorf("%d agents had runs, want 4; -want +got:\n%s\n%s", len(got), diff, said.String())
	}
}
