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
	const fixed = 60
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
		"child called", "fan-in", "fan-in that was decided before all children ended", "program that came to its end",
		"run of a group placed", "event began", "effect undone", "run called to undo another", "gate requested", "gate approved", "gate rejected", "gate expired", "gate canceled",
		"decision that was taken", "decision refused: decided", "decision refused: forbidden", "decision refused: selfApproval",
	}
	rare = []string{
		"effect: begin is answered fenced", "effect: begin is answered wait", "effect: end of a fenced attempt refused", "log cut",
		"person who was faster than a write beside a run", "run failed with AttemptTimeout", "run failed with BackoffLimitExceeded",
		"run failed with HeartbeatLost", "run failed with NoEligibleTarget", "snapshot of a session kept", "gate asked anew", "decision refused: expired",
		"decision refused: changed",
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
		"a key that comes twice in one pass is one run that runs": {Seed: 52, Choices: []sim.Choice{
			{Op: sim.Flood, Roll: 0x2a168f655842e9ae},
			{Op: sim.Submit, Roll: 0x47e2f596be4daa89},
		}},
		"a key of a run that waits for its time takes no slot when it comes again": {Seed: 81, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0xa4cd94bc0ec92431},
			{Op: sim.Flood, Roll: 0x489ee6eb629b8a44},
		}},
		"an attempt whose time ends beyond the horizon is told to stop": {Seed: 1, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0xa1486ba6a4a04019},
			{Op: sim.Step, Roll: 0x21e5f00528a975c2},
			{Op: sim.NextDue, Roll: 0x3190a81b4928baf8},
		}},
		"workers of a deleted target get no runs": {Seed: 38, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0x26bd3b40e76ec99f},
			{Op: sim.Step, Roll: 0x70e1758288f18814},
			{Op: sim.Join, Roll: 0x6faa6cbe419bc2e3},
			{Op: sim.CommitFault, Roll: 0x5a63308f4104ece5},
			{Op: sim.Work, Roll: 0x8d7bb74c24cc667e},
			{Op: sim.Step, Roll: 0xe172ad9701c2a523},
			{Op: sim.Lease, Roll: 0x271ab36ef2ad0b81},
			{Op: sim.DropTarget, Roll: 0x3a28b18b28dba50d},
			{Op: sim.Submit, Roll: 0xc0e90f189e4321e0},
		}},
		"a cancel ends although the deadline passes meanwhile": {Seed: 187, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0xbe3702e688335b1f},
			{Op: sim.Submit, Roll: 0xab0fa22a63257eb2},
			{Op: sim.Submit, Roll: 0x7c813cb1765f9f92},
			{Op: sim.Step, Roll: 0x8f5c8bc527d95da0},
			{Op: sim.Signal, Roll: 0xa5c00b054e5727b8},
			{Op: sim.NextDue, Roll: 0xf14737eef6498ef6},
			{Op: sim.Tick, Roll: 0xc98c368e50b52b40},
			{Op: sim.Submit, Roll: 0x25fc4aff1f573d4c},
			{Op: sim.Work, Roll: 0xd0762352d448ae12},
			{Op: sim.Submit, Roll: 0x66609ab7232deb16},
			{Op: sim.Step, Roll: 0x46612ba64c0409a7},
			{Op: sim.NextDue, Roll: 0x3054cb95e21902f4},
			{Op: sim.Cancel, Roll: 0x3071b4d5fd12f027},
		}},
		"what could not be read is read later": {Seed: 364, Choices: []sim.Choice{
			{Op: sim.Flood, Roll: 0x29ae4e30909b181d},
			{Op: sim.Settle, Roll: 0x897500b740fc9c9d},
			{Op: sim.Act, Roll: 0x3245e7234be3176c},
			{Op: sim.Work, Roll: 0xe864b246927afb31},
			{Op: sim.Work, Roll: 0xaec2839922dba81f},
			{Op: sim.Wait, Roll: 0x86819abbed440139},
			{Op: sim.NextDue, Roll: 0xba5d3224eb8aa3dc},
			{Op: sim.Settle, Roll: 0x92b46744d7c6aaf},
			{Op: sim.Leap, Roll: 0xa313d7d1f63c9c3c},
			{Op: sim.Outage, Roll: 0x6451e4634a62d735},
			{Op: sim.Step, Roll: 0xc6a46e475e814543},
		}},
		"what was fetched before a restart is not taken for what never was": {Seed: 1342, Choices: []sim.Choice{
			{Op: sim.Join, Roll: 0x1b16a0e753c1f74f},
			{Op: sim.ChangeTenant, Roll: 0x7131b1a66128dde5},
			{Op: sim.Begin, Roll: 0x21b1c31c0c1cdaf1},
			{Op: sim.Flood, Roll: 0xb266f8fc2701a4a7},
			{Op: sim.CommitFault, Roll: 0xebcc20ed385a22dc},
			{Op: sim.Work, Roll: 0x9b0877db593aab2},
			{Op: sim.Settle, Roll: 0x6590667a83495180},
			{Op: sim.Outlive, Roll: 0xf4ef70216297db9e},
			{Op: sim.Act, Roll: 0x4994c40c6a6ed531},
		}},
		"recorded steps are handed over again after a restart": {Seed: 7083, Choices: []sim.Choice{
			{Op: sim.Join, Roll: 0x3d9462dec801b948},
			{Op: sim.Begin, Roll: 0xa456640f3db82720},
			{Op: sim.Work, Roll: 0x178066bc1d8ac2bf},
			{Op: sim.Lease, Roll: 0x227c041d57ee030c},
			{Op: sim.Submit, Roll: 0xbe518b5b66f8416b},
			{Op: sim.Submit, Roll: 0x2cb54006fcf62136},
			{Op: sim.Settle, Roll: 0x2ab5e53d0009743d},
			{Op: sim.Stall, Roll: 0xbfeb81710c96e442},
			{Op: sim.Work, Roll: 0x5576bc30874c4d04},
			{Op: sim.Lease, Roll: 0xe9f568e75f7d12e4},
			{Op: sim.ReadFault, Roll: 0xcab1b0bd8d39bb11},
			{Op: sim.Work, Roll: 0x73688a8da6c3c9fd},
			{Op: sim.Crash, Roll: 0xe4df29494f62d62f},
			{Op: sim.Step, Roll: 0x9f211e57d9380861},
			{Op: sim.NextDue, Roll: 0xaebe03019cc59546},
			{Op: sim.NextDue, Roll: 0xb11ff5e5f0948906},
			{Op: sim.Step, Roll: 0x7dd975850f245a33},
			{Op: sim.Step, Roll: 0x1df5c71bb25dddc1},
			{Op: sim.Work, Roll: 0x210f0cf706fbc89e},
		}},
		"what an attempt spent counts once when the deadline passes before its end is known": {Seed: 14795, Choices: []sim.Choice{
			{Op: sim.Tick, Roll: 0xc49a54e46ef8f2ef},
			{Op: sim.Tick, Roll: 0x2c5c9565f39d8941},
			{Op: sim.Tick, Roll: 0xd1dc8ea9d66a243},
			{Op: sim.Tick, Roll: 0x8dcb1e2cad80a46a},
			{Op: sim.CommitFault, Roll: 0xe13315c0262b8aba},
			{Op: sim.Flood, Roll: 0xd242742850833e46},
			{Op: sim.Wait, Roll: 0x38e1325a5e4b84fe},
			{Op: sim.Step, Roll: 0x6feceb65a1209574},
			{Op: sim.Work, Roll: 0xea870325f1b5df17},
			{Op: sim.CommitFault, Roll: 0xf3df907d9a4049e3},
			{Op: sim.Work, Roll: 0x1194fbb180842386},
			{Op: sim.Leap, Roll: 0x73385d005e0f3a95},
		}},
		"what could not be read is read later also when the clock was set back": {Seed: 18594, Choices: []sim.Choice{
			{Op: sim.ReadFault, Roll: 0xa0a51bd2067fd5f7},
			{Op: sim.Begin, Roll: 0xd87094bb699302ba},
			{Op: sim.Work, Roll: 0x41b3f8a362b63174},
			{Op: sim.Wait, Roll: 0xb0719eccbc301adb},
			{Op: sim.NextDue, Roll: 0xf2c216b915441804},
			{Op: sim.Step, Roll: 0x8065a0b75696acb6},
			{Op: sim.Skew, Roll: 0x213dc8a6faedaabe},
			{Op: sim.CommitFault, Roll: 0x4fd4dfc623a6a1a3},
			{Op: sim.Submit, Roll: 0xb52dc6c2497f2bce},
			{Op: sim.Step, Roll: 0xf60a7b28c3ab56bd},
		}},
		"a suspended child ends with its parent also when another process leads since": {Seed: 16458, Calls: true, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0x4f5362ffac0b68bb},
			{Op: sim.Settle, Roll: 0xc568b1bd4a471e83},
			{Op: sim.Begin, Roll: 0xdb87b260dd50b542},
			{Op: sim.GoOn, Roll: 0xfac64c4627617777},
			{Op: sim.Work, Roll: 0xe48137257319a495},
			{Op: sim.Settle, Roll: 0x4bab08e1221e93d},
			{Op: sim.Suspend, Roll: 0xc1cbea2693f36bd7},
			{Op: sim.Work, Roll: 0xb107df01575036f7},
			{Op: sim.Tick, Roll: 0x47999885a2b66774},
			{Op: sim.Crash, Roll: 0x92ac6fb9207bbc51},
		}},
		"a child that is written after its parent has ended ends too": {Seed: 5526, Calls: true, Choices: []sim.Choice{
			{Op: sim.CommitFault, Roll: 0x43daa37946dae76e},
			{Op: sim.Submit, Roll: 0xe87679d3c77537ee},
			{Op: sim.Submit, Roll: 0x6cffa286d1651e51},
			{Op: sim.Settle, Roll: 0x83a11b90f28bbc0e},
			{Op: sim.GoOn, Roll: 0x8ae70d42ecbfbcc4},
			{Op: sim.Submit, Roll: 0x5ae7223a82051e1},
			{Op: sim.Submit, Roll: 0x3c905daa82382759},
			{Op: sim.Settle, Roll: 0x28f11dc36fd5dbac},
			{Op: sim.Cancel, Roll: 0x34b271ebed6e86db},
			{Op: sim.CommitFault, Roll: 0xa452ad91749b032d},
			{Op: sim.Work, Roll: 0xd95980c329852cdb},
			{Op: sim.GoOn, Roll: 0xa3acea9a5bf7e893},
			{Op: sim.Work, Roll: 0x5c71e42ce63c2205},
			{Op: sim.NextDue, Roll: 0x27498eb62fcdbef7},
		}},
		"the question whether to undo again closes when nothing is left to undo": {Seed: 6889, Calls: true, Choices: []sim.Choice{
			{Op: sim.Submit, Roll: 0xb4d1fcf3ebdadfd2},
			{Op: sim.Settle, Roll: 0xb899f8b043d828ce},
			{Op: sim.Crash, Roll: 0x2321643796e89961},
			{Op: sim.Settle, Roll: 0x8abdab8f9ec87729},
			{Op: sim.Act, Roll: 0x797b04742984b991},
			{Op: sim.Work, Roll: 0xa1039f531691812e},
			{Op: sim.NextDue, Roll: 0x1f3ef671f41270a4},
			{Op: sim.Step, Roll: 0x9e421548de21e828},
			{Op: sim.Signal, Roll: 0x978dec89c672cf24},
			{Op: sim.Cancel, Roll: 0xdd896f5a2c10d9b8},
			{Op: sim.Step, Roll: 0xe65e928f8d5c09ab},
			{Op: sim.Resolve, Roll: 0x300edae4b55d87e0},
			{Op: sim.Work, Roll: 0xf6c8553b9e44cdfd},
			{Op: sim.CommitFault, Roll: 0xf87a1123307d612a},
			{Op: sim.Settle, Roll: 0x39f775d2d56802ba},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if res := sim.Replay(script, sim.Config{}); res.Failure != nil {
				t.Error(res.Failure)
			}
		})
	}
}
