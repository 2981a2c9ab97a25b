package placement

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

func TestAStoredDecisionComesBack(t *testing.T) {
	w, p, a := NewWorld(), Default(), testAgent(func(a *fleet.Agent) { a.Needs.Regions = []string{"eu"} })
	for i := range 20 {
		w.SetNode(Node{Target: testTarget(fmt.Sprintf("t%02d", i), func(t *fleet.Target) {
			t.Region = []string{"eu", "us", "asia"}[i%3]
			t.Drain = i%5 == 0
			if i%4 == 3 {
				t.Tenants = []string{"globex"}
			}
		})})
	}
	for k := range 4 {
		w.Assume("t12", testRequest(fmt.Sprint(k), a), 0)
	}
	placed := p.Place(w, testRequest("r", a))
	excluded := p.Place(w, testRequest("r", testAgent(func(a *fleet.Agent) { a.Needs.Accelerator = "l4" })))
	for node := range 20 {
		for k := range 4 {
			w.Assume(fmt.Sprintf("t%02d", node), testRequest(fmt.Sprint(node, "-", k), a), 0)
		}
	}
	full := p.Place(w, testRequest("r", a))
	for _, d := range []Decision{placed, excluded, full, {Outcome: NoCapacity, RetryAt: 7, Final: true}} {
		raw := d.Encode()
		got, err := DecodeDecision(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		d.WakeOn = nil
		if diff := cmp.Diff(d, got, sameDecision); diff != "" {
			t.Errorf("%s\ncomes back different (-want +got):\n%s", raw, diff)
		}
	}
	want := `{"outcome":"placed","target":"t06","score":44,"nodes":20,"fit":4,` +
		`"best":[{"node":"t06","score":44},{"node":"t09","score":44},{"node":"t18","score":44}],` +
		`"refused":[{"reason":"Draining","count":4,"nodes":["t00","t05","t10"]},` +
		`{"reason":"RegionMismatch","count":11,"nodes":["t01","t02","t04"]},` +
		`{"reason":"TenantExcluded","count":1,"nodes":["t03"]},{"reason":"NoFreeSlot","count":1,"nodes":["t12"]}]}`
	if diff := cmp.Diff(want, string(placed.Encode())); diff != "" {
		t.Errorf("stored form (-want +got):\n%s", diff)
	}
}

func drawDecision(t *rapid.T) Decision {
	text := rapid.StringN(0, 80, 300)
	d := Decision{
		Outcome: rapid.SampledFrom([]Outcome{Placed, NoCapacity, Unschedulable}).Draw(t, "outcome"),
		Nodes:   rapid.IntRange(0, 1e9).Draw(t, "nodes"), Fit: rapid.IntRange(0, 1e9).Draw(t, "fit"),
		Final: rapid.Bool().Draw(t, "final"), RetryAt: run.Instant(rapid.Int64Min(0).Draw(t, "retry")),
	}
	if d.Outcome == Placed {
		d.Target, d.Worker = "t"+strings.Repeat("x", rapid.IntRange(0, 62).Draw(t, "target")), text.Draw(t, "worker")
		d.Node = NodeName(d.Target, d.Worker)
		d.bests = rapid.IntRange(1, MaxBest).Draw(t, "bests")
		for i := range d.bests {
			d.best[i] = Scored{text.Draw(t, "node"), rapid.IntRange(0, 100).Draw(t, "score")}
		}
	}
	for _, reason := range Reasons[:rapid.IntRange(0, len(Reasons)).Draw(t, "reasons")] {
		tally := Tally{Reason: reason, Count: rapid.IntRange(1, 1e9).Draw(t, "count"), Message: text.Draw(t, "message")}
		for i := range rapid.IntRange(0, maxNames).Draw(t, "names") {
			tally.Names[i] = "n" + text.Draw(t, "name")
		}
		d.Refused = append(d.Refused, tally)
	}
	return d
}

func TestAnyDecisionIsStoredWithinItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		raw := d.Encode()
		if len(raw) > run.MaxDetail || !json.Valid(raw) {
			t.Fatalf("%d bytes, at most %d are wanted: %s", len(raw), run.MaxDetail, raw)
		}
		got, err := DecodeDecision(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got.Outcome != d.Outcome || got.Nodes != d.Nodes || got.Fit != d.Fit || got.Final != d.Final || got.RetryAt != d.RetryAt {
			t.Fatalf("%s comes back as %+v", raw, got)
		}
		if valid(d.Worker) && (got.Node != d.Node || got.Worker != d.Worker) {
			t.Fatalf("chosen %q comes back as %q", d.Node, got.Node)
		}
		again, err := DecodeDecision(got.Encode())
		if diff := cmp.Diff(got, again, sameDecision); err != nil || diff != "" {
			t.Fatalf("%v, encoded again (-first +second):\n%s", err, diff)
		}
		if len(d.Message()) > maxText {
			t.Fatalf("a message of %d bytes", len(d.Message()))
		}
	})
}

func valid(s string) bool { return strings.ToValidUTF8(s, "") == s }

func TestTheLargestDecisionKeepsWhatMattersMost(t *testing.T) {
	d := Decision{Outcome: Placed, Target: strings.Repeat("t", 63), Worker: strings.Repeat("w", 128), Nodes: 9, Fit: 8, bests: MaxBest}
	for i := range d.best {
		d.best[i] = Scored{fmt.Sprint(i, strings.Repeat("n", 190)), 9 - i}
	}
	for _, reason := range Reasons[:12] {
		name := strings.Repeat("m", 190)
		d.Refused = append(d.Refused, Tally{Reason: reason, Count: 3, Names: [maxNames]string{name, name, name}, Message: name})
	}
	got, err := DecodeDecision(d.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got.Target != d.Target || got.Worker != d.Worker || len(got.Best()) == 0 || got.Best()[0] != d.best[0] || len(got.Refused) != 12 {
		t.Errorf("comes back as %+v", got)
	}
}

func TestNamesThatNoDeclarationAllowsDoNotBreakTheBound(t *testing.T) {
	wild := strings.Repeat("\x01", 900)
	d := Decision{Outcome: Placed, Target: "t", Worker: wild, bests: 1, best: [MaxBest]Scored{{wild, 1}}}
	if raw := d.Encode(); len(raw) > run.MaxDetail {
		t.Errorf("%d bytes", len(raw))
	}
}

func TestDecodingRefusesWhatIsNoDecision(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":   "",
		"no object": "[1]",
		"a number":  `{"outcome":1}`,
		"too long":  `{"outcome":"` + strings.Repeat("x", run.MaxDetail) + `"}`,
	} {
		if d, err := DecodeDecision(json.RawMessage(raw)); err == nil || !strings.HasPrefix(err.Error(), "decode decision: ") {
			t.Errorf("%s: %+v, error %v", name, d, err)
		}
	}
}

func FuzzDecodeDecision(f *testing.F) {
	f.Add([]byte(`{"outcome":"placed","target":"a","worker":"w","score":9,"nodes":3,"fit":2,"best":[{"node":"a","score":9}],"refused":[{"reason":"Draining","count":1,"nodes":["b"],"message":"m"}]}`))
	f.Add([]byte(`{"outcome":"unschedulable","best":[{},{},{},{},{},{}],"refused":[{"reason":"new","nodes":["","a","b","c"]}],"retryAt":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := DecodeDecision(raw)
		if err != nil {
			return
		}
		if out := d.Encode(); len(out) > run.MaxDetail || !json.Valid(out) {
			t.Errorf("encodes to %d bytes: %s", len(out), out)
		}
		_ = d.Message()
	})
}
