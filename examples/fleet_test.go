// Package examples tests the fleets in its folders: that they load, that their
// samples fit, and that their agents do what they say.
package examples

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/book"
	"github.com/errand-run/errand/shared/manifest"
)

var update = flag.Bool("update", false, "write the documents in data/ into the requests that carry them")

// folders are the fleets; a new one is found by its manifest.
func folders(t *testing.T) []string {
	found, err := filepath.Glob("*/fleet.yaml")
	if err != nil || len(found) < 3 {
		t.Fatalf("fleets %v, error %v", found, err)
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

func load(t *testing.T, folder string) []manifest.Object {
	set, err := manifest.Load([]string{folder})
	if err != nil {
		t.Fatal(err)
	}
	return set.Objects
}

func agents(t *testing.T, folder string) map[string]*fleet.Agent {
	found := make(map[string]*fleet.Agent)
	for _, o := range load(t, folder) {
		if a, ok := o.Object.(*fleet.Agent); ok {
			found[a.Name()] = a
		}
	}
	return found
}

// sample is one line of a runs.jsonl, with its input read.
type sample struct {
	api.Submit
	line int
}

// readSamples reads as `errand dev` does: a $file is relative to the file of
// runs, JSON is the input as it is, other text becomes a file.
func readSamples(t *testing.T, folder string) []sample {
	text, err := os.ReadFile(filepath.Join(folder, "runs.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var samples []sample
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		s := sample{line: i + 1}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&s.Submit); err != nil {
			t.Fatalf("%s/runs.jsonl:%d: %v", folder, s.line, err)
		}
		var reference struct {
			File string `json:"$file"`
		}
		if json.Unmarshal(s.Input, &reference) == nil && reference.File != "" {
			s.Input = fileInput(t, filepath.Join(folder, reference.File))
		}
		samples = append(samples, s)
	}
	return samples
}

func fileInput(t *testing.T, path string) json.RawMessage {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".json" {
		return text
	}
	input, err := json.Marshal(invoice.File{Name: filepath.Base(path), ContentType: "application/xml", Text: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return input
}

// fits reports a value that does not fit a schema of a manifest.
func fits(t *testing.T, what string, schema fleet.Schema, value []byte) {
	t.Helper()
	if schema == nil {
		return
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		t.Fatalf("%s: %v in %.300s", what, err, value)
	}
	if err := compiled.Validate(instance); err != nil {
		t.Errorf("%s: %v\nin %.300s", what, err, value)
	}
}

func TestEachFleetLoadsAndRunsWhereDevPutsIt(t *testing.T) {
	for _, folder := range folders(t) {
		t.Run(folder, func(t *testing.T) {
			for _, o := range load(t, folder) {
				switch o := o.Object.(type) {
				case *fleet.Target:
					t.Errorf("target %s: with a target of its own the fleet does not get the local one", o.Name())
				case *fleet.Agent:
					checkProgram(t, o)
				}
			}
		})
	}
}

// checkProgram looks for what the agent is built from and started as.
func checkProgram(t *testing.T, a *fleet.Agent) {
	if len(a.Run.Build) == 0 {
		return
	}
	out, source := buildOf(t, a)
	if out != a.Run.Command[0] {
		t.Errorf("agent %s: build makes %s, command starts %s", a.Name(), out, a.Run.Command[0])
	}
	text, err := os.ReadFile(filepath.Join(a.Run.Dir, source, "main.go"))
	if err != nil || !bytes.Contains(text, []byte("\npackage main\n")) {
		t.Errorf("agent %s: no main in %s: %v", a.Name(), source, err)
	}
	if lines := bytes.Count(text, []byte("\n")); lines >= 80 {
		t.Errorf("agent %s: its main has %d lines; its logic belongs into a package", a.Name(), lines)
	}
}

func buildOf(t *testing.T, a *fleet.Agent) (out, source string) {
	b := a.Run.Build
	if len(b) != 5 || !slices.Equal(b[:3], []string{"go", "build", "-o"}) {
		t.Fatalf("agent %s: build %q; want go build -o FILE FOLDER", a.Name(), b)
	}
	return b[3], b[4]
}

func TestTheInvoiceFleetHasEachShapeOnce(t *testing.T) {
	shapes := make(map[fleet.Shape]string)
	for name, a := range agents(t, "invoices/fleet.yaml") {
		shapes[a.Shape] = name
	}
	want := map[fleet.Shape]string{
		fleet.Pool: "invoice-check", fleet.Job: "invoice-reconcile", fleet.Service: "concierge", fleet.Instance: "ledger",
	}
	if diff := cmp.Diff(want, shapes); diff != "" {
		t.Errorf("agents by shape (-want +got):\n%s", diff)
	}
}

// A book that the agent takes for small enough must be so for its session.
func TestALedgersSessionHoldsItsBook(t *testing.T) {
	if held := agents(t, "invoices")["ledger"].Session.MaxBytes; held != book.MaxBytes {
		t.Errorf("the session holds %d bytes, a book has up to %d", held, book.MaxBytes)
	}
}

func TestEachSampleFitsItsAgent(t *testing.T) {
	for _, folder := range folders(t) {
		t.Run(folder, func(t *testing.T) {
			declared := agents(t, folder)
			tenants := map[string]bool{"": true, fleet.DefaultTenant: true}
			for _, o := range load(t, folder) {
				tenants[o.Name()] = tenants[o.Name()] || o.Kind() == fleet.KindTenant
			}
			used := make(map[string]bool)
			for _, s := range readSamples(t, folder) {
				what := fmt.Sprintf("%s/runs.jsonl:%d", folder, s.line)
				a := declared[s.Agent]
				if a == nil {
					t.Errorf("%s: agent %q is not declared", what, s.Agent)
					continue
				}
				if !tenants[s.Tenant] {
					t.Errorf("%s: tenant %q is not declared", what, s.Tenant)
				}
				used[s.Agent] = true
				fits(t, what, a.Input, s.Input)
			}
			for _, o := range load(t, folder) {
				if w, ok := o.Object.(*fleet.Workflow); ok {
					for _, name := range calledBy(t, w) {
						used[name] = true // with what the workflow makes of its own input
					}
				}
			}
			for name := range declared {
				if !used[name] {
					t.Errorf("no sample for agent %s", name)
				}
			}
		})
	}
}

// calledBy are the agents that a workflow names, wherever it does.
func calledBy(t *testing.T, w *fleet.Workflow) (names []string) {
	t.Helper()
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	var spec any
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for key, value := range v {
				if name, ok := value.(string); ok && slices.Contains([]string{"agent", "critic", "compensate"}, key) {
					names = append(names, name)
				}
				walk(value)
			}
		}
	}
	walk(spec)
	return names
}

func TestEachInvoiceThatCanBeReadIsChecked(t *testing.T) {
	checked := make(map[string]bool)
	for _, s := range readSamples(t, "invoices") {
		var f invoice.File
		if s.Agent == "invoice-check" && json.Unmarshal(s.Input, &f) == nil {
			checked[f.Name] = true
		}
	}
	names, err := filepath.Glob("invoices/data/*.xml")
	if err != nil || len(names) == 0 {
		t.Fatalf("files %v, error %v", names, err)
	}
	for _, name := range names {
		if base := filepath.Base(name); checked[base] == (base == "not-an-invoice.xml") {
			t.Errorf("%s: in the sample: %t", base, checked[base])
		}
	}
}

// TestRequestsCarryTheDocumentsInData keeps what is sent along in a request
// from becoming another document than the one in data/.
func TestRequestsCarryTheDocumentsInData(t *testing.T) {
	names, err := filepath.Glob("invoices/requests/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("requests %v, error %v", names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var request struct {
			Question  string         `json:"question,omitempty"`
			Document  *invoice.File  `json:"document,omitempty"`
			Documents []invoice.File `json:"documents,omitempty"`
		}
		if err := json.Unmarshal(text, &request); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files := make([]*invoice.File, 0, len(request.Documents)+1)
		for i := range request.Documents {
			files = append(files, &request.Documents[i])
		}
		if request.Document != nil {
			files = append(files, request.Document)
		}
		for _, f := range files {
			document, err := os.ReadFile(filepath.Join("invoices/data", filepath.Base(f.Name)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			f.Text = string(document)
		}
		var want strings.Builder
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(request); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(name, []byte(want.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if want.String() != string(text) {
			t.Errorf("%s differs from what is in data/; run go test ./examples -update", name)
		}
	}
}
