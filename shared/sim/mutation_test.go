package sim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutation is a deliberate breakage: in file, below shared/, the one occurrence of old becomes new.
type mutation struct{ file, old, new string }

var mutations = map[string]mutation{
	"take reports of any attempt":                {"control/observe.go", "if !rec.Live() || rec.Attempt != r.N {", "if !rec.Live() {"},
	"take steps of a fenced attempt":             {"control/observe.go", "Token: p.newID(), Fences: fence, Writes: []store.Write{w}}", "Token: p.newID(), Writes: []store.Write{w}}"},
	"write receipts without their fence":         {"control/effects.go", "if n > 0 {\n\t\tunit.Fences", "if n < 0 {\n\t\tunit.Fences"},
	"take every ended attempt for surely dead":   {"control/effects.go", "a.N == r.Attempt && a.Sure", "a.N == r.Attempt"},
	"perform what another may be performing":     {"run/receipt.go", "q.Now < settled {", "q.Now < settled && false {"},
	"perform again what is committed":            {"run/receipt.go", "if existing.State == ReceiptDone {\n\t\treturn nil, BeginAnswer", "if existing.State == \"\" {\n\t\treturn nil, BeginAnswer"},
	"repeat the unknown blindly":                 {"run/receipt.go", "if q.Policy == UnknownRepeat ||", "if true ||"},
	"forget what an earlier attempt spent":       {"run/evolve.go", "r.Usage = r.Usage.Plus(*e.Usage)", "r.Usage = *e.Usage"},
	"write without comparing versions":           {"control/record.go", "recordWrite(pd.rec, pd.was)", "recordWrite(pd.rec, store.AnyVersion)"},
	"believe that an unknown commit failed":      {"control/record.go", "p.doubt(pd.id) // it may have been written", ""},
	"believe that an unknown placement failed":   {"control/place.go", "\tp.doubt(b.id)\n", ""},
	"place while a placement is in doubt":        {"control/loop.go", "if !p.caughtUp(ctx) || !p.reread(ctx, now) {", "if p.caughtUp(ctx) && p.reread(ctx, now) && false {"},
	"start what was not committed":               {"control/place.go", "if failures[i] != nil {\n\t\t\tp.unbind", "if failures[i] != nil && work[i] == nil {\n\t\t\tp.unbind"},
	"take what was fetched for what never was":   {"control/retry.go", "(t.live.handed != 0 || t.live.unsure)", "t.live.handed != 0"},
	"keep the slot of an ended attempt":          {"control/index.go", "\tix.world.Release(l.id)\n", ""},
	"forget in a pass what it only writes":       {"control/place.go", "if fresh[a.rec.ID] != nil || written[a.rec.ID] {", "if fresh[a.rec.ID] != nil {"},
	"count an ended attempt twice":               {"control/index.go", "\tix.count(t, 0, -1, 0)\n\tt.live = nil", "\tix.count(t, 0, -1, 0)\n\tix.count(t, 0, -1, 0)\n\tt.live = nil"},
	"let two turns of a session overlap":         {"control/place.go", `if c.session != "" && ix.sessions[c.session] != "" {`, `if c.session == "\x00" {`},
	"forget quotas and limits":                   {"control/place.go", "if v.Action == admission.Hold {", "if v.Action == admission.Hold && now < 0 {"},
	"forget an agent's accelerator":              {"placement/filter.go", `want != "" && want != n.Target.Accelerator {`, `want == "\x00" && want != n.Target.Accelerator {`},
	"leave workers of a deleted target in place": {"control/index.go", "if w.target == o.Name() {\n\t\t\t\tix.world.RemoveNode", "if w.target == \"\\x00\" {\n\t\t\t\tix.world.RemoveNode"},
	"do not hear that a worker drains":           {"control/worker.go", "if w.draining != b.Draining {", "if w.draining != b.Draining && now < 0 {"},
	"forget deadlines":                           {"control/retry.go", "if rec.Deadline != 0 && rec.Deadline <= now &&", "if rec.Deadline < 0 && rec.Deadline <= now &&"},
	"forget timers on restart":                   {"control/loop.go", "p.readDue(ctx, 0, 0, now.Add(horizon)); err != nil", "error(nil); err != nil"},
	"forget attempts of a dead server":           {"control/loop.go", "p.changeAll(ctx, orphans)", "p.changeAll(ctx, orphans[:0])"},
	"leave a run in backoff":                     {"control/retry.go", "case run.Held, run.Backoff:", "case run.Held:"},
	"answer another request under a key":         {"control/intake.go", "if earlier.Hash != a.rec.Hash {", "if earlier.Hash == \"\" {"},
	"commit both of a key in one pass":           {"control/place.go", "if fresh[a.rec.ID] != nil || written[a.rec.ID] {", "if now < 0 {"},
	"let a failed takeover be":                   {"control/loop.go", "if err := p.led.Resign(ctx); err != nil {\n\t\t\t\tp.log", "if err := error(nil); err != nil {\n\t\t\t\tp.log"},
	"forget what another process has changed":    {"control/record.go", "case !fresh && !p.store.Exclusive():", "case fresh && !fresh:"},
	"charge a short run for what was expected":   {"control/index.go", "if l.cost > 0 {", "if l.cost > 0 && l.started != 0 {"},
	"serve tenants by name":                      {"queue/queue.go", "if t.virtual != other.virtual {\n\t\treturn", "if false {\n\t\treturn"},
	"forget weights":                             {"queue/queue.go", "* scale / t.weight", "* scale"},
	"forget shares on restart":                   {"control/loop.go", "ix.queue.Restore(s)", ""},
	"wait an hour for a silent worker":           {"control/worker.go", "if ends := w.alive.Add(p.cfg.WorkerLease); ends > mono {", "if ends := w.alive.Add(time.Hour); ends > mono {"},
	"miss nobody whose run becomes known late":   {"control/index.go", "ix.workers[l.worker] == nil && (", "false && ("},
	"forget a run that began under an error":     {"control/intake.go", "p.doubt(list[i].rec.ID) // it may have been written", ""},
	"register handlers where nobody decides":     {"control/claim.go", "if !p.leads() && p.cfg.Bus == nil {\n\t\treturn Begun{}", "if false {\n\t\treturn Begun{}"},
	"let logs grow":                              {"control/observe.go", "if l.bytes += len(line.Text) + 32; l.bytes > runtime.MaxLogBytes {", "if l.bytes > runtime.MaxLogBytes {"},
	"keep a snapshot of whoever sends one":       {"control/worker.go", `key != "" && p.ix.lastTurn[key] == w.id && p.ix.sessions[key] == ""`, `key != ""`},
	"lose what a turn leaves":                    {"control/deliver.go", "d.writes = append(d.writes, store.Write{Expect: version, Doc: store.Doc{Kind: store.KindSession", "_ = append(d.writes, store.Write{Expect: version, Doc: store.Doc{Kind: store.KindSession"},
	"sleep through what arrives":                 {"control/plane.go", "\tcase p.poke <- struct{}{}:\n", ""},
	"sleep through what is due":                  {"control/loop.go", "if next := p.ix.timers.next(); next != 0 {", "if next := p.ix.timers.next(); next < 0 {"},
	"sleep through a worker's silence":           {"control/loop.go", "if next := p.ix.leases.next(); next != 0 {", "if next := p.ix.leases.next(); next < 0 {"},
	"go round and round in an outage":            {"control/loop.go", "return wait // a pass goes no further before these are read", "// a pass goes no further before these are read"},
	"end a cancel at the deadline, and so never": {"run/record.go", "\tcase Canceling:\n\t\treturn r.Due", "\tcase \"\":\n\t\treturn r.Due"},
	"remove a run before its retry":              {"control/retention.go", "if found[i].Version != 0 {", "if found[i].Version < 0 {"},
	"remove a run with an unsettled effect":      {"control/retention.go", "if receipts[i].Tag == tagUnknown {", "if receipts[i].Tag == \"\\x00\" {"},
	"keep no timer beyond the horizon":           {"control/index.go", "when > ix.horizon && ix.runs[r.ID] == nil", "when > ix.horizon"},
	"wake a parent when the first child ends":    {"control/kin.go", "case f.ended >= park.Size:", "case f.ended > 0:"},
	"leave the children of a run that ended":     {"control/kin.go", "k.isOver(), waits, k.flow,", "waits, k.flow,"},
	"forget who waits for children on restart":   {"control/kin.go", "goesOn := waits || ", "goesOn := "},
	"let anybody be called":                      {"control/family.go", "if a == nil || !slices.Contains(a.Permissions.Call, callee) {", "if a == nil {"},
	"take another call for the one before":       {"control/family.go", "case records[k].Hash != calls[i].hash(maxAtOnce):", "case records[k].Hash == \"\":"},
	"let whoever asks decide":                    {"run/gate.go", "func (g *Gate) isOwn(p *Person) bool { return g.NotRequester &&", "func (g *Gate) isOwn(p *Person) bool { return !g.NotRequester &&"},
	"count one voice twice":                      {"run/gate.go", "case mine >= 0:\n\t\treturn nil, g.refuse(GateCodeDecided", "case mine >= 100:\n\t\treturn nil, g.refuse(GateCodeDecided"},
	"decide a gate that is closed":               {"run/gate.go", "case g.State != GateOpen:\n\t\treturn nil, g.closed()", "case g.State == \"\":\n\t\treturn nil, g.closed()"},
	"leave a gate open whose run is gone":        {"control/gates.go", "next := g.Cancel(now)\n\tif next == nil {", "next := g.Cancel(now)\n\tif true {"},
	"forget the timers of gates":                 {"control/retry.go", "if over && rec.Park != nil && rec.Park.On == run.OnGate {", "if over && rec.Park != nil && rec.Park.On == run.OnGate && now < 0 {"},
	"undo nothing":                               {"control/undo.go", "case rec.Mode != \"\" || rec.State == run.Compensating:\n\t\treturn false", "case rec.Mode != \"\" || rec.State == run.Compensating || rec.Undoable:\n\t\treturn false"},
	"undo in the order in which it was done":     {"control/compensate.go", "slices.SortFunc(all, newestFirst)", "slices.SortFunc(all, func(a, b run.Receipt) int { return newestFirst(b, a) })"},
	"end before all is undone":                   {"control/undo.go", "if err != nil || !done {\n\t\t\treturn err\n\t\t}\n\t}\n\t// 3.", "if err != nil {\n\t\t\treturn err\n\t\t}\n\t\t_ = done\n\t}\n\t// 3."},
	"let people's time count for those above":    {"control/retry.go", "if p.mayMove(ctx, rec, now) {", "if false {"},
	"take everybody's time for people's":         {"run/span.go", "return k.people.Union().Minus(k.busy.Union())", "return k.people.Union()"},
	"go through a workflow's stage again":        {"control/flow.go", "f.progress.Outcomes[a.Step] = a.Outcome\n\t\t\ta = ", "a = "},
}

// TestMutationsApply keeps the table in line with the code: each breakage still has its one place.
func TestMutationsApply(t *testing.T) {
	for name, m := range mutations {
		if _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (m mutation) apply() ([]byte, error) {
	source, err := os.ReadFile(filepath.Join("..", m.file))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return nil, fmt.Errorf("%q occurs %d times in %s, want once", m.old, n, m.file)
	}
	return []byte(strings.Replace(string(source), m.old, m.new, 1)), nil
}

var failedSeed = regexp.MustCompile(`seed (\d+): ([^\n]*)`)

// TestMutations breaks the product in each way of the table, without touching it, and asserts that seeds find it: as
// many as ERRAND_SIM_SEEDS says, 2000 by default. It runs with ERRAND_SIM_MUTATIONS set, to "all" or a part of names,
// and prints a table.
func TestMutations(t *testing.T) {
	which, seeds := os.Getenv("ERRAND_SIM_MUTATIONS"), number(t, "ERRAND_SIM_SEEDS", 2000)
	if which == "" {
		t.Skip("takes minutes; ERRAND_SIM_MUTATIONS=all runs it")
	}
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(mutations)) {
		if which != "all" && !strings.Contains(name, which) {
			continue
		}
		began := time.Now()
		seed, rule := mutations[name].caught(t, seeds)
		if seed == "" {
			t.Errorf("%s: no seed of %d found it", name, seeds)
			seed = "-"
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", name, seed, rule)
		t.Logf("%s: seed %s, %s, after %s", name, seed, rule, time.Since(began).Round(time.Second))
	}
	t.Logf("\n| breakage | seeds | what is seen |\n| --- | --- | --- |\n%s", table.String())
}

// caught is the first seed that finds the mutation, as text, and the promise that it sees broken.
func (m mutation) caught(t *testing.T, seeds uint64) (seed, rule string) {
	t.Helper()
	broken, err := m.apply()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	original, err := filepath.Abs(filepath.Join("..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	file, overlay, binary := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: file}})
	if err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string][]byte{file: broken, overlay: list} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with %q in place of %q: %v\n%s", m.new, m.old, err, out)
	}
	run := exec.CommandContext(t.Context(), binary, "-test.run", "TestSeeds", "-test.timeout", "10m")
	run.Env = append(os.Environ(), "ERRAND_SIM_SHRINK=0", "ERRAND_SIM_SEED=1", fmt.Sprint("ERRAND_SIM_SEEDS=", seeds))
	out, err := run.CombinedOutput()
	found := failedSeed.FindSubmatch(out)
	switch {
	case err == nil:
		return "", ""
	case found == nil:
		t.Fatalf("%v\n%s", err, out)
	}
	rule, _, _ = strings.Cut(string(found[2]), ":")
	return string(found[1]), rule
}
