package process

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/shared/outside"
)

// envHostProgram makes the test binary a host that starts a program, prints the pids it is told, and waits for ever.
const envHostProgram = "TEST_HOST"

func TestMain(m *testing.M) {
	Warden()
	if how := os.Getenv(envHostProgram); how != "" {
		hostProgram(how)
	}
	goleak.VerifyTestMain(m)
}

// stubborn ignores SIGTERM, as its child does, and prints both pids.
const stubborn = `trap "" TERM; sleep 300 & echo $! $$ >&2; wait`

func hostProgram(how string) {
	kind, rest, _ := strings.Cut(how, ":")
	o := Options{Grace: 50 * time.Millisecond}
	script := stubborn
	switch kind {
	case "warden", "untold":
		o.Warden = true
	case "ledger":
		o.Ledger = rest
	case "orphan": // the leader ends with its host, its child does not
		o.Ledger = rest
		script = `sleep 300 & echo $! $$ >&2; read line; exit 0`
	}
	h, err := NewHost(o)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	ready := make(chan struct{})
	spec := Spec{Command: []string{"sh", "-c", script}, Env: Environment(), Lines: func(_, text string) { <-ready; fmt.Println(text) }}
	if kind == "orphan" {
		// Its input stays open as long as the host lives.
		spec.Stdin = []byte(strings.Repeat(" ", 1<<20))
	}
	p, err := h.Start(spec)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	if kind == "untold" { // as if the host was killed before it said what it has started
		h.guard.remove(p.pgid)
	}
	close(ready)
	select {}
}

func open(t *testing.T, o Options) *Host {
	t.Helper()
	h, err := NewHost(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func start(t *testing.T, h *Host, spec Spec) *Process {
	t.Helper()
	if spec.Env == nil {
		spec.Env = Environment()
	}
	p, err := h.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(0); <-p.Done() })
	return p
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func ended(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the program does not end")
	}
	return p.Exit()
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	return runtime.GOOS != "linux" || !zombie(pid)
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

func TestExit(t *testing.T) {
	tests := map[string]struct {
		spec      Spec
		stop      bool
		want      Exit
		wantCause error
	}{
		"output, input and exit code are what the program makes them": {
			spec: Spec{Command: sh(`cat; echo no good >&2; exit 3`), Stdin: []byte("hello"), MaxOutput: 100},
			want: Exit{Code: 3, Stdout: []byte("hello"), Tail: "no good"},
		},
		"a program that reads none of a large input still succeeds": {
			spec: Spec{Command: sh(`echo done`), Stdin: make([]byte, 1<<20), MaxOutput: 100},
			want: Exit{Stdout: []byte("done\n")},
		},
		"output of exactly the limit is kept": {
			spec: Spec{Command: sh(`printf 12345`), MaxOutput: 5},
			want: Exit{Stdout: []byte("12345")},
		},
		"output over the limit kills": {
			spec:      Spec{Command: sh(`printf 123456; sleep 300`), MaxOutput: 5},
			want:      Exit{Code: -1, Signal: syscall.SIGKILL},
			wantCause: ErrOutput,
		},
		"the time limit stops": {
			spec:      Spec{Command: sh(`sleep 300`), Limit: 50 * time.Millisecond, Grace: time.Minute},
			want:      Exit{Code: -1, Signal: syscall.SIGTERM},
			wantCause: ErrTime,
		},
		"a signal from elsewhere has no cause of ours": {
			spec: Spec{Command: sh(`kill -SEGV $$`)},
			want: Exit{Code: -1, Signal: syscall.SIGSEGV},
		},
		"only the end of a long standard error is kept": {
			spec: Spec{Command: sh(`i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done >&2; echo last >&2`)},
			want: Exit{Tail: tailOfCount(3000)},
		},
	}
	h := open(t, Options{})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ended(t, start(t, h, tt.spec))
			if !errors.Is(got.Cause, tt.wantCause) {
				t.Errorf("cause %v, want %v", got.Cause, tt.wantCause)
			}
			got.Cause = nil
			if len(got.Stdout) == 0 {
				got.Stdout = nil
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("exit (-want +got):\n%s", diff)
			}
		})
	}
}

func tailOfCount(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintln(&all, i)
	}
	all.WriteString("last\n")
	return strings.TrimSpace(all.String()[all.Len()-MaxTail:])
}

// A program that ignores SIGTERM, and whose child does, is gone with all of its group when its end is told.
func TestStopKillsTheWholeGroup(t *testing.T) {
	h := open(t, Options{})
	pids := make(chan []int, 1)
	p := start(t, h, Spec{Command: sh(stubborn), Lines: func(_, text string) { pids <- numbers(text) }})
	group := <-pids
	p.Stop(time.Hour)
	p.Stop(20 * time.Millisecond) // a second stop shortens the grace
	p.Stop(time.Hour)             // and none prolongs it
	exit := ended(t, p)
	if !errors.Is(exit.Cause, ErrStopped) || exit.Signal != syscall.SIGKILL || exit.Left {
		t.Errorf("exit %+v, want killed after being stopped", exit)
	}
	for _, pid := range group {
		if alive(pid) {
			t.Errorf("process %d lives although the end was told", pid)
		}
	}
}

func TestStopAsksFirst(t *testing.T) {
	h := open(t, Options{})
	ready := make(chan struct{})
	var once sync.Once
	p := start(t, h, Spec{
		Command:   sh(`trap 'echo saved; exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done`),
		MaxOutput: 100, Lines: func(string, string) { once.Do(func() { close(ready) }) },
	})
	<-ready
	p.Stop(time.Minute)
	exit := ended(t, p)
	if exit.Code != 0 || string(exit.Stdout) != "saved\n" || !errors.Is(exit.Cause, ErrStopped) {
		t.Errorf("exit %+v, want a clean end with its last output", exit)
	}
}

// What a program leaves running in its group ends with it, and does not hold up its output.
func TestLeftoversEndWithTheProgram(t *testing.T) {
	h := open(t, Options{})
	p := start(t, h, Spec{Command: sh(`sleep 300 & echo $!`), MaxOutput: 100})
	exit := ended(t, p)
	if exit.Code != 0 || exit.Cause != nil {
		t.Errorf("exit %+v, want its own clean end", exit)
	}
	if pid := numbers(string(exit.Stdout)); len(pid) != 1 || alive(pid[0]) {
		t.Errorf("process %v lives although the end was told", pid)
	}
}

func TestMemoryLimit(t *testing.T) {
	h := open(t, Options{})
	hog := `a=x; while :; do a=$a$a; [ ${#a} -gt 67108864 ] && break; done; sleep 300`
	p := start(t, h, Spec{Command: sh(hog), Memory: 32 << 20})
	small := start(t, h, Spec{Command: sh(`sleep 300`), Memory: 512 << 20})
	if exit := ended(t, p); !errors.Is(exit.Cause, ErrMemory) {
		t.Errorf("exit %+v, want ErrMemory", exit)
	}
	select {
	case <-small.Done():
		t.Error("a program within its limit was killed")
	default:
	}
}

func TestLines(t *testing.T) {
	h := open(t, Options{})
	var mu sync.Mutex
	got := map[string][]string{}
	long := strings.Repeat("é", MaxLine)
	p := start(t, h, Spec{
		Command: sh(`printf 'one\r\n\ntwo' ; printf 'bad \377 byte\n' >&2; cat >&2`), Stdin: []byte(long),
		Lines: func(stream, text string) { mu.Lock(); got[stream] = append(got[stream], text); mu.Unlock() },
	})
	ended(t, p)
	if diff := cmp.Diff([]string{"one", "", "two"}, got["stdout"]); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	e := got["stderr"]
	if len(e) != 2 || e[0] != "bad \uFFFD byte" || len(e[1]) > MaxLine || !strings.HasSuffix(e[1], "éé…") {
		t.Errorf("stderr %.200q", e)
	}
}

func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		spec Spec
		want string
	}{
		"a program that is nowhere in PATH":     {Spec{Command: []string{"no-such-program-here"}}, "command no-such-program-here: not found in PATH (/"},
		"a path that does not exist":            {Spec{Command: []string{"./missing"}, Dir: dir}, "command ./missing in " + dir + ": no such file or directory"},
		"a file that may not be executed":       {Spec{Command: []string{"./plain"}, Dir: dir}, "it is not executable"},
		"a directory instead of a program":      {Spec{Command: []string{dir}}, "it is a directory"},
		"a working directory that is missing":   {Spec{Command: []string{"sh"}, Dir: dir + "/x"}, "directory " + dir + "/x: no such file or directory"},
		"a working directory that is a file":    {Spec{Command: []string{"sh"}, Dir: plain}, "it is a file"},
		"no command":                            {Spec{}, "no command is given"},
		"a PATH of the agent's own is searched": {Spec{Command: []string{"sh"}, Env: []string{"PATH=" + dir}}, "not found in PATH (" + dir + ")"},
	}
	h := open(t, Options{})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.spec.Env == nil {
				tt.spec.Env = Environment()
			}
			_, err := h.Start(tt.spec)
			if !errors.Is(err, ErrNotStarted) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("error %v, want ErrNotStarted with %q", err, tt.want)
			}
		})
	}
}

func TestEnvironmentKeepsSecretsBack(t *testing.T) {
	t.Setenv("DATABASE_PASSWORD", "hunter2")
	t.Setenv("LANG", "C")
	h := open(t, Options{})
	p := start(t, h, Spec{Command: sh("env"), MaxOutput: 1 << 16, Env: Environment(map[string]string{"A": "1", "B": "1"}, map[string]string{"B": "2"})})
	var names []string
	for line := range strings.Lines(string(ended(t, p).Stdout)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "PWD", "SHLVL", "_", "OLDPWD": // a shell's own
		case "A", "B", "LANG":
			names = append(names, name+"="+value)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	want := []string{"A=1", "B=2", envHost, "HOME", "LANG=C", "PATH"}
	if _, ok := os.LookupEnv("TMPDIR"); ok {
		want = append(want, "TMPDIR")
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

// killedHost starts the test binary as a host, kills it with SIGKILL once its program runs, and returns the pids of the
// program and its child.
func killedHost(t *testing.T, how string) []int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envHostProgram+"="+how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pids := numbers(line)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || len(pids) != 2 {
		t.Fatalf("the host said %q, %v", line, err)
	}
	t.Cleanup(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pids
}

func TestWardenEndsWhatAKilledHostLeaves(t *testing.T) {
	for name, how := range map[string]string{
		"a program that it told of":                              "warden",
		"a program that it had just started, and told nobody of": "untold",
	} {
		t.Run(name, func(t *testing.T) {
			if how == "untold" && runtime.GOOS != "linux" {
				t.Skip("the environment of others cannot be read here")
			}
			for _, pid := range killedHost(t, how) {
				outside.Eventually(t, outside.Patience, "the program of the killed host is gone", func() bool { return !alive(pid) })
			}
		})
	}
}

func TestWardenIsReplacedWhenItDies(t *testing.T) {
	h := open(t, Options{Warden: true})
	pid := func() int {
		h.guard.mu.Lock()
		defer h.guard.mu.Unlock()
		return h.guard.pid
	}
	first := pid()
	p := start(t, h, Spec{Command: sh(`sleep 300`)})
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	outside.Eventually(t, outside.Patience, "another warden runs", func() bool { return pid() != 0 && pid() != first })
	p.Stop(0)
	ended(t, p)
}

func TestLedgerEndsWhatADeadHostLeft(t *testing.T) {
	for name, how := range map[string]string{
		"a group with its leader":                  "ledger",
		"a group whose leader ended with its host": "orphan",
	} {
		t.Run(name, func(t *testing.T) {
			if how == "orphan" && runtime.GOOS != "linux" {
				t.Skip("without its leader a group cannot be told from another here")
			}
			path := filepath.Join(t.TempDir(), "ledger")
			pids := killedHost(t, how+":"+path)
			if how == "orphan" {
				outside.Eventually(t, outside.Patience, "the leader is gone", func() bool { return !alive(pids[1]) })
			}
			if !alive(pids[0]) {
				t.Fatal("nothing was left to end")
			}
			open(t, Options{Ledger: path, Grace: 50 * time.Millisecond})
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("process %d lives after the successor started", pid)
				}
			}
		})
	}
}

func TestLedgerSparesOthers(t *testing.T) {
	victim := exec.Command("sleep", "300")
	victim.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	began, ok := startOf(victim.Process.Pid)
	if !ok {
		t.Fatal("no start time")
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	line := func(start int64) string {
		return string(slot(group{pgid: victim.Process.Pid, start: start, host: "H"}.String()))
	}
	tests := map[string]struct {
		content string
		dies    bool
	}{
		"a process that started at another time":  {string(slot(ledgerTitle+" "+boot)) + line(began+1), false},
		"a process of another boot":               {string(slot(ledgerTitle+" other")) + line(began), false},
		"an entry cut short":                      {string(slot(ledgerTitle+" "+boot)) + line(began)[:20], false},
		"entries that would signal everything":    {string(slot(ledgerTitle+" "+boot)) + string(slot("1 1 H")) + string(slot("0 1 H")) + string(slot("-1 1 H")), false},
		"z: the very process, to show it is seen": {string(slot(ledgerTitle+" "+boot)) + string(slot("")) + line(began), true},
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range tests {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			if err := os.WriteFile(path, []byte(tests[name].content), 0o600); err != nil {
				t.Fatal(err)
			}
			open(t, Options{Ledger: path})
			if got := !alive(victim.Process.Pid); got != tests[name].dies {
				t.Errorf("ended %v, want %v", got, tests[name].dies)
			}
		})
	}
}

func TestLedgerIsForOneHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	h := open(t, Options{Ledger: path})
	if _, err := NewHost(Options{Ledger: path}); err == nil || !strings.Contains(err.Error(), "another running errand uses it") {
		t.Errorf("error %v", err)
	}
	if err := os.WriteFile(path+"2", []byte("something of mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewHost(Options{Ledger: path + "2"}); err == nil || !strings.Contains(err.Error(), "a file of another kind") {
		t.Errorf("error %v", err)
	}
	// Slots are used again: the file is as large as most programs at once.
	for range 3 {
		a := start(t, h, Spec{Command: sh("sleep 300")})
		b := start(t, h, Spec{Command: sh("sleep 300")})
		a.Stop(0)
		b.Stop(0)
		ended(t, a)
		ended(t, b)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 3*slotBytes {
		t.Errorf("ledger of %d bytes, %v; want %d", info.Size(), err, 3*slotBytes)
	}
}

func TestCloseEndsStarting(t *testing.T) {
	h := open(t, Options{Warden: true})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(Spec{Command: sh("sleep 300"), Env: Environment()}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("error %v, want ErrNotStarted", err)
	}
}

func numbers(text string) (all []int) {
	for _, f := range strings.Fields(text) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

// Whatever stands in a ledger, no group comes of it that a signal could reach too far with.
func FuzzReadLedger(f *testing.F) {
	title := string(slot(ledgerTitle + " boot"))
	f.Add(title + string(slot("123 456 HOST")))
	f.Add(title + string(slot("-1 0 x")) + "12")
	f.Add(title[:30])
	f.Fuzz(func(t *testing.T, content string) {
		groups, err := readLedger(strings.NewReader(content), "boot", slog.New(slog.DiscardHandler))
		for _, g := range groups {
			if g.pgid <= 1 || err != nil {
				t.Errorf("group %v, %v", g, err)
			}
		}
	})
}

func TestAWardenNeedsItsCallInMain(t *testing.T) {
	defer armed.Store(armed.Swap(false))
	h, err := NewHost(Options{Warden: true})
	if err == nil {
		_ = h.Close()
		t.Fatal("a host with a warden was opened in a program that would start all of its own work a second time")
	}
	if !strings.Contains(err.Error(), "process.Warden") {
		t.Errorf("the error is %q, want one that names the call", err)
	}
}
