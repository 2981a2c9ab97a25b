package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// childEnv names what a copy of this test binary does instead of testing: "what path".
const childEnv = "ERRAND_SQLITE_TEST_CHILD"

func TestMain(m *testing.M) {
	what, path, ok := strings.Cut(os.Getenv(childEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	work := map[string]func(path string) error{"commit": commitForever, "fill": fillDisk}[what]
	if err := work(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child starts this test binary on other work.
func child(t *testing.T, what, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func step(id string, size int) store.Unit {
	d := store.Doc{Kind: store.KindStep, ID: id, Version: 1, Body: make([]byte, size)}
	return store.Unit{Token: id, Writes: []store.Write{{Doc: d}}}
}

// commitForever prints each id after its commit was acknowledged.
func commitForever(path string) error {
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("s-%d-%d", w, n)
				if err := s.Commit(context.Background(), []store.Unit{step(id, 500)})[0]; err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				fmt.Println(id)
			}
		})
	}
	wg.Wait()
	return errors.New("no commit goes through")
}

// fillDisk commits until no file may grow, then again after they may. It stands in for a full disk, which only root
// can make; a write past the limit fails as one on a full disk does.
func fillDisk(path string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	// 1. Fill: the log meets the limit.
	signal.Ignore(syscall.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 2 << 20, Max: was.Max}); err != nil {
		return err
	}
	acknowledged, count := []string{}, int64(0)
	counted := func(id string) store.Unit { // a creation, and an update of one document that must not run ahead
		u := step(id, 100<<10)
		d := store.Doc{Kind: store.KindMisc, ID: "count", Version: count + 1}
		u.Writes = append(u.Writes, store.Write{Doc: d, Expect: count})
		return u
	}
	for n, failures := 0, 0; failures < 3; n++ {
		id := fmt.Sprint("full-", n)
		switch err := s.Commit(ctx, []store.Unit{counted(id)})[0]; {
		case err == nil:
			acknowledged = append(acknowledged, id)
			count++
		case errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrTooLarge):
			return fmt.Errorf("a full disk was told as an outcome: %w", err)
		default:
			failures++
		}
		if n > 1000 {
			return errors.New("the limit on the file size has no effect")
		}
	}
	if len(acknowledged) == 0 {
		return errors.New("nothing was acknowledged before the limit")
	}
	// 2. Reads go on.
	if _, err := s.Get(ctx, store.KindStep, acknowledged[0]); err != nil {
		return fmt.Errorf("read beside a full disk: %w", err)
	}
	// 3. The disk is well again.
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		return err
	}
	for n := range 20 {
		id := fmt.Sprint("well-", n)
		if err := s.Commit(ctx, []store.Unit{counted(id)})[0]; err != nil {
			return fmt.Errorf("after the disk was well again: %w", err)
		}
		count++
		acknowledged = append(acknowledged, id)
	}
	if err := s.Close(); err != nil {
		return err
	}
	fmt.Println(strings.Join(acknowledged, "\n"))
	return nil
}

func TestNothingAcknowledgedIsLostWithTheProcess(t *testing.T) {
	path := t.TempDir() + "/errand.db"
	cmd, lines := child(t, "commit", path)
	var acknowledged []string
	for lines.Scan() {
		acknowledged = append(acknowledged, lines.Text())
		if len(acknowledged) == 50 {
			// Before the kill: the file is the child's, and the refusal says whose.
			_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if pid := fmt.Sprint("pid ", cmd.Process.Pid); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), pid) {
				t.Errorf("open of another process's store: got %v, want ErrLocked naming %s", err, pid)
			}
		}
		if len(acknowledged) == 300 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if len(acknowledged) < 300 {
		t.Fatalf("the child ended after %d commits", len(acknowledged))
	}
	wantSteps(t, openAt(t, path, sqlite.Options{}), acknowledged)
}

func TestAFullDiskFailsWhatWaitsAndNothingElse(t *testing.T) {
	path := t.TempDir() + "/errand.db"
	cmd, lines := child(t, "fill", path)
	var acknowledged []string
	for lines.Scan() {
		acknowledged = append(acknowledged, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, openAt(t, path, sqlite.Options{}), acknowledged)
}

func wantSteps(t *testing.T, s store.Store, ids []string) {
	t.Helper()
	for _, id := range ids {
		if id == "" {
			continue
		}
		if _, err := s.Get(t.Context(), store.KindStep, id); err != nil {
			t.Errorf("acknowledged, but: %v", err)
		}
	}
}
