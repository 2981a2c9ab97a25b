package sim_test

import (
	"bytes"
	"os"
	"strconv"
	"testing"

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

// TestSeeds runs ERRAND_SIM_SEEDS seeds from ERRAND_SIM_SEED on. A failing one is shrunk and printed, to be kept as a
// test of its own.
func TestSeeds(t *testing.T) {
	first, count := number(t, "ERRAND_SIM_SEED", 1), number(t, "ERRAND_SIM_SEEDS", 100)
	runs, writes := 0, 0
	for seed := first; seed < first+count; seed++ {
		res := sim.Run(seed, sim.Config{})
		runs, writes = runs+res.Runs, writes+res.Writes
		if res.Failure != nil {
			report(t, res)
		}
	}
	t.Logf("%d seeds from %d on: %d runs, %d writes", count, first, runs, writes)
}

// report shrinks a failing script and tells its story.
func report(t *testing.T, res sim.Result) {
	t.Helper()
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
	for seed := uint64(1); seed <= 20; seed++ {
		var one, two bytes.Buffer
		a, b := sim.Run(seed, sim.Config{Log: &one}), sim.Run(seed, sim.Config{Log: &two})
		if a.Trace != b.Trace || one.String() != two.String() {
			t.Fatalf("seed %d: traces %x and %x", seed, a.Trace, b.Trace)
		}
	}
}
