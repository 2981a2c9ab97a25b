package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestLive runs the scripts of testdata/live against real servers, in processes of their own.
func TestLive(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("the agents of these scripts need sh")
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/live",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "serve": serve, "background": background, "end": end, "until": waitUntil, "gone": gone, "first": first, "measuring": measuring,
			"manybytes": manyBytes,
		},
	})
}

// patience bounds every wait for an outside process.
const patience = 20 * time.Second

// child is a process that a script started.
type child struct {
	cmd *exec.Cmd
	log string // of both its outputs
}

// launch starts errand in the background under a name.
func launch(ts *testscript.TestScript, name string, args []string) *child {
	path, err := exec.LookPath("errand")
	ts.Check(err)
	b := &child{cmd: exec.Command(path, args...), log: ts.MkAbs(name + ".log")}
	f, err := os.Create(b.log)
	ts.Check(err)
	b.cmd.Dir, b.cmd.Env = ts.MkAbs("."), environ(ts)
	b.cmd.Stdout, b.cmd.Stderr = f, f
	ts.Check(b.cmd.Start())
	ts.Check(f.Close())
	ts.Defer(func() {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	})
	running.Store(ts.Name()+" "+name, b)
	return b
}

func environ(ts *testscript.TestScript) []string {
	env := []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	for _, name := range []string{"ERRAND_SERVER", "TOKEN"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

// running keeps the background processes by script and name. Scripts run at the same time.
var running sync.Map

var announced = regexp.MustCompile(`serving (http://\S+)`)

// serve starts errand dev on a free port and sets ERRAND_SERVER and ADDR to it: serve [ARGUMENT…].
func serve(ts *testscript.TestScript, neg bool, args []string) { serveWithin(ts, patience, args) }

func serveWithin(ts *testscript.TestScript, limit time.Duration, args []string) {
	b := launch(ts, "dev", append([]string{"dev", "--addr", "127.0.0.1:0"}, args...))
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		log, err := os.ReadFile(b.log)
		ts.Check(err)
		if m := announced.FindSubmatch(log); m != nil {
			ts.Setenv("ERRAND_SERVER", string(m[1]))
			ts.Setenv("ADDR", strings.TrimPrefix(string(m[1]), "http://"))
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("dev does not serve:\n%s", log)
		}
	}
}

// background starts errand under a name: background NAME ARGUMENT…
func background(ts *testscript.TestScript, neg bool, args []string) { launch(ts, args[0], args[1:]) }

// end sends a signal to a background process and wants an exit code: end dev INT 0. INT2 is two interrupts, the second
// when the first was heard; it and KILL want none. NONE waits for a process that ends by itself.
func end(ts *testscript.TestScript, neg bool, args []string) {
	value, ok := running.Load(ts.Name() + " " + args[0])
	if !ok {
		ts.Fatalf("%s was not started", args[0])
	}
	b := value.(*child)
	signals := map[string]os.Signal{"NONE": syscall.Signal(0), "INT": syscall.SIGINT, "INT2": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	ts.Check(b.cmd.Process.Signal(signals[args[1]]))
	if args[1] == "INT2" {
		for deadline := time.Now().Add(patience); !strings.Contains(ts.ReadFile(b.log), "interrupt again"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				ts.Fatalf("%s does not hear the interrupt", args[0])
			}
		}
		ts.Check(b.cmd.Process.Signal(syscall.SIGINT))
	}
	done := make(chan error, 1)
	go func() { done <- b.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(patience):
		ts.Fatalf("%s does not end", args[0])
	}
	log, _ := os.ReadFile(b.log)
	ts.Logf("%s: %s", args[0], log)
	if len(args) > 2 {
		if got := strconv.Itoa(b.cmd.ProcessState.ExitCode()); got != args[2] {
			ts.Fatalf("%s: exit code %s, want %s", args[0], got, args[2])
		}
	}
}

// waitUntil runs a command again and again until its standard output matches: until PATTERN errand runs.
func waitUntil(ts *testscript.TestScript, neg bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if want.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("no match for %q: %v\n%s\n%s", args[0], err, out, ts.ReadFile("stderr"))
		}
	}
}

// gone waits until the process whose id is in a file is there no more: gone FILE.
func gone(ts *testscript.TestScript, neg bool, args []string) {
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	for deadline := time.Now().Add(patience); syscall.Kill(pid, 0) == nil; time.Sleep(20 * time.Millisecond) {
		if stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("process %d of %s is still there", pid, args[0])
		}
	}
}

// measuring waits until there are so many processes of a measurement in a folder: measuring COUNT FOLDER.
func measuring(ts *testscript.TestScript, neg bool, args []string) {
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		return // nobody can tell on this system
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		ts.Check(err)
		found := 0
		for _, f := range files {
			line, _ := os.ReadFile(f)
			if strings.Contains(string(line), "\x00bench-process\x00") && strings.Contains(string(line), args[1]+"/errand-bench-") {
				found++
			}
		}
		if found == want {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%d processes measure in %s, want %d", found, args[1], want)
		}
	}
}

// first sets a variable to the first line of standard output: first NAME.
func first(ts *testscript.TestScript, neg bool, args []string) {
	line, _, _ := strings.Cut(ts.ReadFile("stdout"), "\n")
	ts.Setenv(args[0], line)
}
