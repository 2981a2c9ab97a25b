package sim_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/sim"
)

// number reads an environment variable; fallback where it is unset.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a number", name, text)
	}
	return n
}

// TestSeeds runs ERRAND_SIM_SEEDS seeds from ERRAND_SIM_SEED on, each in one goroutine, several side by side. The
// lowest that fails is shrunk and printed, to be kept as a test of its own; ERRAND_SIM_SHRINK=0 leaves it as it is.
// Without a number it runs a fixed set, in which everything that is asserted of must come.
func TestSeeds(t *testing.T) {
	const fixed = 30
	first, count := number(t, "ERRAND_SIM_SEED", 1), number(t, "ERRAND_SIM_SEEDS", fixed)
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // a world is small and soon gone
	var next, runs, writes atomic.Int64
	var mu sync.Mutex
	var worst *sim.Result
	var failed atomic.Bool
	seen := make(map[string]int)
	began := time.Now()
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := uint64(next.Add(1) - 1); i < count && !failed.Load(); i = uint64(next.Add(1) - 1) {
				res := sim.Run(first+i, sim.Config{})
				runs.Add(int64(res.Runs))
				writes.Add(int64(res.Writes))
				mu.Lock()
				for what, n := range res.Seen {
					seen[what] += n
				}
				if res.Failure != nil && (worst == nil || res.Script.Seed < worst.Script.Seed) {
					failed.Store(true) // those with lower seeds are under way
					worst = &res
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if worst != nil {
		report(t, *worst)
	}
	took := time.Since(began)
	var table strings.Builder
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(&table, "%10d  %s\n", seen[what], what)
	}
	t.Logf("%d seeds from %d on, in %s: %.0f seeds a second, %d runs, %d writes\n%s",
		count, first, took.Round(time.Millisecond), float64(count)/took.Seconds(), runs.Load(), writes.Load(), table.String())
	if first != 1 || count < fixed {
		return
	}
	must := mustBeSeen
	if count >= 2000 {
		must = append(slices.Clone(must), rare...)
	}
	for _, what := range must {
		if seen[what] == 0 {
			t.Errorf("%s: never in %d seeds", what, count)
		}
	}
}

// mustBeSeen is what the fixed set must come across, or what is asserted of it would mean nothing; rare is what two
// thousand seeds must.
var (
	mustBeSeen = []string{
		"cancel that was acknowledged", "clock set", "commit that met a fault: conflict", "commit that met a fault: crash after",
		"commit that met a fault: crash before", "commit that met a fault: failed, not written",
		"commit that met a fault: failed, some written", "commit that met a fault: failed, written",
		"commit that met a fault: hang after", "commit that met a fault: hang before", "effect: begin is answered done",
		"effect: begin is answered proceed", "effect: begin is answered unknown", "effect: performed outside", "event backedOff",
		"event parked", "event released", "event startFailed", "event succeeded", "event unschedulable", "event woken",
		"key answered with the run that it has", "lead taken over from another process", "message delivered late",
		"message delivered twice", "message lost", "message whose answer was lost", "outage", "process died",
		"process that could not start", "read that failed", "report of a fenced attempt refused", "resume that was acknowledged",
		"run begun directly", "run failed with DeadlineExceeded", "run failed with NonRetryable", "run failed with QueueTimeout",
		"run removed at its end of keeping", "score that was acknowledged", "shares kept", "signal that was acknowledged",
		"suspend that was acknowledged", "turn of a session", "turns of two waiting tenants compared",
	}
	rare = []string{
		"effect: begin is answered fenced", "effect: begin is answered wait", "effect: end of a fenced attempt refused", "log cut",
		"person who was faster than a write beside a run", "run failed with AttemptTimeout", "run failed with BackoffLimitExceeded",
		"run failed with HeartbeatLost", "run failed with NoEligibleTarget", "snapshot of a session kept",
	}
)

// report shrinks a failing script and tells its story.
func report(t *testing.T, res sim.Result) {
	t.Helper()
	if number(t, "ERRAND_SIM_SHRINK", 1) == 0 {
		t.Fatalf("seed %d: %v", res.Script.Seed, res.Failure)
	}
	script := sim.Shrink(res.Script, func(s sim.Script) bool {
		again := sim.Replay(s, sim.Config{})
		return again.Failure != nil && again.Failure.Rule == res.Failure.Rule
	})
	var story bytes.Buffer
	last := sim.Replay(script, sim.Config{Log: &story})
	t.Fatalf("seed %d: %v\n%s\nshrunk to %d choices: %v\n\n%s\n%s", res.Script.Seed, res.Failure, last.Failure.Stack,
		len(script.Choices), last.Failure, story.String(), script)
}

func TestTheSameSeedGivesTheSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		var one, two bytes.Buffer
		a, b := sim.Run(seed, sim.Config{Log: &one}), sim.Run(seed, sim.Config{Log: &two})
		if a.Trace != b.Trace || one.String() != two.String() {
			t.Fatalf("seed %d: traces %x and %x", seed, a.Trace, b.Trace)
		}
	}
}

// TestFound replays what earlier seeds found, as they were shrunk.
func TestFound(t *testing.T) {
	for name, script := range map[string]sim.Script{
		"a key that comes twice in one pass is one run that runs": {Seed: 3, Choices: []sim.Choice{
			{Op: sim.Flood, Roll: 0x9a35a939b46951d8},
		}},
		"an attempt whose time ends beyond the horizon is told to stop": {Seed: 5, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0x5f1550307eabad7f},
			{Op: sim.Settle, Roll: 0x791791f075eadff},
			{Op: sim.NextDue, Roll: 0x2b6845fa7b56427c},
		}},
		"workers of a deleted target get no runs": {Seed: 14, Choices: []sim.Choice{
			{Op: sim.Join, Roll: 0x36476a4263b1c131},
			{Op: sim.Lease, Roll: 0x135ae89e7a6282c0},
			{Op: sim.Submit, Roll: 0x5b3784ac87e03a19},
			{Op: sim.Submit, Roll: 0xb02a5dda0458cfc4},
			{Op: sim.DropTarget, Roll: 0xbf9121c28cbc3051},
			{Op: sim.Settle, Roll: 0x6f39ac549720adf9},
		}},
		"a cancel ends although the deadline passes meanwhile": {Seed: 128, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0x4c5fdf7b9a912ee0},
			{Op: sim.Step, Roll: 0xf50fc273da6f0184},
			{Op: sim.NextDue, Roll: 0xdc787e3b9881647b},
			{Op: sim.Cancel, Roll: 0x9432bcd91d58d673},
		}},
		"what could not be read is read later": {Seed: 800, Choices: []sim.Choice{
			{Op: sim.Wait, Roll: 0x10b3e67f7b00bb4e},
			{Op: sim.Submit, Roll: 0x11793a7f735139a5},
			{Op: sim.Settle, Roll: 0x295b213016313203},
			{Op: sim.ReadFault, Roll: 0xc93206f67d195d03},
			{Op: sim.Suspend, Roll: 0x2214ee507a88a919},
			{Op: sim.NextDue, Roll: 0xc1b8563c9c0a9cbb},
			{Op: sim.Settle, Roll: 0xdef75f7da99f2ebd},
			{Op: sim.Wait, Roll: 0x53fcd749e2f505d6},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if res := sim.Replay(script, sim.Config{}); res.Failure != nil {
				t.Error(res.Failure)
			}
		})
	}
}
