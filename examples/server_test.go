package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/clerk"
	"github.com/errand-run/errand/shared/cli"
	"github.com/errand-run/errand/shared/devtest"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/patterns"
	"github.com/errand-run/errand/shared/runtime/process"
)

// parts are what the test binary is when it is called by another name: the errand command, and the programs of the
// fleets. So nothing has to be built, and the race detector watches all of them.
var parts = map[string]func(){
	"errand":   func() { os.Exit(cli.Main(os.Args[1:])) },
	"patterns": func() { agent.MainOf(patterns.Agents()) },
	"clerk":    func() { agent.MainOf(clerk.Agents()) },
}

// playPart is the program that the process was called as, if it is one of the parts.
func playPart() {
	process.Warden()
	if part := parts[filepath.Base(os.Args[0])]; part != nil {
		part()
	}
}

// server is an `errand dev` in a folder of the test.
type server struct {
	*devtest.Server
	t   *testing.T
	dir string
}

// builtBy is how a manifest of the examples says where its program comes from.
var builtBy = regexp.MustCompile(`dir: [./]+, build: \[[^\]]*\], `)

// stage copies manifests into a folder of the test, where bin/ has the parts, and returns the folder.
func stage(t *testing.T, manifests ...string) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"bin", "fleet"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name := range parts {
		if err := os.Symlink(self, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	for i, manifest := range manifests {
		text, err := os.ReadFile(manifest)
		if err != nil {
			t.Fatal(err)
		}
		text = builtBy.ReplaceAll(text, fmt.Appendf(nil, "dir: %q, ", dir))
		if bytes.Contains(text, []byte("build:")) {
			t.Fatalf("%s: an agent is built in a way that the test does not know", manifest)
		}
		if err := os.WriteFile(filepath.Join(dir, "fleet", fmt.Sprintf("%d.yaml", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// errand is a command of the errand program, in the folder of the test.
func errand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(dir, "bin", "errand"), args...)
	cmd.Dir = dir
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// serve starts a server on what stage has put into a folder. At the end of the test it is told to end, and has to.
func serve(t *testing.T, dir string) *server {
	t.Helper()
	s := &server{t: t, dir: dir, Server: devtest.Serve(t, func(addr string) *exec.Cmd {
		return errand(dir, "dev", "--addr", addr, "--data", filepath.Join(dir, "errand.db"), "-f", filepath.Join(dir, "fleet"))
	})}
	t.Cleanup(func() {
		s.Send(t, syscall.SIGTERM)
		s.Code(t)
	})
	return s
}

// submit starts a run of an agent or a workflow.
func (s *server) submit(sub api.Submit) *api.Run {
	s.t.Helper()
	run, _, err := s.Submit(s.t.Context(), sub)
	if err != nil {
		s.t.Fatal(err)
	}
	return run
}

// end waits for the end of a run.
func (s *server) end(id string) *api.Run {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), outside.Patience)
	defer cancel()
	run, err := s.WaitRun(ctx, id)
	if err != nil {
		tree, _ := s.Tree(s.t.Context(), id)
		s.t.Fatalf("run %s does not end: %v\n%s", id, err, drawn(tree, 0))
	}
	return run
}

// each walks a tree of runs, parents first.
func each(node *api.TreeNode, visit func(*api.Run)) {
	if node == nil {
		return
	}
	visit(&node.Run)
	for i := range node.Children {
		each(&node.Children[i], visit)
	}
}

// drawn is a tree for people.
func drawn(node *api.TreeNode, depth int) string {
	if node == nil {
		return ""
	}
	r := &node.Run
	text := fmt.Sprintf("%s%s %s: %s %s %s\n", strings.Repeat("  ", depth), r.Stage, r.Name(), r.State, r.Reason, r.Message)
	for i := range node.Children {
		text += drawn(&node.Children[i], depth+1)
	}
	return text
}

// tree is a run with all below it.
func (s *server) tree(id string) *api.TreeNode {
	s.t.Helper()
	tree, err := s.Tree(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return tree
}

// count is how many runs below a run are of an agent.
func (s *server) count(id, agent string) (n int) {
	s.t.Helper()
	each(s.tree(id), func(r *api.Run) {
		if r.Agent == agent {
			n++
		}
	})
	return n
}

// command runs a command of errand against the server to its end.
func (s *server) command(args ...string) (stdout string, code int) {
	s.t.Helper()
	cmd := errand(s.dir, args...)
	cmd.Env = append(cmd.Env, "ERRAND_SERVER=http://"+s.Addr)
	var out bytes.Buffer
	cmd.Stdout = &out
	p := outside.Start(s.t, cmd)
	if code = p.Code(s.t); code != 0 {
		s.t.Logf("errand %s: exit code %d: %s", strings.Join(args, " "), code, p.Log.Tail())
	}
	return out.String(), code
}

// outputOf reads a run's output into a value.
func outputOf[T any](t *testing.T, run *api.Run) T {
	t.Helper()
	var out T
	if run.State != "succeeded" {
		t.Fatalf("%s %s: %s (%s): %s", run.Name(), run.ID, run.State, run.Reason, run.Message)
	}
	if err := json.Unmarshal(run.Output, &out); err != nil {
		t.Fatalf("output of %s: %v: %s", run.Name(), err, run.Output)
	}
	return out
}
