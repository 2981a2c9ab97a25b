package outside

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const envRole = "OUTSIDE_ROLE"

// TestMain lets the test binary be the process that a test watches.
func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "talks":
		fmt.Println("out")
		fmt.Fprintln(os.Stderr, "err")
		os.Exit(3)
	case "waits":
		fmt.Println("waiting")
		select {}
	}
}

func as(role string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{envRole + "=" + role}
	return cmd
}

func TestAProgramIsHeardToItsEnd(t *testing.T) {
	both := Start(t, as("talks"))
	if code := both.Code(t); code != 3 || both.Log.Count("out\n") != 1 || both.Log.Count("err\n") != 1 {
		t.Errorf("code %d, log %q; want 3 and both streams", code, both.Log)
	}
	cmd := as("talks")
	var out bytes.Buffer
	cmd.Stdout = &out
	apart := Start(t, cmd)
	if code := apart.Code(t); code != 3 || out.String() != "out\n" || apart.Log.String() != "err\n" {
		t.Errorf("code %d, output %q, log %q; want each stream in its place", code, out.String(), apart.Log)
	}
	apart.Send(t, syscall.SIGTERM) // which is nothing to one that is gone
	apart.Kill()
}

func TestAProgramIsKilledOrTold(t *testing.T) {
	for name, end := range map[string]func(*Program){
		"killed": (*Program).Kill,
		"told":   func(p *Program) { p.Send(t, syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			p := Start(t, as("waits"))
			Eventually(t, Patience, "the program waits", func() bool { return p.Log.Count("waiting") == 1 })
			end(p)
			if code := p.Code(t); code == 0 {
				t.Error("it ended by itself")
			}
		})
	}
}

func TestWhatIsWrittenCanBeReadMeanwhile(t *testing.T) {
	var l Log
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				l.Logger().Info("said")
				_ = l.Tail()
			}
		})
	}
	writers.Wait()
	if n := l.Count("msg=said\n"); n != 400 {
		t.Errorf("%d lines are whole; want 400", n)
	}
}

func TestTheTailIsTheEnd(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"of little, all":        {"ab", "ab"},
		"of much, the last 8 K": {strings.Repeat("x", 10) + strings.Repeat("y", tailBytes), strings.Repeat("y", tailBytes)},
	} {
		var l Log
		_, _ = io.WriteString(&l, c.text)
		if got := l.Tail(); got != c.want {
			t.Errorf("%s: %d bytes; want %d", name, len(got), len(c.want))
		}
	}
}
