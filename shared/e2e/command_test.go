package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

// Acceptance of the command: batches that are safe to repeat, and dev --once as it is built.

func TestBatchWithAKeyIsSubmittedOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick))
	files := map[string]string{"a.json": `{"scenes": [{"act": "mail", "say": "a"}]}`, "b.json": `{"scenes": [{"act": "mail", "say": "b"}]}`}
	command := []string{"run", "actor", "--key", "march", "--wait", "-o", "json", "--for-each"}
	for _, name := range []string{"a.json", "b.json"} {
		file := filepath.Join(p.dir, name)
		if err := os.WriteFile(file, []byte(files[name]), 0o600); err != nil {
			t.Fatal(err)
		}
		command = append(command, file)
	}
	batch := func() (ids []string) {
		t.Helper()
		stdout, stderr, code := s.errand(command...)
		var runs []api.Run
		if err := json.Unmarshal([]byte(stdout), &runs); err != nil || code != 0 {
			t.Fatalf("exit %d, error %v\n%s%s", code, err, stdout, stderr)
		}
		for _, r := range runs {
			if r.State != "succeeded" {
				t.Errorf("%+v", r)
			}
			ids = append(ids, r.ID)
		}
		return ids
	}
	// 1. Twice, also over a kill of the server, is once.
	first := batch()
	if diff := cmp.Diff(first, batch()); len(first) != 2 || diff != "" {
		t.Errorf("runs of the second time (-first +second):\n%s", diff)
	}
	s.Reboot()
	if diff := cmp.Diff(first, batch()); diff != "" {
		t.Errorf("runs after a kill of the server (-before +after):\n%s", diff)
	}
	if effects := p.notes("effects"); len(effects) != 2 {
		t.Errorf("effects %q, want one of each run", effects)
	}
	// 2. Another body under the same key is refused.
	if err := os.WriteFile(filepath.Join(p.dir, "b.json"), []byte(`{"scenes": [{"say": "c"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := s.errand(command...); code != 5 || !strings.Contains(stderr, "march/b.json") {
		t.Errorf("another body: exit %d, want 5 and the key\n%s%s", code, stdout, stderr)
	}
	_, _, err := s.Submit(t.Context(), api.Submit{Agent: "actor", Key: "march/a.json", Input: []byte(`{}`)})
	var problem *api.Problem
	if !errors.As(err, &problem) || problem.Status != 409 || problem.Code() != api.CodeConflict {
		t.Errorf("another body over HTTP: %v, want 409 conflict", err)
	}
	if effects := p.notes("effects"); len(effects) != 2 {
		t.Errorf("effects %q after the refusals, want two still", effects)
	}
}

// TestBuiltCommand builds errand and runs fleets to their end with it, as a newcomer and a pipeline do.
func TestBuiltCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	errand := filepath.Join(dir, "errand")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", errand, ".")
	build.Dir = filepath.Join("..", "..")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	once := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		var out, errs bytes.Buffer
		c := exec.CommandContext(t.Context(), errand, append([]string{"dev", "--once", "--data", ":memory:", "--addr", "127.0.0.1:0"}, args...)...)
		c.Dir, c.Stdout, c.Stderr = dir, &out, &errs
		var exit *exec.ExitError
		if err := c.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errs.String(), c.ProcessState.ExitCode()
	}
	quickstart, err := filepath.Abs(filepath.Join("..", "..", "examples", "quickstart"))
	if err != nil {
		t.Fatal(err)
	}
	// 1. All succeed.
	stdout, stderr, code := once("-f", quickstart)
	summary := stdout[max(strings.LastIndex(stdout, "AGENT"), 0):]
	if code != 0 || !strings.Contains(summary, "SUCCEEDED") || !strings.Contains(summary, "echo") {
		t.Errorf("quickstart: exit %d, want 0 and a summary\n%s%s", code, stdout, stderr)
	}
	// 2. One fails.
	manifest := "apiVersion: errand.dev/v1\nkind: Agent\nmetadata: {name: sad}\nspec:\n  shape: job\n" +
		"  run: {command: [sh, -c, \"echo gone wrong >&2; exit 4\"], protocol: stdio}\n  retry: {maxAttempts: 1}\n"
	runs := "{\"agent\": \"sad\", \"input\": {}}\n"
	for name, text := range map[string]string{"fleet.yaml": manifest, "runs.jsonl": runs} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, code = once("-f", filepath.Join(dir, "fleet.yaml"), "--runs", filepath.Join(dir, "runs.jsonl"))
	if code != 6 || !strings.Contains(stdout+stderr, "gone wrong") {
		t.Errorf("a run that fails: exit %d, want 6 and why\n%s%s", code, stdout, stderr)
	}
}
