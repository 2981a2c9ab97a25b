package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli"
	"github.com/errand-run/errand/shared/devtest"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/runtime/process"
)

// The test binary is also the errand command and every agent: envRole says which part a process plays. So nothing has
// to be built, and the race detector watches all of them.
const (
	envRole    = "E2E_ROLE"
	roleErrand = "errand"
	// envDir is the test's folder, where programs leave notes.
	envDir = "E2E_DIR"
)

// programs are the agents, by role. A file of tests adds its own in an init function.
var programs = make(map[string]func())

func TestMain(m *testing.M) {
	process.Warden()
	switch role := os.Getenv(envRole); role {
	case "":
		flag.Parse()
		given := false
		flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
		if !given {
			// Most of what these tests do is wait for leases and graces to pass.
			if err := flag.Set("test.parallel", "12"); err != nil {
				panic(err)
			}
		}
		os.Exit(m.Run())
	case roleErrand:
		os.Exit(cli.Main(os.Args[1:]))
	default:
		main := programs[role]
		if main == nil {
			fmt.Fprintf(os.Stderr, "%s=%q: no such program\n", envRole, role)
			os.Exit(2)
		}
		note("pids", strconv.Itoa(os.Getpid()))
		main()
	}
}

// note appends a line to a file of the test's folder, whole even when many processes write. It is the outside world of
// agents: what stands there has happened.
func note(file, line string) {
	f, err := os.OpenFile(filepath.Join(os.Getenv(envDir), file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "note:", err)
		os.Exit(2)
	}
}

// self is the test binary.
var self = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
})

// place is the folder of one test: its data, its notes, what its processes wrote.
type place struct {
	t   *testing.T
	dir string
}

// newPlace also looks, when the test is over, whether a process of it is left and whether one had a data race.
func newPlace(t *testing.T) *place {
	p := &place{t: t, dir: t.TempDir()}
	t.Cleanup(func() {
		for _, pid := range p.pids() {
			p.gone(pid)
		}
		races, _ := filepath.Glob(filepath.Join(p.dir, "race.*"))
		for _, file := range races {
			text, _ := os.ReadFile(file)
			t.Errorf("a process had a data race:\n%s", text)
		}
	})
	return p
}

// notes are the lines of a file that programs wrote.
func (p *place) notes(file string) []string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// pids are all processes that programs of the test ever were.
func (p *place) pids() []int {
	var pids []int
	for _, text := range p.notes("pids") {
		pid, err := strconv.Atoi(text)
		if err != nil {
			p.t.Fatalf("note of a pid: %v", err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// gone waits for the end of a process of this test. One that is left is an error, and is killed.
func (p *place) gone(pid int) {
	p.t.Helper()
	end := time.Now().Add(outside.Patience / 2)
	for alive(pid) {
		if time.Now().After(end) {
			p.t.Errorf("process %d is left running", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// alive reports whether a process of this test binary lives under the number; the number may have gone to another one,
// and a dead one may wait for its parent.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return bytes.HasPrefix(text, []byte(self()))
	}
	text, _ := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return bytes.HasPrefix(text, []byte(self()))
}

// environment is what a process of the test is started with, later variables winning.
func (p *place) environment(role string, more ...string) []string {
	env := []string{envRole + "=" + role, envDir + "=" + p.dir, "GORACE=" + p.gorace()}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, more...)
}

// gorace has what the race detector finds written to a file, and leaves out the second that it waits at a process's end.
func (p *place) gorace() string {
	return "atexit_sleep_ms=0 log_path=" + filepath.Join(p.dir, "race")
}

// start starts the test binary in a role. Both streams go to the log unless stdout is given.
func (p *place) start(env []string, stdout io.Writer, args ...string) *outside.Program {
	p.t.Helper()
	return outside.Start(p.t, p.command(env, stdout, args...))
}

// command is the test binary in a role.
func (p *place) command(env []string, stdout io.Writer, args ...string) *exec.Cmd {
	cmd := exec.Command(self(), args...)
	cmd.Env, cmd.Dir, cmd.Stdout = env, p.dir, stdout
	return cmd
}

// program starts a program outside of any server, such as a worker that connects to one.
func (p *place) program(role string, more ...string) *outside.Program {
	p.t.Helper()
	return p.start(p.environment(role, more...), nil)
}

// server is an `errand dev` in a place.
type server struct {
	*place
	*devtest.Server
}

// newServer starts a server on manifests and waits until it serves them.
func newServer(t *testing.T, manifests ...string) *server {
	t.Helper()
	return newServerAt(newPlace(t), manifests...)
}

func newServerAt(p *place, manifests ...string) *server {
	p.t.Helper()
	args := []string{"dev", "--data", filepath.Join(p.dir, "errand.db")}
	if len(manifests) > 0 {
		file := filepath.Join(p.dir, "fleet.yaml")
		if err := os.WriteFile(file, []byte(strings.Join(manifests, "\n---\n")), 0o600); err != nil {
			p.t.Fatal(err)
		}
		args = append(args, "-f", file)
	}
	return &server{p, devtest.Serve(p.t, func(addr string) *exec.Cmd {
		return p.command(p.environment(roleErrand), nil, append(args, "--addr", addr)...)
	})}
}

// agent is a manifest of an agent that the server starts as one of the programs, to be spoken to in the protocol. The
// spec's lines follow.
func (p *place) agent(name, program, protocol, spec string) string {
	return fmt.Sprintf(`apiVersion: errand.dev/v1
kind: Agent
metadata: {name: %s}
spec:
  run:
    command: [%q]
    env: {%s: %q, %s: %q, GORACE: %q}
    protocol: %s
%s`, name, self(), envRole, program, envDir, p.dir, p.gorace(), protocol, indent(spec))
}

// indent takes the tabs of Go code off a block of YAML and puts it under spec.
func indent(block string) string {
	lines := strings.Split(strings.Trim(block, "\n"), "\n")
	depth := len(lines[0]) - len(strings.TrimLeft(lines[0], "\t"))
	for i, line := range lines {
		lines[i] = "  " + strings.ReplaceAll(line[min(depth, len(line)):], "\t", "  ")
	}
	return strings.Join(lines, "\n")
}

// workerEnv is the environment with which a program serves agents as a worker of the server.
func (s *server) workerEnv(agents string, slots int) []string {
	return []string{"ERRAND_URL=http://" + s.Addr, "ERRAND_AGENT=" + agents, "ERRAND_SLOTS=" + strconv.Itoa(slots)}
}

// errand runs the command against the server to its end.
func (s *server) errand(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	var out bytes.Buffer
	c := s.start(s.environment(roleErrand, "ERRAND_SERVER=http://"+s.Addr), &out, args...)
	code = c.Code(s.t)
	return out.String(), c.Log.String(), code
}

// do fails the test on an error, and hands on the value.
func do[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// apply declares more while the server runs.
func (s *server) apply(manifests ...string) {
	s.t.Helper()
	do(s.Apply(s.t.Context(), []byte(strings.Join(manifests, "\n---\n")), api.ApplyOptions{}))(s.t)
}

// submit starts a run of an agent.
func (s *server) submit(agent, input string) *api.Run {
	s.t.Helper()
	return s.submitRun(api.Submit{Agent: agent, Input: []byte(input)})
}

func (s *server) submitRun(r api.Submit) *api.Run {
	s.t.Helper()
	run, _, err := s.Submit(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return run
}

// get is the run as it is.
func (s *server) get(id string) *api.Run {
	s.t.Helper()
	return do(s.Client.Run(s.t.Context(), id, 0))(s.t)
}

// until polls a run until it is so.
func (s *server) until(id, what string, is func(*api.Run) bool) *api.Run {
	s.t.Helper()
	var r *api.Run
	outside.Eventually(s.t, outside.Patience, fmt.Sprintf("run %s %s", id, what), func() bool {
		r = s.get(id)
		if r.Terminal() && !is(r) {
			s.t.Fatalf("run %s is %s (%s: %s) and not %s", id, r.State, r.Reason, r.Message, what)
		}
		return is(r)
	})
	return r
}

// reaches polls a run until it is in a state.
func (s *server) reaches(id string, states ...string) *api.Run {
	s.t.Helper()
	return s.until(id, strings.Join(states, " or "), func(r *api.Run) bool { return slices.Contains(states, r.State) })
}

// ends waits for the end of a run.
func (s *server) ends(id string) *api.Run {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), outside.Patience)
	defer cancel()
	return do(s.WaitRun(ctx, id))(s.t)
}

// history is a run's events, oldest first.
func (s *server) history(id string) []api.Event {
	s.t.Helper()
	var events []api.Event
	for e, err := range s.Events(s.t.Context(), id) {
		if err != nil {
			s.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// attempts are a run's attempts, oldest first.
func (s *server) attempts(id string) []api.Attempt {
	s.t.Helper()
	return do(s.Attempts(s.t.Context(), id))(s.t).Items
}

// output decodes what a run returned.
func output[T any](t *testing.T, r *api.Run) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.Output, &v); err != nil {
		t.Fatalf("output of run %s: %v: %.200s", r.ID, err, r.Output)
	}
	return v
}

// used counts the slots in use on all targets.
func (s *server) used() int {
	s.t.Helper()
	used := 0
	for _, target := range do(s.Stats(s.t.Context(), api.StatsFilter{}))(s.t).Target {
		used += target.Used
	}
	return used
}
