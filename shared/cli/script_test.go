package cli

import (
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/errand-run/errand/shared/runtime/process"
)

func TestMain(m *testing.M) {
	process.Warden()
	testscript.Main(m, map[string]func(){
		"errand": func() { os.Exit(Main(os.Args[1:])) },
	})
}

// TestAgainstAFakeServer runs the scripts of testdata/fake, each with a server of its own.
func TestAgainstAFakeServer(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/fake",
		Setup: func(e *testscript.Env) error {
			f := newFakeServer()
			e.Defer(f.Close)
			e.Setenv("ERRAND_SERVER", f.URL)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "printbytes": printBytes},
	})
}

// exits runs a program and wants exactly this exit code: exits 3 errand get run x.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT…]")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exits %s: want a number", args[0])
	}
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("exits: %v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// printBytes makes a file of bytes given in hexadecimal, which an archive of text cannot hold: printbytes FILE HEX.
func printBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: printbytes FILE HEX")
	}
	b, err := hex.DecodeString(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o644))
}

// manyBytes makes a file of one JSON text of so many bytes: manybytes FILE COUNT.
func manyBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: manybytes FILE COUNT")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(`"`+strings.Repeat("x", n-2)+`"`), 0o644))
}
