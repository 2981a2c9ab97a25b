package manifest

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
)

func TestToYAMLShowsTheDefaultsInEffect(t *testing.T) {
	set, err := parse(t, fixture(t, "unused-anchor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ToYAML(set.Objects[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(fixture(t, "counter.want.yaml"), string(got)); diff != "" {
		t.Errorf("YAML (-want +got):\n%s", diff)
	}
}

// TestNoFieldIsDropped reads a manifest that sets every field to something other
// than its default, and finds each again after a turn through both encodings.
func TestNoFieldIsDropped(t *testing.T) {
	set, err := parse(t, fixture(t, "every-field.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range set.Objects {
		checkRoundTrip(t, o.Object)
	}

	a := set.Objects[0].Object.(*fleet.Agent)
	unset := unsetFields(t, a)
	if diff := gocmp.Diff([]string{"job", "run.url", "evaluate.by.agent"}, unset); diff != "" {
		t.Errorf("fields that the fixture could not set in one agent (-want +got):\n%s", diff)
	}
	for _, o := range set.Objects[1:] {
		if unset := unsetFields(t, o.Object); len(unset) != 0 {
			t.Errorf("%s: not set: %v", o.Kind(), unset)
		}
	}
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func checkRoundTrip(t fataler, want fleet.Object) {
	t.Helper()
	out, err := ToYAML(want)
	if err != nil {
		t.Fatalf("%v", err)
	}
	set, err := Parse([]File{{Name: "m", Data: bytes.NewReader(out)}}, Options{})
	if err != nil {
		t.Fatalf("what ToYAML wrote is refused:\n%v\n%s", err, out)
	}
	if diff := gocmp.Diff(want, set.Objects[0].Object); diff != "" {
		t.Fatalf("YAML and back (-want +got):\n%s\n%s", diff, out)
	}
	form, err := fleet.Encode(want)
	if err != nil {
		t.Fatalf("%v", err)
	}
	again, err := fleet.Decode(form)
	if err != nil {
		t.Fatalf("%v\n%s", err, form)
	}
	if diff := gocmp.Diff(want, again); diff != "" {
		t.Fatalf("JSON and back (-want +got):\n%s\n%s", diff, form)
	}
	if set.Objects[0].Hash() != want.Hash() {
		t.Fatalf("the hash changed on the way")
	}
}

func TestToYAMLReadsBackAsEqual(t *testing.T) {
	for name, draw := range map[string]func(*rapid.T) fleet.Object{
		"agent": drawAgent, "target": drawTarget, "tenant": drawTenant,
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				obj := draw(t)
				obj.SetDefaults()
				if problems := obj.Validate(); len(problems) > 0 {
					t.Fatalf("the generator made a bad object: %v", problems)
				}
				checkRoundTrip(t, obj)
			})
		})
	}
}

// tricky are texts that YAML reads as something else when they are not quoted.
var tricky = []string{
	"", " ", "on", "NO", "~", "null", "true", "010", "0o7", "1_000", "1e3", ".inf", "2024-01-02", "12:30:45", "<<", "=",
	"- x", "? x", "a: b", "a #b", "#", "*x", "&x", "!x", "%x", "@x", "`", "|", ">", "{", "[", "]", ",", "'", "\"", "\\",
	"---", "...", "a\nb", "a\n", "\na", " a", "a ", "\ta", "a\r\nb", "\x01", "\x7f", "\u0085", "\u2028", "\uFEFF", "\uFFFD", "😀", "é",
}

var (
	anyText = rapid.OneOf(rapid.SampledFrom(tricky), rapid.String()).
		Filter(func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") })
	plainText = anyText.Filter(func(s string) bool {
		return len(s) <= fleet.MaxTextLength && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	})
	someText  = plainText.Filter(func(s string) bool { return s != "" })
	name      = rapid.StringMatching(`[a-z]([a-z0-9-]{0,20}[a-z0-9])?|[0-9]{1,3}|on|null`)
	labelKey  = rapid.StringMatching(`([a-z]{1,5}\.[a-z]{2}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?`)
	label     = rapid.StringMatching(`([A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?)?`)
	length    = rapid.Map(rapid.Int64Range(1, int64(300*24*time.Hour)), func(n int64) fleet.Duration { return fleet.Duration(n) })
	anyLength = rapid.OneOf(rapid.Just(fleet.Duration(0)), length)
	money     = rapid.Float64Range(0, fleet.MaxBudgetUSD)
	ratio     = rapid.Float64Range(0, 1)
	cpu       = rapid.Map(rapid.Int64Range(0, 1<<40), func(n int64) fleet.CPU { return fleet.CPU(n) })
	memory    = rapid.Map(rapid.Int64Range(0, 1<<60), func(n int64) fleet.Bytes { return fleet.Bytes(n) })
	schema    = rapid.SampledFrom([]string{
		"", `true`, `{}`, `{"type":"object"}`, `{"const":1.50,"enum":[null,true,"on",123456789012345678901234567890,-0.0]}`,
		`{"properties":{"<<":{},"a\nb":{"pattern":"^\\d+$"},"on":{}},"required":[]}`,
	})
)

// listOf draws a list without repetition, nil when it is empty.
func listOf(t *rapid.T, g *rapid.Generator[string], what string) []string {
	l := rapid.SliceOfNDistinct(g, 0, 4, rapid.ID[string]).Draw(t, what)
	if len(l) == 0 {
		return nil
	}
	return l
}

// mapOf draws a map, nil when it is empty.
func mapOf(t *rapid.T, k, v *rapid.Generator[string], what string) map[string]string {
	m := rapid.MapOfN(k, v, 0, 4).Draw(t, what)
	if len(m) == 0 {
		return nil
	}
	return m
}

func drawMeta(t *rapid.T) fleet.Meta {
	return fleet.Meta{Name: name.Draw(t, "name"), Labels: mapOf(t, labelKey, label, "metadata.labels"), Version: plainText.Draw(t, "version")}
}

func drawAgent(t *rapid.T) fleet.Object {
	count := rapid.IntRange(0, 1000)
	maybe := rapid.Bool()
	a := &fleet.Agent{
		Meta: drawMeta(t), Shape: rapid.SampledFrom(fleet.Shapes()).Draw(t, "shape"),
		Input: bytesOf(schema.Draw(t, "input")), Output: bytesOf(schema.Draw(t, "output")),
		Needs: fleet.Needs{
			Slots: count.Draw(t, "slots"), CPU: cpu.Draw(t, "cpu"), Memory: memory.Draw(t, "memory"),
			Accelerator: plainText.Draw(t, "accelerator"), Regions: listOf(t, someText, "regions"),
			Labels: mapOf(t, labelKey, label, "labels"), TenantsOnly: listOf(t, name, "tenantsOnly"),
			DataIn: plainText.Draw(t, "dataIn"), Tolerates: listOf(t, labelKey, "tolerates"),
		},
		Retry:       fleet.Retry{MaxAttempts: count.Draw(t, "maxAttempts"), Backoff: fleet.Backoff{Jitter: ratio.Draw(t, "jitter")}},
		Timeouts:    fleet.Timeouts{Queue: anyLength.Draw(t, "queue"), Attempt: anyLength.Draw(t, "attempt"), CountWaiting: maybe.Draw(t, "countWaiting")},
		Concurrency: fleet.Concurrency{Max: count.Draw(t, "max"), PerTenant: count.Draw(t, "perTenant")},
		Budget:      fleet.Budget{USD: money.Draw(t, "usd"), Tokens: rapid.Int64Range(0, fleet.MaxBudgetTokens).Draw(t, "tokens")},
		Permissions: fleet.Permissions{Call: listOf(t, name, "call"), Effects: listOf(t, someText, "effects"), State: listOf(t, someText, "state")},
		Identity:    plainText.Draw(t, "identity"),
		Effects:     fleet.Effects{Settle: anyLength.Draw(t, "settle")},
		Retain:      anyLength.Draw(t, "retain"),
	}
	if maybe.Draw(t, "has a command") {
		a.Run = fleet.Run{
			Command: append([]string{"x"}, listOf(t, anyText, "command")...), Build: []string{"make"},
			Dir: plainText.Draw(t, "dir"), Env: mapOf(t, rapid.StringMatching(`[A-Z_]{1,6}`), anyText, "env"),
			Protocol: rapid.SampledFrom([]fleet.Protocol{"", fleet.Worker, fleet.Stdio, fleet.HTTP}).Draw(t, "protocol"),
		}
	}
	if maybe.Draw(t, "has rules") {
		a.Retry.On = []fleet.RetryRule{{Code: someText.Draw(t, "code"), Action: fleet.ActionFail}, {Class: "user", Action: fleet.ActionRetry}}
	}
	if maybe.Draw(t, "has a key") {
		a.Concurrency.PerKey = &fleet.PerKey{Key: anyText.Draw(t, "key") + "x", Max: 1 + count.Draw(t, "key max")}
	}
	if maybe.Draw(t, "scales") {
		a.Scale = fleet.Scale{Signal: "inFlight", Target: "12", Max: 1 + count.Draw(t, "scale max")}
	}
	if maybe.Draw(t, "evaluates") {
		a.Evaluate = &fleet.Evaluate{By: fleet.Evaluator{CEL: anyText.Draw(t, "cel") + "x"}, Sample: ratio.Draw(t, "sample"), AlarmBelow: ratio.Draw(t, "alarmBelow")}
	}
	if a.Shape == fleet.Job && maybe.Draw(t, "has a job") {
		a.Job = &fleet.JobSpec{Completions: new(count.Draw(t, "completions")), Parallelism: new(count.Draw(t, "parallelism")), CompletionMode: "Indexed"}
	}
	return a
}

func bytesOf(s string) fleet.Schema {
	if s == "" {
		return nil
	}
	return fleet.Schema(s)
}

func drawTarget(t *rapid.T) fleet.Object {
	return &fleet.Target{
		Meta: drawMeta(t), Runtime: rapid.SampledFrom([]fleet.Runtime{fleet.RuntimeLocal, fleet.RuntimePoll}).Draw(t, "runtime"),
		Resource: plainText.Draw(t, "resource"), Region: plainText.Draw(t, "region"), Labels: mapOf(t, labelKey, label, "labels"),
		Taints: listOf(t, labelKey, "taints"), Tenants: listOf(t, name, "tenants"), Data: listOf(t, someText, "data"),
		Capacity: fleet.Capacity{Runs: rapid.IntRange(1, fleet.MaxRuns).Draw(t, "runs"), CPU: cpu.Draw(t, "cpu"), Memory: memory.Draw(t, "memory")},
		Cost:     fleet.Cost{PerRunSecondUSD: money.Draw(t, "second"), PerRunUSD: money.Draw(t, "run")},
		Drain:    rapid.Bool().Draw(t, "drain"),
	}
}

func drawTenant(t *rapid.T) fleet.Object {
	count := rapid.IntRange(0, fleet.MaxRuns)
	return &fleet.Tenant{
		Meta: drawMeta(t), Weight: rapid.IntRange(0, fleet.MaxWeight).Draw(t, "weight"),
		Quota:       fleet.Quota{Running: count.Draw(t, "running"), Queued: count.Draw(t, "queued")},
		Budget:      fleet.TenantBudget{USD: money.Draw(t, "usd")},
		PriorityMax: rapid.IntRange(0, fleet.MaxPriority).Draw(t, "priorityMax"),
	}
}

// unsetFields lists the fields of the spec that hold nothing, by their names.
func unsetFields(t *testing.T, obj fleet.Object) []string {
	t.Helper()
	var unset []string
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for name, i := range fieldsOf(v.Type()) {
			at, f := fleet.At(path, name), v.Field(i)
			if f.Kind() == reflect.Pointer && !f.IsNil() {
				f = f.Elem()
			}
			switch {
			case f.Kind() == reflect.Struct:
				walk(at, f)
			case f.IsZero() && at != "retry.backoff.jitter": // 0 is not its default
				unset = append(unset, at)
			}
		}
	}
	walk("", reflect.ValueOf(obj).Elem())
	slices.SortFunc(unset, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	return unset
}
