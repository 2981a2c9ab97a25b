package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/book"
	"github.com/errand-run/errand/shared/invoice/desk"
	"github.com/errand-run/errand/shared/invoice/tally"
	"github.com/errand-run/errand/shared/outside"
)

var binaries string // folder of the built agents

func TestMain(m *testing.M) {
	playPart()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "errand-examples-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binaries = dir
		return m.Run()
	}())
}

// built builds the agents of the invoice fleet, once, from what their manifests
// name but into a folder of the test.
var built = sync.OnceValue(func() error {
	args := []string{"build", "-o", binaries + string(filepath.Separator)}
	args = append(args, "./services/checker", "./services/concierge", "./services/ledger", "./jobs/reconcile")
	cmd := exec.Command("go", args...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
})

// commandOf is how the test starts an agent.
func commandOf(t *testing.T, a *fleet.Agent) []string {
	if len(a.Run.Build) == 0 {
		return a.Run.Command
	}
	if err := built(); err != nil {
		t.Fatal(err)
	}
	_, source := buildOf(t, a)
	return append([]string{filepath.Join(binaries, filepath.Base(source))}, a.Run.Command[1:]...)
}

// recorder takes reports as the server does, and keeps the steps.
type recorder struct {
	url   string
	mu    sync.Mutex
	steps []api.Step
}

func newRecorder(t *testing.T) *recorder {
	r := new(recorder)
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var batch api.ReportBatch
	if req.URL.Path != "/v1/attempts:batch" || json.NewDecoder(req.Body).Decode(&batch) != nil {
		http.Error(w, req.URL.Path, http.StatusNotFound)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, report := range batch.Reports {
		if report.Step != nil {
			r.steps = append(r.steps, *report.Step)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(api.ReportBatchResult{Results: make([]api.ReportResult, len(batch.Reports))})
}

// execute runs one attempt over stdio, which every agent speaks, whatever its
// shape: the handler is the same.
func execute(t *testing.T, a *fleet.Agent, d api.Document, url string) api.DocumentResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), outside.Patience)
	defer cancel()
	d.URL, d.Run, d.Attempt, d.Agent, d.Tenant, d.Mode = url, "r1", "r1.1", a.Name(), fleet.DefaultTenant, "run"
	d.Key, d.Deadline = "r1", api.Time{Time: time.Now().Add(outside.Patience)}
	document, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	command := commandOf(t, a)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Run.Dir, bytes.NewReader(document), &stdout, &stderr
	cmd.Env = append(os.Environ(), agent.EnvProtocol+"="+agent.ProtocolStdio, agent.EnvRun+"=r1", agent.EnvAttempt+"=r1.1")
	for name, value := range a.Run.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	err = cmd.Run()
	result := api.ParseResult(stdout.Bytes())
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("start %q: %v", command, err)
	}
	if (err != nil) != (result.Error != nil) {
		t.Fatalf("%q: %v with the result %s\n%s", command, err, stdout.Bytes(), stderr.Bytes())
	}
	return result
}

// succeed is execute where nothing but an output that fits will do.
func succeed[T any](t *testing.T, a *fleet.Agent, d api.Document, url string) (T, api.DocumentResult) {
	t.Helper()
	var output T
	result := execute(t, a, d, url)
	if result.Error != nil {
		t.Fatalf("agent %s: %s: %s", a.Name(), result.Error.Code, result.Error.Message)
	}
	fits(t, "output of "+a.Name(), a.Output, result.Output)
	if err := json.Unmarshal(result.Output, &output); err != nil {
		t.Fatal(err)
	}
	return output, result
}

func needPython(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3 on this machine: the agent in Python is not tested")
	}
}

// TestEverySampleSucceeds is the sample batch without a control plane: `errand
// dev --once` ends with an error if one run of it fails.
func TestEverySampleSucceeds(t *testing.T) {
	for _, folder := range folders(t) {
		t.Run(folder, func(t *testing.T) {
			if folder == "python" {
				needPython(t)
			}
			declared := agents(t, folder)
			server := newRecorder(t)
			sessions := make(map[string]json.RawMessage)
			for _, s := range readSamples(t, folder) {
				a := declared[s.Agent]
				d := api.Document{Input: s.Input}
				name := s.Tenant + "/" + s.Agent
				if a.Shape == fleet.Instance {
					d.Session = &api.DocumentSession{Name: "default", State: sessions[name]}
				}
				_, result := succeed[any](t, a, d, server.url)
				if result.Session != nil {
					sessions[name] = result.Session
				}
			}
		})
	}
}

func TestTheCheckerReportsEachRuleThatIsBroken(t *testing.T) {
	checker := agents(t, "invoices")["invoice-check"]
	for name, c := range map[string]struct {
		file      string
		wantRules []invoice.Rule
	}{
		"a right invoice breaks none":         {"plain-eur.xml", nil},
		"a wrong total breaks the sum":        {"broken-total.xml", []invoice.Rule{invoice.RuleTaxInclusive}},
		"a wrong VAT breaks the row it is in": {"broken-vat.xml", []invoice.Rule{invoice.RuleTaxOfRow}},
	} {
		t.Run(name, func(t *testing.T) {
			report, _ := succeed[invoice.Report](t, checker, api.Document{Input: fileInput(t, "invoices/data/"+c.file)}, "")
			var rules []invoice.Rule
			for _, v := range report.Violations {
				rules = append(rules, v.Rule)
			}
			if diff := cmp.Diff(c.wantRules, rules); diff != "" || report.Valid != (rules == nil) {
				t.Errorf("valid %t, rules (-want +got):\n%s", report.Valid, diff)
			}
		})
	}
}

func TestWhatCannotSucceedFailsOnceAndForAll(t *testing.T) {
	declared := agents(t, "invoices")
	file := func(text string) string { return fmt.Sprintf(`{"name":"x.xml","text":%q}`, text) }
	for name, c := range map[string]struct {
		agent, input string
		wantCode     string
	}{
		"a file that is no invoice":            {"invoice-check", string(fileInput(t, "invoices/data/not-an-invoice.xml")), "DocumentInvalid"},
		"a file that is no XML":                {"invoice-check", file("<Invoice"), "DocumentInvalid"},
		"an empty file":                        {"invoice-check", file(""), "DocumentInvalid"},
		"bytes that are no XML":                {"invoice-check", `{"name":"x.pdf","base64":"/9j/4AA="}`, "DocumentInvalid"},
		"a question about what is no invoice":  {"concierge", `{"question":"due?","document":` + file("<a/>") + `}`, "DocumentInvalid"},
		"no question":                          {"concierge", `{"question":" "}`, "QuestionInvalid"},
		"nothing to reconcile":                 {"invoice-reconcile", `{"documents":[]}`, "RequestInvalid"},
		"a posting of no number":               {"ledger", `{"post":{"id":"A","currency":"EUR","amount":"ten"}}`, "PostingInvalid"},
		"a posting and a question in one":      {"ledger", `{"balance":"EUR","entry":"A"}`, "PostingInvalid"},
		"an amount as a number":                {"ledger", `{"post":{"id":"A","currency":"EUR","amount":10.5}}`, agent.CodeInputInvalid},
		"another amount for a posted invoice":  {"ledger", `{"post":{"id":"P","currency":"EUR","amount":"2.00"}}`, "EntryConflict"},
		"another currency, for the same money": {"ledger", `{"post":{"id":"P","currency":"SEK","amount":"1.00"}}`, "EntryConflict"},
	} {
		t.Run(name, func(t *testing.T) {
			d := api.Document{Input: json.RawMessage(c.input), Session: &api.DocumentSession{
				Name: "default", State: json.RawMessage(`{"entries":{"P":{"currency":"EUR","amount":"1.00"}}}`),
			}}
			result := execute(t, declared[c.agent], d, "")
			if e := result.Error; e == nil || e.Code != c.wantCode || e.Retryable == nil || *e.Retryable {
				t.Fatalf("result %+v; want the final code %s", result, c.wantCode)
			}
			if result.Session != nil {
				t.Errorf("a failed turn saves %s", result.Session)
			}
		})
	}
}

// TestALedgerSurvivesItsProcess runs every turn in a process of its own: all
// that one knows of the turns before is the session.
func TestALedgerSurvivesItsProcess(t *testing.T) {
	ledger := agents(t, "invoices")["ledger"]
	var state json.RawMessage
	turn := func(input string) book.Reply {
		d := api.Document{Input: json.RawMessage(input), Session: &api.DocumentSession{Name: "default", State: state}}
		reply, result := succeed[book.Reply](t, ledger, d, "")
		state = result.Session
		return reply
	}
	const post = `{"post":{"id":"%s","currency":"EUR","amount":"%s"}}`
	if r := turn(fmt.Sprintf(post, "A-1", "10.10")); r.Changed == nil || !*r.Changed {
		t.Errorf("first posting: %+v; want a change", r)
	}
	if r := turn(fmt.Sprintf(post, "A-2", "-0.05")); r.Entries != 2 {
		t.Errorf("second posting: %+v; want two entries", r)
	}
	before := string(state)
	if r := turn(fmt.Sprintf(post, "A-1", "10.1")); *r.Changed || string(state) != before {
		t.Errorf("the first posting again: %+v, book %s; want no change of %s", r, state, before)
	}
	if r := turn(`{"balance":"EUR"}`); r.Balance != "10.05" || r.Entries != 2 || string(state) != before {
		t.Errorf("balance: %+v, book %s", r, state)
	}
}

func TestAReconciliationGoesOnBehindTheLastRecordedShard(t *testing.T) {
	reconcile := agents(t, "invoices")["invoice-reconcile"]
	input := fileInput(t, "invoices/requests/reconcile-march.json")

	// 1. From the start: every shard is recorded.
	first := newRecorder(t)
	want, _ := succeed[tally.Report](t, reconcile, api.Document{Input: input}, first.url)
	if want.Documents != 8 || len(want.Invalid) != 2 || want.Totals["EUR"] != "4529.55" || want.Totals["SEK"] != "3764.75" {
		t.Errorf("report %+v", want)
	}
	if len(first.steps) != want.Shards {
		t.Fatalf("%d steps for %d shards", len(first.steps), want.Shards)
	}

	// 2. After a crash behind the third: the same report, and only the others are worked on. What the record says
	// counts, which shows that its shards are not examined again.
	recorded := slices.Clone(first.steps[:3])
	recorded[0].Result = bytes.Replace(recorded[0].Result, []byte(`"892.5"`), []byte(`"1892.5"`), 1)
	second := newRecorder(t)
	got, _ := succeed[tally.Report](t, reconcile, api.Document{Input: input, Steps: recorded}, second.url)
	want.Totals["EUR"] = "5529.55"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report after the crash (-want +got):\n%s", diff)
	}
	names := func(steps []api.Step) (names []string) {
		for _, s := range steps {
			names = append(names, s.Name)
		}
		return names
	}
	if diff := cmp.Diff(names(first.steps[3:]), names(second.steps)); diff != "" {
		t.Errorf("steps after the crash (-want +got):\n%s", diff)
	}
}

func TestTheConciergeAnswersWithAndWithoutADocument(t *testing.T) {
	concierge := agents(t, "invoices")["concierge"]
	ask := fileInput(t, "invoices/requests/ask-when-due.json")
	reply, _ := succeed[desk.Reply](t, concierge, api.Document{Input: ask}, "")
	const want = "Verzonnen Tulpen B.V. owes Nordlicht Büro GmbH EUR 892.50.\nIt is due on 2026-04-01."
	if diff := cmp.Diff(want, reply.Answer); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	reply, _ = succeed[desk.Reply](t, concierge, api.Document{Input: json.RawMessage(`{"question":"when?"}`)}, "")
	if len(reply.Topics) != 0 || !strings.HasPrefix(reply.Answer, "Which invoice?") {
		t.Errorf("without a document: %+v", reply)
	}
}

func TestTheAgentInPythonNeedsNoLibrary(t *testing.T) {
	needPython(t)
	summary := agents(t, "python")["vendor-summary"]
	type vendor struct {
		Vendor    string
		Documents int
		Payable   map[string]string
	}
	got, _ := succeed[struct{ Vendors []vendor }](t, summary, api.Document{Input: fileInput(t, "invoices/requests/reconcile-march.json")}, "")
	want := []vendor{
		{"Fiktiva Kontor AB", 2, map[string]string{"SEK": "3764.75"}},
		{"Mondscheinwerk Beispiel GmbH", 2, map[string]string{"EUR": "2805.00"}},
		{"Nordlicht Büro GmbH", 4, map[string]string{"EUR": "4529.55"}},
	}
	if diff := cmp.Diff(want, got.Vendors); diff != "" {
		t.Errorf("vendors (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct{ input, want string }{
		"no documents":          {`{"documents":[]}`, "documents: want a list"},
		"no XML":                {`{"documents":[{"name":"a","text":"<a"}]}`, "documents[0]: "},
		"another document":      {`{"documents":[{"name":"a","text":"<a/>"}]}`, "neither a UBL invoice nor a credit note"},
		"entities":              {`{"documents":[{"name":"a","text":"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"}]}`, "document type declaration"},
		"base64 that is none":   {`{"documents":[{"name":"a","base64":"%"}]}`, "documents[0]: "},
		"a list with no object": {`{"documents":[7]}`, "documents[0]: want a file"},
	} {
		result := execute(t, summary, api.Document{Input: json.RawMessage(c.input)}, "")
		if e := result.Error; e == nil || e.Code != "RequestInvalid" || *e.Retryable || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: result %+v; want a final error with %q", name, result, c.want)
		}
	}
}
