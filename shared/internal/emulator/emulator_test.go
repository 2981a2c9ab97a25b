package emulator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/internal/emulator"
)

func TestMain(m *testing.M) { os.Exit(emulator.Main(m)) }

func TestTestsOfABinaryShareAnEmulator(t *testing.T) {
	for kind, start := range map[emulator.Kind]func(emulator.TB) string{
		emulator.KindFirestore: emulator.Firestore, emulator.KindPubSub: emulator.PubSub,
	} {
		t.Run(string(kind), func(t *testing.T) {
			first, second := start(t), start(t)
			if first != second {
				t.Errorf("two emulators, on %s and %s; want one", first, second)
			}
			c, err := net.DialTimeout("tcp", first, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
	}
}

func TestStoppedEmulatorIsGone(t *testing.T) {
	emulator.PubSub(t) // or skips
	e, err := emulator.Start(t.Context(), emulator.KindPubSub)
	if err != nil {
		t.Fatal(err)
	}
	if want := "PUBSUB_EMULATOR_HOST=" + e.Addr; e.Env() != want {
		t.Errorf("environment %q, want %q", e.Env(), want)
	}
	if e.Output() == "" {
		t.Error("nothing is kept of its output")
	}
	e.Stop()
	e.Stop()
	<-e.Done()
	if c, err := net.DialTimeout("tcp", e.Addr, 5*time.Second); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.jar")
	if err := os.WriteFile(broken, []byte("no jar"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		jar, path string
		missing   bool
		want      string
	}{
		"a jar that is not there":     {jar: "/nowhere/x.jar", path: os.Getenv("PATH"), missing: true, want: "ERRAND_FIRESTORE_EMULATOR_JAR names /nowhere/x.jar"},
		"a machine without Java":      {path: t.TempDir(), missing: true, want: "no java on the path"},
		"a jar that is no emulator's": {jar: broken, path: os.Getenv("PATH"), want: "its output:\nError: Could not find or load main class"},
	}
	emulator.Firestore(t) // or skips: there is a Java
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("ERRAND_FIRESTORE_EMULATOR_JAR", c.jar)
			t.Setenv("PATH", c.path)
			_, err := emulator.Start(t.Context(), emulator.KindFirestore)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, emulator.ErrMissing) != c.missing {
				t.Errorf("got %v, want %q and ErrMissing: %v", err, c.want, c.missing)
			}
		})
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	emulator.Firestore(t) // or skips
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := emulator.Start(ctx, emulator.KindFirestore); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
}

// copyOf is this test binary, run again with a variable changed.
func copyOf(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

func TestMissingEmulatorSkipsOrFails(t *testing.T) {
	cases := map[string]struct {
		env        []string
		fails      bool
		wantOutput string
	}{
		"a test is skipped and says so":        {[]string{"PATH=", emulator.RequiredEnv + "="}, false, "SKIPPED, so nothing is known"},
		"a test fails where they are required": {[]string{"PATH=", emulator.RequiredEnv + "=1"}, true, "install a Java runtime"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := copyOf(t, "TestTestsOfABinaryShareAnEmulator", c.env...).CombinedOutput()
			if (err != nil) != c.fails || !strings.Contains(string(out), c.wantOutput) {
				t.Errorf("got %v, want a failure: %v; output, which lacks %q:\n%s", err, c.fails, c.wantOutput, out)
			}
		})
	}
}

// ownerEnv has the binary start an emulator, print its address and wait to be killed.
const ownerEnv = "ERRAND_EMULATOR_TEST_OWNER"

func TestEmulatorEndsWithItsOwner(t *testing.T) {
	if os.Getenv(ownerEnv) != "" {
		fmt.Println("address", emulator.PubSub(t))
		<-t.Context().Done()
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	emulator.PubSub(t) // or skips
	cmd := copyOf(t, "TestEmulatorEndsWithItsOwner", ownerEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		_, addr, _ = strings.Cut(lines.Text(), "address ")
	}
	if c, err := net.Dial("tcp", addr); err != nil {
		t.Fatalf("owner's emulator on %q: %v", addr, err)
	} else {
		c.Close()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(10 * time.Second); ; {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatalf("the emulator on %s still runs", addr)
		}
	}
}
