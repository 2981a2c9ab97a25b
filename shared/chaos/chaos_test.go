package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli"
	"github.com/errand-run/errand/shared/devtest"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// The test binary is also the server and the agent: what runs here is the product, under the race detector too.
const (
	beServer = "CHAOS_BE_SERVER"
	beAgent  = "CHAOS_BE_AGENT"
	logFile  = "CHAOS_LOG"
)

func TestMain(m *testing.M) {
	process.Warden()
	switch {
	case os.Getenv(beServer) != "":
		os.Exit(cli.Main(os.Args[1:]))
	case os.Getenv(beAgent) != "":
		agent.Main(append2log)
		return
	}
	os.Exit(m.Run())
}

// order is what a run is asked to write.
type order struct {
	Line string `json:"line"`
	Ms   int    `json:"ms"`
}

// append2log is an agent whose effect is a line in a log outside of the product. The log is not idempotent: only the
// receipt keeps a line from being there twice.
func append2log(ctx context.Context, r *agent.Run, in order) (string, error) {
	if _, err := agent.Step(ctx, r, "prepare", func(context.Context) (int, error) { return len(in.Line), nil }); err != nil {
		return "", err
	}
	if err := wait(ctx, in.Ms/2); err != nil {
		return "", err
	}
	line, err := agent.Once(ctx, r, "append", agent.Effect[string]{
		Request: in.Line,
		Do: func(ctx context.Context, _ string) (string, error) {
			return in.Line, appendLine(os.Getenv(logFile), in.Line)
		},
		Reconcile: func(context.Context, string) (string, bool, error) {
			seen, err := readLog(os.Getenv(logFile))
			return in.Line, seen[in.Line] > 0, err
		},
		OnUnknown: agent.Reconcile,
	})
	if err != nil {
		return "", err
	}
	return line, wait(ctx, in.Ms-in.Ms/2)
}

func wait(ctx context.Context, ms int) error {
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// appendLine writes in one call, so that a killed writer leaves the whole line or none.
func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return agent.NotDone(err)
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

func readLog(path string) (map[string]int, error) {
	seen := make(map[string]int)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return seen, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		seen[lines.Text()]++
	}
	return seen, lines.Err()
}

const manifest = `
apiVersion: errand.dev/v1
kind: Agent
metadata: {name: appender}
spec:
  shape: pool
  run:
    command: [%s, -test.run=^$]
    protocol: worker
    slots: 16
    env: {%s: "1", %s: %s}
  retry: {maxAttempts: 100, backoff: {initial: 10ms, factor: 2, max: 200ms, jitter: 0.5}}
  timeouts: {attempt: 60s, queue: 1h, run: 1h}
  effects: {onUnknown: reconcile, settle: 20ms}
  permissions: {effects: [append]}
---
apiVersion: errand.dev/v1
kind: Target
metadata: {name: here}
spec: {runtime: local, shapes: [pool], capacity: {runs: 48}}
`

// chaos is one server after the other over the same file.
type chaos struct {
	*devtest.Server
	t    *testing.T
	dir  string
	mark string // in the command line of everything that belongs to this test
}

// TestChaosServerKilled kills the server again and again while its runs and their effects are under way.
func TestChaosServerKilled(t *testing.T) {
	rounds, flight := 6, 300
	if n, err := strconv.Atoi(os.Getenv("ERRAND_CHAOS_ROUNDS")); err == nil {
		rounds, flight = n, 2000
	}
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("ERRAND_CHAOS_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("%d rounds, %d runs in flight, ERRAND_CHAOS_SEED=%d", rounds, flight, seed)
	rolls := rand.New(rand.NewPCG(seed, 1))
	c := newChaos(t)
	submitted := 0
	for round := range rounds {
		c.Boot()
		submitted = c.keepInFlight(submitted, flight, rolls)
		time.Sleep(time.Duration(100+rolls.IntN(700)) * time.Millisecond) // the instant of death is what is being tried
		c.Kill()
		c.nothingLeft(fmt.Sprintf("after kill %d", round+1))
	}
	c.Boot()
	c.allEnd(submitted)
	c.Send(t, syscall.SIGINT)
	c.Code(t)
	c.nothingLeft("after the end")
	c.verify(submitted)
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{t: t, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A copy with a name of its own marks every process of this test, whoever started it.
	c.mark = filepath.Join(c.dir, "chaos-of-"+strconv.Itoa(os.Getpid()))
	copyFile(t, self, c.mark)
	text := fmt.Sprintf(manifest, c.mark, beAgent, logFile, filepath.Join(c.dir, "outside.log"))
	if err := os.WriteFile(filepath.Join(c.dir, "fleet.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Server = devtest.New(t, func(addr string) *exec.Cmd {
		cmd := exec.Command(c.mark, "dev", "-f", filepath.Join(c.dir, "fleet.yaml"), "--addr", addr, "--data", filepath.Join(c.dir, "chaos.db"))
		cmd.Env = append(os.Environ(), beServer+"=1")
		return cmd
	})
	return c
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// keepInFlight submits, under keys, so many that flight runs are on their way. What the last kill interrupted is
// submitted again under the same keys.
func (c *chaos) keepInFlight(submitted, flight int, rolls *rand.Rand) int {
	c.t.Helper()
	stats, err := c.Stats(c.t.Context(), api.StatsFilter{})
	if err != nil {
		c.t.Fatalf("stats: %v", err)
	}
	live := 0
	for _, n := range stats.States {
		live += n
	}
	want := submitted + max(0, flight-live)
	for first := max(0, submitted-50); first < want; {
		var batch []api.Submit
		for ; first < want && len(batch) < 500; first++ {
			input, _ := json.Marshal(order{Line: fmt.Sprintf("line-%06d", first), Ms: 20 + int(lineRoll(first)%80)})
			batch = append(batch, api.Submit{Agent: "appender", Key: fmt.Sprintf("key-%06d", first), Input: input})
		}
		items, err := c.SubmitBatch(c.t.Context(), batch)
		if err != nil {
			c.t.Fatalf("submit: %v", err)
		}
		for _, item := range items {
			if item.Error != nil {
				c.t.Fatalf("submit: %v", item.Error)
			}
		}
	}
	return want
}

// lineRoll makes the length of a run depend on its number alone: the same key must carry the same body.
func lineRoll(n int) uint32 {
	x := uint32(n)*2654435761 + 1
	return x ^ x>>15
}

func (c *chaos) allEnd(submitted int) {
	c.t.Helper()
	outside.Eventually(c.t, 5*time.Minute, fmt.Sprintf("all %d runs are over", submitted), func() bool {
		stats, err := c.Stats(c.t.Context(), api.StatsFilter{})
		if err != nil {
			return false
		}
		live := 0
		for _, n := range stats.States {
			live += n
		}
		if live > 0 {
			return false
		}
		open, err := c.ListRuns(c.t.Context(), api.RunFilter{State: []string{"queued", "backoff", "waiting", "held", "assigned", "running"}}, api.Page{Limit: 1})
		return err == nil && len(open.Items) == 0
	})
}

// nothingLeft asserts that no process of this test but the test itself is alive.
func (c *chaos) nothingLeft(when string) {
	c.t.Helper()
	outside.Eventually(c.t, 10*time.Second, "no process is left "+when, func() bool {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return true // not on this system
		}
		for _, e := range entries {
			if _, err := strconv.Atoi(e.Name()); err != nil {
				continue
			}
			line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if strings.HasPrefix(string(line), c.mark+"\x00") {
				return false
			}
		}
		return true
	})
}

// verify reads the file that is left: every run ended well, its history folds to its record, and each line is in the
// outside log once.
func (c *chaos) verify(submitted int) {
	c.t.Helper()
	st, err := sqlite.Open(c.t.Context(), filepath.Join(c.dir, "chaos.db"), sqlite.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer st.Close()
	runs, attempts, returned := 0, 0, 0
	q := store.Query{By: store.ByTenant, Tenant: "default", Limit: store.MaxPage}
	for {
		page, err := st.List(c.t.Context(), q)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, d := range page.Docs {
			r, err := run.DecodeRecord(d.Body)
			if err != nil {
				c.t.Fatal(err)
			}
			runs++
			attempts += r.Attempt
			returned += r.Returned
			if r.State != run.Succeeded {
				c.t.Errorf("run %s (%s) is %s: %s %s", r.ID, r.Key, r.State, r.Reason, r.Message)
			}
			c.folds(st, r)
		}
		if page.Next == "" {
			break
		}
		q.After = page.Next
	}
	if runs != submitted {
		c.t.Errorf("%d runs are stored, %d were submitted", runs, submitted)
	}
	seen, err := readLog(filepath.Join(c.dir, "outside.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	for n := range submitted {
		if line := fmt.Sprintf("line-%06d", n); seen[line] != 1 {
			c.t.Errorf("%s is in the outside log %d times", line, seen[line])
		}
	}
	if len(seen) != submitted {
		c.t.Errorf("the outside log has %d different lines, want %d", len(seen), submitted)
	}
	c.t.Logf("%d runs, %d attempts of which %d were given back, %d lines", runs, attempts, returned, len(seen))
}

func (c *chaos) folds(st store.Store, r *run.Record) {
	c.t.Helper()
	docs, err := st.Owned(c.t.Context(), store.KindHistory, r.ID, "", store.MaxPage)
	if err != nil {
		c.t.Fatal(err)
	}
	var events []run.Event
	for _, d := range docs {
		chunk, err := run.DecodeEvents(d.Body)
		if err != nil {
			c.t.Fatal(err)
		}
		events = append(events, chunk...)
	}
	folded, err := run.Fold(r.Spec, append(events, r.Tail...))
	if err != nil {
		c.t.Errorf("history of run %s: %v", r.ID, err)
		return
	}
	have := r.Clone()
	have.Tail = nil
	if !bytes.Equal(run.Encode(have), run.Encode(folded)) {
		c.t.Errorf("history of run %s does not fold to its record:\nrecord %+v\nfolded %+v", r.ID, have, folded)
	}
}
