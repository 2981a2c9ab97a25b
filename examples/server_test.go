package examples

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/clerk"
	"github.com/errand-run/errand/shared/cli"
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

// server is an `errand dev` on data of its own.
type server struct {
	*api.Client
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
	done chan struct{}
	log  *transcript
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
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// serve starts a server on what stage has put into a folder, and ends it with the test.
func serve(t *testing.T, dir string) *server {
	t.Helper()
	s := &server{t: t, dir: dir, log: new(transcript)}
	// Below the ports that connections are made from: a client that dials a dead server could be given its port.
	for try := 0; s.addr == ""; try++ {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.N(12_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			s.addr = addr
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		} else if try == 100 {
			t.Fatal(err)
		}
	}
	client, err := api.NewClient(api.Options{URL: "http://" + s.addr})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = client
	s.boot()
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(patience / 2):
			_ = s.cmd.Process.Kill()
			<-s.done
			t.Error("the server does not end when it is told to")
		}
		if t.Failed() {
			t.Logf("the server wrote:\n%s", s.log.tail())
		}
	})
	return s
}

// boot starts the server's process and waits until it serves.
func (s *server) boot() {
	s.t.Helper()
	s.cmd = errand(s.dir, "dev", "--addr", s.addr, "--data", filepath.Join(s.dir, "errand.db"), "-f", filepath.Join(s.dir, "fleet"))
	stdout, w := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr, s.done = w, s.log, make(chan struct{})
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, done, serving := s.cmd, s.done, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		_ = w.Close()
		close(done)
	}()
	go func() {
		told := false
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if !told && strings.HasPrefix(lines.Text(), "serving ") {
				told = true
				close(serving)
			}
			fmt.Fprintln(s.log, lines.Text())
		}
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case <-serving:
	case <-done:
		s.t.Fatalf("the server ended:\n%s", s.log.tail())
	case <-time.After(patience):
		s.t.Fatalf("the server does not serve:\n%s", s.log.tail())
	}
}

// crash kills the server as a power cut would, and starts the next one on what it left.
func (s *server) crash() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	<-s.done
	// A program that the server was just starting holds what the server held until it is a process of its own.
	s.eventually("the port is free again", func() bool {
		l, err := net.Listen("tcp", s.addr)
		if err == nil {
			err = l.Close()
		}
		return err == nil
	})
	s.boot()
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
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	run, err := s.WaitRun(ctx, id)
	if err != nil {
		tree, _ := s.Tree(s.t.Context(), id)
		s.t.Fatalf("run %s does not end: %v\n%s", id, err, drawn(tree, 0))
	}
	return run
}

// eventually polls what happens in other processes until it is so.
func (s *server) eventually(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s", patience, what)
		}
	}
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
	cmd.Env = append(cmd.Env, "ERRAND_SERVER=http://"+s.addr)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if err != nil {
		s.t.Logf("errand %s: %v: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out.String(), cmd.ProcessState.ExitCode()
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

// transcript keeps what a process wrote.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *transcript) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.text.String()
	return text[max(0, len(text)-8<<10):]
}
