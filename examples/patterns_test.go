package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/invoice/journal"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/patterns"
	"github.com/errand-run/errand/shared/patterns/model"
)

// theFolders of patterns.
func patternFolders(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("patterns/*/fleet.yaml")
	if err != nil || len(found) != 12 {
		t.Fatalf("%d patterns, error %v", len(found), err)
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

func TestEachPatternIsDeclaredAndDescribed(t *testing.T) {
	guide, err := os.ReadFile("../docs/guides/patterns.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := make(map[string]bool)
	for _, folder := range patternFolders(t) {
		entries := make(map[string]bool)
		for _, o := range load(t, folder) {
			switch o := o.Object.(type) {
			case *fleet.Agent:
				checkProgram(t, o)
				declared[o.Name()], entries[o.Name()] = true, true
			case *fleet.Workflow:
				entries[o.Name()] = true
			default:
				t.Errorf("%s: a %s is no part of a pattern", folder, o.Kind())
			}
		}
		for _, s := range readSamples(t, folder) {
			if !entries[s.Agent+s.Workflow] {
				t.Errorf("%s/runs.jsonl:%d: %q is not declared", folder, s.line, s.Agent+s.Workflow)
			}
		}
		if readme, err := os.ReadFile(folder + "/README.md"); err != nil || !strings.Contains(string(readme), "dev -f examples/"+folder) {
			t.Errorf("%s: no README that says how to run it: %v", folder, err)
		}
		if !strings.Contains(string(guide), "examples/"+folder+"/fleet.yaml") {
			t.Errorf("%s: the guide does not name it", folder)
		}
	}
	sameAgents(t, patterns.Agents(), declared)
}

// sameAgents wants every agent of a program declared, and no other.
func sameAgents(t *testing.T, program map[string]agent.Agent, declared map[string]bool) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(program)), slices.Sorted(maps.Keys(declared))); diff != "" {
		t.Errorf("agents of the program, and agents declared (-program +declared):\n%s", diff)
	}
}

// TestEachPatternRunsByItself is what the READMEs say: one command, and its exit code is 0.
func TestEachPatternRunsByItself(t *testing.T) {
	for _, folder := range patternFolders(t) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			dir := stage(t, folder+"/fleet.yaml")
			runs, err := os.ReadFile(folder + "/runs.jsonl")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "fleet", "runs.jsonl"), runs, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := errand(dir, "dev", "--once", "--addr", "127.0.0.1:0", "--data", ":memory:", "-f", filepath.Join(dir, "fleet"))
			if p := outside.Start(t, cmd); p.Code(t) != 0 {
				t.Errorf("exit code %d", p.Code(t))
			}
		})
	}
}

// pattern is one fleet, and what is to be seen of it.
type pattern struct {
	folder  string
	results func(t *testing.T, s *server, samples []*api.Run)
	// before names the agent at whose door the server is killed; "" where results does so.
	before string
}

func TestPatterns(t *testing.T) {
	for _, p := range []pattern{
		{"sequential", sequentialResults, "mail-topic"},
		{"parallel", parallelResults, "contract-legal"},
		{"loop", loopResults, "text-trim"},
		{"review-and-critique", reviewResults, "press-reviewer"},
		{"iterative-refinement", refinementResults, "tour-improve"},
		{"coordinator", coordinatorResults, "desk-technical"},
		{"hierarchical", hierarchicalResults, "study-shop"},
		{"swarm", swarmResults, "care-technical"},
		{"group-chat", groupChatResults, "chat-finance"},
		{"magentic", magenticResults, "incident-metrics"},
		{"human-in-the-loop", humanResults, ""},
		{"custom", customResults, ""},
	} {
		t.Run(p.folder, func(t *testing.T) {
			t.Parallel()
			folder := "patterns/" + p.folder
			s := serve(t, stage(t, folder+"/fleet.yaml"))
			var runs []*api.Run
			for _, sample := range readSamples(t, folder) {
				runs = append(runs, s.submit(sample.Submit))
			}
			if p.folder != "human-in-the-loop" {
				for i := range runs {
					runs[i] = s.end(runs[i].ID)
				}
			}
			p.results(t, s, runs)
			if p.before != "" {
				killed(t, s, p, runs[0])
			}
		})
	}
}

// killed submits again what gave a run, stops the fleet before one of its agents, kills the server there, and lets it go
// on. What comes of it is what came of the same input undisturbed, by the same number of runs.
func killed(t *testing.T, s *server, p pattern, undisturbed *api.Run) {
	t.Helper()
	if err := s.PauseAgent(t.Context(), p.before); err != nil {
		t.Fatal(err)
	}
	run := s.submit(api.Submit{Agent: undisturbed.Agent, Workflow: undisturbed.Workflow, Input: undisturbed.Input})
	outside.Eventually(s.t, outside.Patience, "a run of "+p.before+" is called", func() bool { return s.count(run.ID, p.before) > 0 })
	s.Reboot()
	if err := s.ResumeAgent(t.Context(), p.before); err != nil {
		t.Fatal(err)
	}
	run = s.end(run.ID)
	if diff := cmp.Diff(string(undisturbed.Output), string(run.Output)); diff != "" || run.State != undisturbed.State {
		t.Errorf("%s (%s): %s; output (-undisturbed +killed):\n%s", run.State, run.Reason, run.Message, diff)
	}
	if n, m := len(s.stages(undisturbed.ID)), len(s.stages(run.ID)); n != m {
		t.Errorf("%d runs undisturbed, %d with a kill", n, m)
	}
}

// stages are the runs below a run in the order in which they were made, as STAGE AGENT STATE.
func (s *server) stages(id string) (stages []string) {
	s.t.Helper()
	var runs []api.Run
	each(s.tree(id), func(r *api.Run) {
		if r.ID != id {
			runs = append(runs, *r)
		}
	})
	slices.SortStableFunc(runs, func(a, b api.Run) int { return a.CreatedAt.Compare(b.CreatedAt.Time) })
	for _, r := range runs {
		stages = append(stages, r.Name()+" "+r.State)
	}
	return stages
}

func sequentialResults(t *testing.T, s *server, runs []*api.Run) {
	type output struct {
		Topic  string
		Reply  string
		Person bool
	}
	first, second := outputOf[output](t, runs[0]), outputOf[output](t, runs[1])
	if first.Topic != "invoice" || second.Topic != "delivery" || first.Person {
		t.Errorf("%+v, %+v", first, second)
	}
	for _, private := range []string{"ada@example.org", "2020 51", "170"} {
		if strings.Contains(first.Reply, private) {
			t.Errorf("the reply quotes %q: %s", private, first.Reply)
		}
	}
	want := []string{"mail-redact succeeded", "mail-topic succeeded", "mail-reply succeeded"}
	if diff := cmp.Diff(want, s.stages(runs[0].ID)); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
}

func parallelResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Clauses []*struct {
			Number int
			Flags  []string
		}
		Judgment struct {
			Findings []string
			Risk     int
			Summary  map[string]string
		}
	}](t, runs[0])
	if len(out.Clauses) != 6 || out.Clauses[3] != nil || out.Clauses[4] == nil || out.Clauses[4].Number != 5 {
		t.Fatalf("clauses %s; want six in order, the fourth of them null", runs[0].Output)
	}
	if j := out.Judgment; j.Risk != 10 || len(j.Findings) != 4 || len(j.Summary) != 2 {
		t.Errorf("judgment %+v", j)
	}
	// Two empty ones of six are more than a quarter.
	failed := s.end(s.submit(api.Submit{Workflow: "contract-review", Input: json.RawMessage(
		`{"clauses":[{"number":1,"text":""},{"number":2,"text":"a"},{"number":3,"text":""},{"number":4,"text":"b"},{"number":5,"text":"c"},{"number":6,"text":"d"}]}`)}).ID)
	if failed.State != "failed" || !strings.Contains(failed.Message, "ClauseEmpty") && !strings.Contains(failed.Message, "has no text") {
		t.Errorf("two empty clauses: %s (%s): %s", failed.State, failed.Reason, failed.Message)
	}
}

func loopResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Text   string
		Length int
	}](t, runs[0])
	if out.Length > 150 || !strings.Contains(out.Text, "ferry") || strings.Contains(out.Text, "weather") {
		t.Errorf("%+v", out)
	}
	if rounds := s.count(runs[0].ID, "text-trim"); rounds < 2 {
		t.Errorf("%d rounds", rounds)
	}
	failed := s.end(s.submit(api.Submit{Workflow: "shorten", Input: json.RawMessage(`{"text":"One very long sentence that does not fit.","limit":10}`)}).ID)
	if failed.State != "failed" || failed.Reason != "LoopLimit" || s.count(failed.ID, "text-trim") != 8 {
		t.Errorf("what never fits: %s (%s) after %d rounds: %s", failed.State, failed.Reason, s.count(failed.ID, "text-trim"), failed.Message)
	}
	// The same as a circle of stages, whose bound is in maxVisits.
	circle := s.end(s.submit(api.Submit{Workflow: "shorten-in-a-circle", Input: runs[0].Input}).ID)
	if got := outputOf[struct{ Text string }](t, circle); got.Text != out.Text {
		t.Errorf("the circle comes to %q, the loop to %q", got.Text, out.Text)
	}
	failed = s.end(s.submit(api.Submit{Workflow: "shorten-in-a-circle", Input: json.RawMessage(`{"text":"One very long sentence that does not fit.","limit":10}`)}).ID)
	if failed.State != "failed" || failed.Reason != "LoopLimit" || s.count(failed.ID, "text-trim") != 6 {
		t.Errorf("a circle without an end: %s (%s) after %d rounds: %s", failed.State, failed.Reason, s.count(failed.ID, "text-trim"), failed.Message)
	}
}

func reviewResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct{ Draft string }](t, runs[0])
	if out.Draft != "The Lamp 3 burns for 40 hours and costs 29 EUR." {
		t.Errorf("draft %q", out.Draft)
	}
	if w, r := s.count(runs[0].ID, "press-writer"), s.count(runs[0].ID, "press-reviewer"); w != 3 || r != 3 {
		t.Errorf("%d drafts and %d reviews; want three of each", w, r)
	}
	// A limit that no draft keeps: the best of four is taken.
	best := s.end(s.submit(api.Submit{Workflow: "press-note", Input: json.RawMessage(`{"product":"Lamp 3","facts":["burns for 40 hours","costs 29 EUR"],"limit":20}`)}).ID)
	if got := outputOf[struct{ Draft string }](t, best); got.Draft == "" || s.count(best.ID, "press-writer") != 4 {
		t.Errorf("draft %q after %d rounds", got.Draft, s.count(best.ID, "press-writer"))
	}
}

func refinementResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Stops  []struct{ Name string }
		Length float64
		Gained float64
		Score  float64
	}](t, runs[0])
	if len(out.Stops) != 10 || out.Length <= 0 || out.Length > 32 || out.Score < 0.5 {
		t.Errorf("%+v", out)
	}
	if rounds := s.count(runs[0].ID, "tour-improve"); rounds < 3 || rounds >= 30 {
		t.Errorf("%d rounds", rounds)
	}
}

func coordinatorResults(t *testing.T, s *server, runs []*api.Run) {
	type output struct {
		Answer  string
		Actions []string
		Asked   map[string]string
	}
	all, one := outputOf[output](t, runs[0]), outputOf[output](t, runs[1])
	want := []string{"refund 1 × 29.00 EUR of order O-77", "have Van look for V9", "send firmware 1.4 for lamp-2"}
	if diff := cmp.Diff(want, all.Actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if len(one.Asked) != 1 || len(s.stages(runs[1].ID)) != 1 || one.Answer != "Your parcel has not left our house." {
		t.Errorf("%+v", one)
	}
	nobody := s.end(s.submit(api.Submit{Agent: "desk", Input: json.RawMessage(`{"request":"Do you sell tea?","order":{}}`)}).ID)
	if nobody.State != "failed" || lastCode(nobody) != "NobodyAsked" || len(s.stages(nobody.ID)) != 0 {
		t.Errorf("a question for nobody: %s %s", nobody.State, lastCode(nobody))
	}
	// One specialist who fails leaves a gap.
	gap := s.end(s.submit(api.Submit{Agent: "desk", Input: json.RawMessage(`{"request":"You charged me, no parcel came, it does not start","order":{"model":"unheard-of","charges":1}}`)}).ID)
	if out := outputOf[struct{ Without []string }](t, gap); len(out.Without) != 1 || out.Without[0] != "desk-technical" {
		t.Errorf("without %v", out.Without)
	}
}

func lastCode(run *api.Run) string {
	if len(run.Attempts) == 0 {
		return ""
	}
	return run.Attempts[len(run.Attempts)-1].Code
}

func hierarchicalResults(t *testing.T, s *server, runs []*api.Run) {
	type region struct {
		Name    string
		Total   float64
		Shops   int
		Best    string
		Unusual []string
		Missing []string
	}
	out := outputOf[struct {
		Total   float64
		Regions []region
	}](t, runs[0])
	want := []region{
		{"south", 599, 2, "Roma", []string{}, []string{"Bari"}},
		{"north", 337, 2, "Oslo", []string{"Bergen, day 6"}, nil},
	}
	if diff := cmp.Diff(want, out.Regions); diff != "" || out.Total != 936 {
		t.Errorf("total %g, regions (-want +got):\n%s", out.Total, diff)
	}
	if n := s.count(runs[0].ID, "study-shop"); n != 5 {
		t.Errorf("%d shops were looked at", n)
	}
}

func swarmResults(t *testing.T, s *server, runs []*api.Run) {
	type output struct {
		Answer string
		Trail  []string
	}
	first, second := outputOf[output](t, runs[0]), outputOf[output](t, runs[1])
	if diff := cmp.Diff([]string{"care-reception", "care-billing", "care-technical", "care-billing"}, first.Trail); diff != "" {
		t.Errorf("trail (-want +got):\n%s", diff)
	}
	if !strings.Contains(first.Answer, "refunded") || !strings.Contains(first.Answer, "new lamp-3") || len(second.Trail) != 1 {
		t.Errorf("%+v, %+v", first, second)
	}
	bounced := s.end(s.submit(api.Submit{Agent: "care-reception", Input: json.RawMessage(`{"text":"I want a replacement.","charges":1,"device":"lamp-3"}`)}).ID)
	if bounced.State != "failed" || lastCode(bounced) != "HandoffLimit" || len(s.stages(bounced.ID)) != 4 {
		t.Errorf("a case that bounces: %s %s after %v: %s", bounced.State, lastCode(bounced), s.stages(bounced.ID), bounced.Message)
	}
}

func groupChatResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Offer struct {
			Days int
			Unit float64
		}
		Turns int
		Said  []struct{ Speaker string }
	}](t, runs[0])
	if out.Offer.Days != 9 || out.Offer.Unit != 11.47 || out.Turns != len(out.Said) || len(s.stages(runs[0].ID)) != out.Turns {
		t.Errorf("%+v", out)
	}
	var in map[string]any
	if err := json.Unmarshal(runs[0].Input, &in); err != nil {
		t.Fatal(err)
	}
	in["mostUnit"] = 9
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	endless := s.end(s.submit(api.Submit{Agent: "chat-chair", Input: text}).ID)
	if endless.State != "failed" || lastCode(endless) != "NoConsensus" || len(s.stages(endless.ID)) != 12 {
		t.Errorf("without an agreement: %s %s after %d turns: %s", endless.State, lastCode(endless), len(s.stages(endless.ID)), endless.Message)
	}
}

func magenticResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Cause, Undo string
		Ledger      struct {
			Plans    int
			Progress []string
		}
	}](t, runs[0])
	if !strings.Contains(out.Cause, "pool of connections from 50 to 5") || out.Ledger.Plans != 2 {
		t.Errorf("%+v", out)
	}
	want := []string{`incident-logs "timeout": 0 new`, `incident-logs "deadline": 0 new`, `incident-metrics "errors": 1 new`, `incident-deploys "changes": 1 new`}
	if diff := cmp.Diff(want, out.Ledger.Progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	stalled := s.end(s.submit(api.Submit{Agent: "incident-lead", Input: json.RawMessage(`{"id":"I-6","report":"Something is slow."}`)}).ID)
	if stalled.State != "failed" || lastCode(stalled) != "Stalled" || len(s.stages(stalled.ID)) != 6 || len(stalled.Attempts) == 0 {
		t.Errorf("what gets nowhere: %s %s after %d calls: %s", stalled.State, lastCode(stalled), len(s.stages(stalled.ID)), stalled.Message)
	}
}

// humanResults approves one refund and rejects another, with the server killed while they wait.
func humanResults(t *testing.T, s *server, runs []*api.Run) {
	rejected := s.submit(api.Submit{Workflow: "refund", Input: json.RawMessage(`{"order":"O-10","iban":"DE1","cents":100,"days":1}`)})
	for _, id := range []string{runs[0].ID, rejected.ID} {
		outside.Eventually(s.t, outside.Patience, "run "+id+" waits at its gate", func() bool { return s.atGate(id) })
	}
	s.Reboot()
	gates := s.gates()
	if len(gates) != 2 {
		t.Fatalf("gates %v; want those of both runs", gates)
	}
	if _, code := s.command("approve", gates[runs[0].ID], "--as", "ada"); code != 0 {
		t.Errorf("approve: exit code %d", code)
	}
	if _, code := s.command("reject", gates[rejected.ID], "--as", "ada"); code != 0 {
		t.Errorf("reject: exit code %d", code)
	}
	type output struct {
		Paid struct {
			Cents int
			IBAN  string
		}
	}
	if out := outputOf[output](t, s.end(runs[0].ID)); out.Paid.Cents != 1495 {
		t.Errorf("paid %+v", out)
	}
	if no := s.end(rejected.ID); no.State != "failed" || no.Reason != "Rejected" {
		t.Errorf("the rejected one: %s (%s)", no.State, no.Reason)
	}
	if paid, err := journal.File(filepath.Join(s.dir, ".errand/payments.jsonl")).All(); err != nil || len(paid) != 1 {
		t.Errorf("%d payments, error %v", len(paid), err)
	}
	if _, code := s.command("reject", gates[runs[0].ID], "--as", "bob"); code != 5 {
		t.Errorf("a decision that comes too late: exit code %d, want 5", code)
	}
}

func (s *server) atGate(id string) bool {
	run, err := s.Run(s.t.Context(), id, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	if run.Terminal() {
		s.t.Fatalf("run %s ended: %s (%s): %s", id, run.State, run.Reason, run.Message)
	}
	return run.State == "waiting" && run.WaitsFor != nil && run.WaitsFor.On == "gate"
}

// gates are the open ones by run, as `errand gates` tells them.
func (s *server) gates() map[string]string {
	s.t.Helper()
	text, code := s.command("gates", "-o", "json")
	if code != 0 {
		s.t.Fatalf("errand gates: exit code %d", code)
	}
	type gate struct{ ID, Run string }
	var all []gate
	if json.Unmarshal([]byte(text), &all) != nil {
		all = make([]gate, 1)
		if err := json.Unmarshal([]byte(text), &all[0]); err != nil {
			s.t.Fatalf("errand gates: %v in %s", err, text)
		}
	}
	byRun := make(map[string]string)
	for _, g := range all {
		byRun[g.Run] = g.ID
	}
	return byRun
}

func customResults(t *testing.T, s *server, runs []*api.Run) {
	out := outputOf[struct {
		Delivery struct {
			Carrier string
			Cents   int
		}
		Quotes   []any
		NoQuote  []string
		Supplied []struct {
			SKU      string
			Quantity int
		}
		Booking, Supplier string
		Asked             bool
	}](t, runs[0])
	if out.Delivery.Carrier != "van" || len(out.Quotes) != 2 || len(out.NoQuote) != 2 || out.Booking == "" || out.Supplier == "" || out.Asked {
		t.Errorf("%s", runs[0].Output)
	}
	if len(out.Supplied) != 1 || out.Supplied[0].SKU != "bulb" || out.Supplied[0].Quantity != 6 {
		t.Errorf("supplied %+v", out.Supplied)
	}
	// A dear one asks first; the process is killed while it waits, and books once.
	in := strings.Replace(strings.Replace(string(runs[0].Input), `2000`, `100`, 1), "O-31", "O-32", 1)
	dear := s.submit(api.Submit{Agent: "order-fulfil", Input: json.RawMessage(in)})
	outside.Eventually(s.t, outside.Patience, "the dear order waits at a gate", func() bool { return s.atGate(dear.ID) })
	s.Reboot()
	if _, code := s.command("approve", s.gates()[dear.ID], "--as", "ada"); code != 0 {
		t.Errorf("approve: exit code %d", code)
	}
	if run := s.end(dear.ID); !strings.Contains(string(run.Output), `"asked":true`) {
		t.Errorf("%s (%s): %s", run.State, run.Reason, run.Output)
	}
	for file, want := range map[string]int{"bookings": 2, "supplier": 2} {
		all, err := journal.File(fmt.Sprintf("%s/.errand/%s.jsonl", s.dir, file)).All()
		if err != nil || len(all) != want {
			t.Errorf("%s: %d entries, error %v; want %d", file, len(all), err, want)
		}
	}
}

// TestAModelBehindAnAddressIsAskedOnceForEachDraft has the writer ask over HTTP, as it would a model.
func TestAModelBehindAnAddressIsAskedOnceForEachDraft(t *testing.T) {
	t.Parallel()
	script, err := model.BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	answers := model.Handler(script)
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answers.ServeHTTP(w, r)
	}))
	defer there.Close()
	const folder = "patterns/review-and-critique"
	dir := stage(t, folder+"/fleet.yaml")
	file := filepath.Join(dir, "fleet", "0.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`MODEL_URL: ""`), fmt.Appendf(nil, "MODEL_URL: %q", there.URL), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir)
	run := s.end(s.submit(readSamples(t, folder)[0].Submit).ID)
	if out := outputOf[struct{ Draft string }](t, run); !strings.Contains(out.Draft, "29 EUR") || asked.Load() != 3 {
		t.Errorf("draft %q after %d questions; want three", out.Draft, asked.Load())
	}
	if run.Cost.Tokens == 0 {
		each(s.tree(run.ID), func(r *api.Run) { run.Cost.Tokens += r.Cost.Tokens })
	}
	if run.Cost.Tokens == 0 {
		t.Error("no token was counted")
	}
}
