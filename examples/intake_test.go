package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/clerk"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/invoice/intake"
	"github.com/errand-run/errand/shared/invoice/journal"
	"github.com/errand-run/errand/shared/outside"
)

// office is a server with the invoice-intake workflow, and the folder of its outside world.
func office(t *testing.T) *server {
	t.Helper()
	dir := stage(t, "invoices/intake.yaml")
	if err := os.MkdirAll(filepath.Join(dir, "examples"), 0o700); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("invoices")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(here, filepath.Join(dir, "examples", "invoices")); err != nil {
		t.Fatal(err)
	}
	return serve(t, dir)
}

// takeIn submits the shipped invoices as a person would, and returns the runs by file.
func (s *server) takeIn(key string) map[string]string {
	s.t.Helper()
	files, err := filepath.Glob("invoices/data/*.xml")
	if err != nil || len(files) != 9 {
		s.t.Fatalf("files %v, error %v", files, err)
	}
	args := []string{"run", "invoice-intake", "--key", key, "-o", "json", "--for-each"}
	for _, f := range files {
		args = append(args, "examples/"+f)
	}
	text, code := s.command(args...)
	if code != 0 {
		s.t.Fatalf("errand run: exit code %d: %s", code, text)
	}
	var runs []api.Run
	if err := json.Unmarshal([]byte(text), &runs); err != nil {
		s.t.Fatalf("errand run: %v in %s", err, text)
	}
	byFile := make(map[string]string)
	for _, r := range runs {
		byFile[filepath.Base(r.Key)] = r.ID
	}
	if len(byFile) != len(files) {
		s.t.Fatalf("runs %v", byFile)
	}
	return byFile
}

// What becomes of the shipped invoices.
var (
	toPay     = []string{"allowances-and-charges.xml", "credit-note.xml", "negative-total.xml", "plain-eur.xml", "reverse-charge.xml", "rounding-and-prepaid-sek.xml"}
	toDispute = []string{"broken-total.xml", "broken-vat.xml"}
)

const noInvoice = "not-an-invoice.xml"

func (s *server) allAtGates(runs map[string]string) bool {
	for _, file := range toPay {
		if !s.atGate(runs[file]) {
			return false
		}
	}
	return true
}

// posted are the invoices in the ledger, one for each line.
func (s *server) posted() (numbers []string) {
	s.t.Helper()
	entries, err := journal.File(filepath.Join(s.dir, ".errand/ledger.jsonl")).All()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		var p intake.Payment
		if err := json.Unmarshal(e.Entry, &p); err != nil {
			s.t.Fatal(err)
		}
		numbers = append(numbers, p.Invoice)
	}
	slices.Sort(numbers)
	return numbers
}

var allPosted = []string{"FK-2026-0017", "FK-2026-0021", "NB-2026-0101", "NB-2026-0102", "NB-2026-0103", "NB-2026-C011"}

// checkBooks looks at what the outside world has got: every invoice posted once, everybody told once.
func (s *server) checkBooks(runs map[string]string) {
	s.t.Helper()
	if diff := cmp.Diff(allPosted, s.posted()); diff != "" {
		s.t.Errorf("ledger (-want +got):\n%s", diff)
	}
	letters, err := journal.File(filepath.Join(s.dir, ".errand/outbox.jsonl")).All()
	if err != nil || len(letters) != len(toPay)+len(toDispute) {
		s.t.Errorf("%d letters, error %v; want one for each invoice", len(letters), err)
	}
	type output struct{ Verdict, Posted string }
	for _, file := range toPay {
		if out := outputOf[output](s.t, s.end(runs[file])); out.Verdict != intake.Pay || out.Posted == "" {
			s.t.Errorf("%s: %+v", file, out)
		}
	}
	for _, file := range toDispute {
		if out := outputOf[output](s.t, s.end(runs[file])); out.Verdict != intake.Dispute || out.Posted != "" {
			s.t.Errorf("%s: %+v", file, out)
		}
	}
	if bad := s.end(runs[noInvoice]); bad.State != "failed" || !strings.Contains(bad.Message, "DocumentInvalid") && !strings.Contains(bad.Message, "neither a UBL") {
		s.t.Errorf("%s: %s (%s): %s", noInvoice, bad.State, bad.Reason, bad.Message)
	}
}

// TestInvoicesWaitForAPersonAndArePostedOnce is the way of the shipped invoices to the gates, over a restart, and into
// the books; then the same folder again, of which everything is in already.
func TestInvoicesWaitForAPersonAndArePostedOnce(t *testing.T) {
	t.Parallel()
	s := office(t)
	runs := s.takeIn("march")
	outside.Eventually(s.t, outside.Patience, "everything waits that has to", func() bool { return s.allAtGates(runs) })
	s.Reboot()
	gates := s.gates()
	if len(gates) != len(toPay) {
		t.Fatalf("%d gates, want %d", len(gates), len(toPay))
	}
	// One is rejected, and free again; the others are approved.
	rejected := runs["plain-eur.xml"]
	if _, code := s.command("reject", gates[rejected], "--as", "ada", "--comment", "ask first"); code != 0 {
		t.Errorf("reject: exit code %d", code)
	}
	if run := s.end(rejected); run.State != "failed" || run.Reason != "Rejected" {
		t.Errorf("the rejected one: %s (%s): %s", run.State, run.Reason, run.Message)
	}
	if n := s.count(rejected, "invoice-unfile"); n != 1 {
		t.Errorf("the rejected one was unfiled %d times\n%s", n, drawn(s.tree(rejected), 0))
	}
	for _, file := range toPay {
		if id := runs[file]; id != rejected {
			if _, code := s.command("approve", gates[id], "--as", "ada"); code != 0 {
				t.Errorf("approve %s: exit code %d", file, code)
			}
			s.end(id)
		}
	}
	// The folder again: what is in is a duplicate, what was rejected is asked about anew.
	again := s.takeIn("april")
	for _, file := range toPay {
		if again[file] == again["plain-eur.xml"] {
			continue
		}
		out := outputOf[struct {
			Verdict string
			Reasons []string
		}](t, s.end(again[file]))
		if out.Verdict != intake.Duplicate || !strings.Contains(strings.Join(out.Reasons, ""), runs[file]) {
			t.Errorf("%s again: %+v; want a duplicate of %s", file, out, runs[file])
		}
	}
	outside.Eventually(s.t, outside.Patience, "the rejected one waits again", func() bool { return s.atGate(again["plain-eur.xml"]) })
	if _, code := s.command("approve", s.gates()[again["plain-eur.xml"]], "--as", "ada"); code != 0 {
		t.Errorf("approve: exit code %d", code)
	}
	s.end(again["plain-eur.xml"])
	if diff := cmp.Diff(allPosted, s.posted()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}

// TestAnIntakeThatIsKilledAtEachStageRepeatsNone stops the fleet before each stage in turn by pausing the stage's agent,
// kills the server there, and lets it go on to the next. What had ended before a kill stands afterwards as it stood.
func TestAnIntakeThatIsKilledAtEachStageRepeatsNone(t *testing.T) {
	t.Parallel()
	s := office(t)
	way := []string{
		"invoice-extract", "invoice-file", "line-check", "vendor-lookup", "order-lookup", "duplicate-lookup", "invoice-verdict",
		"ledger-post", "invoice-notify",
	}
	for _, name := range way {
		if err := s.PauseAgent(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	runs := s.takeIn("march")
	for i, name := range way {
		if name == "ledger-post" {
			// Between the verdict and the posting a person is waited for.
			outside.Eventually(s.t, outside.Patience, "everything waits that has to", func() bool { return s.allAtGates(runs) })
			before := s.ended(runs)
			s.Reboot()
			s.stands(before, runs)
			for _, id := range s.gates() {
				if _, code := s.command("approve", id, "--as", "ada"); code != 0 {
					t.Fatalf("approve: exit code %d", code)
				}
			}
		}
		// 1. Everything that can has come to this stage, and no further.
		outside.Eventually(s.t, outside.Patience, "the runs are at "+name, func() bool { return s.waitingAt(runs, name, way[i:]) })
		// 2. What has ended stays ended, and nothing of it is done again.
		before := s.ended(runs)
		s.Reboot()
		s.stands(before, runs)
		// 3. On to the next; where the outside world is touched, with another kill in the middle of it.
		if err := s.ResumeAgent(t.Context(), way[i]); err != nil {
			t.Fatal(err)
		}
		if file := map[string]string{"ledger-post": "ledger", "invoice-notify": "outbox"}[name]; file != "" {
			touched := journal.File(filepath.Join(s.dir, ".errand", file+".jsonl"))
			outside.Eventually(s.t, outside.Patience, "something is in the "+file, func() bool {
				all, err := touched.All()
				return err != nil || len(all) > 0
			})
			s.Reboot()
		}
	}
	for _, id := range runs {
		s.end(id)
	}
	s.checkBooks(runs)
	for file, id := range runs {
		counts := make(map[string]int)
		each(s.tree(id), func(r *api.Run) { counts[r.Name()]++ })
		for _, once := range []string{"invoice-extract", "invoice-file", "vendor-lookup", "invoice-verdict", "ledger-post", "invoice-notify"} {
			if counts[once] > 1 {
				t.Errorf("%s: %d runs of %s", file, counts[once], once)
			}
		}
	}
}

// waitingAt reports whether every run that can get there has a child of the agent that waits for a place, and everything
// that need not wait for the paused agents is over.
func (s *server) waitingAt(runs map[string]string, name string, paused []string) bool {
	there := 0
	for file, id := range runs {
		found, moving := false, false
		each(s.tree(id), func(r *api.Run) {
			switch {
			case r.ID == id || r.Workflow != "" || r.Terminal():
			case r.State != "queued" || !slices.Contains(paused, r.Agent):
				moving = true
			case r.Agent == name:
				found = true
			}
		})
		if moving {
			return false
		}
		if found {
			there++
			continue
		}
		needs := file != noInvoice || name == "invoice-extract"
		if name == "ledger-post" {
			needs = slices.Contains(toPay, file)
		}
		if needs {
			return false
		}
	}
	return there > 0
}

// ended are the runs that are over, with how often each was tried.
func (s *server) ended(runs map[string]string) map[string]string {
	ended := make(map[string]string)
	for _, id := range runs {
		each(s.tree(id), func(r *api.Run) {
			if r.Terminal() {
				ended[r.ID] = fmt.Sprintf("%s %s attempt %d at %v", r.Name(), r.State, r.Attempt, r.EndedAt)
			}
		})
	}
	return ended
}

func (s *server) stands(before map[string]string, runs map[string]string) {
	s.t.Helper()
	now := s.ended(runs)
	for id, want := range before {
		if now[id] != want {
			s.t.Errorf("run %s was %s before the kill and is %s after it", id, want, now[id])
		}
	}
}

func TestTheIntakeDeclaresWhatItsProgramIs(t *testing.T) {
	declared := make(map[string]bool)
	for _, o := range load(t, "invoices/intake.yaml") {
		if a, ok := o.Object.(*fleet.Agent); ok {
			declared[a.Name()] = true
			checkProgram(t, a)
		}
	}
	sameAgents(t, clerk.Agents(), declared)
	for name, read := range map[string]func(*os.File) (int, error){
		"vendors": func(f *os.File) (int, error) { all, err := intake.ReadMaster[intake.Vendor](f); return len(all), err },
		"orders":  func(f *os.File) (int, error) { all, err := intake.ReadMaster[intake.Order](f); return len(all), err },
	} {
		f, err := os.Open("invoices/master/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := read(f); err != nil || n == 0 {
			t.Errorf("%s: %d records, error %v", name, n, err)
		}
		f.Close()
	}
}
