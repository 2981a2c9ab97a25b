package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	envWarden   = "ERRAND_WARDEN" // grace of the warden, in Go's notation; its presence makes this process one
	wardenPipe  = 3               // file descriptor that the warden reads
	reviveAfter = time.Second     // between the death of a warden and the next
	tellWithin  = time.Second     // how long a warden may take to read
	lastMoment  = 100 * time.Millisecond
)

// armed says that main has called Warden.
var armed atomic.Bool

// Warden must be called first thing in main (in a test binary: in TestMain) of every program whose hosts have a warden.
// In the helper process it does the helper's work and never returns; elsewhere it returns at once.
func Warden() {
	armed.Store(true)
	text, ok := os.LookupEnv(envWarden)
	if !ok {
		return
	}
	grace, err := time.ParseDuration(text)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s=%q: want a duration; this variable is for errand's own use\n", envWarden, text)
		os.Exit(2)
	}
	// Whoever stops the host may signal all that it finds. The warden ends when the host has.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	groups, host := attend(os.NewFile(wardenPipe, "groups"))
	endGroups(groups, grace)
	if host != "" {
		// What it started in its last moment it could not tell of: that may be about to become a program of its own.
		for range 2 {
			time.Sleep(lastMoment)
			endGroups(groupsOf(host), grace)
		}
	}
	os.Exit(0)
}

// attend follows the host's words until they end, and returns the groups that are there then, and which host it was if
// that has died.
func attend(r io.Reader) (left []group, host string) {
	groups := make(map[int]group)
	for scan := bufio.NewScanner(r); scan.Scan(); {
		sign, rest, _ := strings.Cut(scan.Text(), " ")
		switch sign {
		case "=": // without a name it closes
			host = rest
		case "+":
			if g, err := parseGroup(rest); err == nil {
				groups[g.pgid] = g
			}
		case "-":
			if pgid, err := strconv.Atoi(rest); err == nil {
				delete(groups, pgid)
			}
		}
	}
	return slices.Collect(maps.Values(groups)), host
}

// guard is the host's side of a warden. It replaces one that dies. A nil guard guards nothing.
type guard struct {
	host  string // Host.id
	grace time.Duration
	log   *slog.Logger

	mu     sync.Mutex
	groups map[int]group
	pipe   *os.File // nil while there is no warden
	pid    int
	exited chan struct{}
	closed bool
}

func startGuard(host string, grace time.Duration, log *slog.Logger) (*guard, error) {
	// The helper is this program once more: without the call it would do all of the program's work a second time.
	if !armed.Load() {
		return nil, errors.New("start the warden process: main (in a test binary, TestMain) has to call process.Warden first")
	}
	g := &guard{host: host, grace: grace, log: log, groups: make(map[int]group)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.launch(); err != nil {
		return nil, fmt.Errorf("start the warden process: %w", err)
	}
	return g, nil
}

// launch needs the lock.
func (g *guard) launch() error {
	self, err := selfPath()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// It keeps nothing of the host open but the pipe, and knows none of its secrets.
	cmd := &exec.Cmd{
		Path: self, Args: []string{"errand-warden"}, Dir: "/", Env: []string{envWarden + "=" + g.grace.String()},
		ExtraFiles: []*os.File{r}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return err
	}
	g.pipe, g.pid, g.exited = w, cmd.Process.Pid, make(chan struct{})
	g.tell("= %s\n", g.host)
	for _, each := range g.groups {
		g.tell("+ %s\n", each)
	}
	go g.follow(cmd, w, g.exited)
	return nil
}

// follow waits for a warden's end and, unless the host is closing, starts another.
func (g *guard) follow(cmd *exec.Cmd, w *os.File, exited chan struct{}) {
	_ = cmd.Wait()
	close(exited)
	_ = w.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pipe, g.pid = nil, 0
	if !g.closed {
		g.log.Warn("the warden process ended; starting another", "pid", cmd.Process.Pid, "status", cmd.ProcessState.String())
		time.AfterFunc(reviveAfter, g.revive)
	}
}

func (g *guard) revive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.pipe != nil {
		return
	}
	if err := g.launch(); err != nil {
		g.log.Error("no warden process: programs outlive this process if it is killed", "error", err)
		time.AfterFunc(10*reviveAfter, g.revive)
	}
}

// tell needs the lock. A warden that does not listen is ended, so that another takes over.
func (g *guard) tell(format string, args ...any) {
	if g.pipe == nil {
		return
	}
	_ = g.pipe.SetWriteDeadline(time.Now().Add(tellWithin))
	if _, err := fmt.Fprintf(g.pipe, format, args...); err != nil {
		g.log.Warn("the warden process does not listen", "error", err)
	}
}

func (g *guard) add(each group) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[each.pgid] = each
	g.tell("+ %s\n", each)
}

func (g *guard) remove(pgid int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, pgid)
	g.tell("- %d\n", pgid)
}

// close ends the warden, which finds nothing to do, and waits for it.
func (g *guard) close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.closed = true
	if g.pipe != nil {
		g.tell("=\n")
		_ = g.pipe.Close()
	}
	exited := g.exited
	g.mu.Unlock()
	<-exited
}
