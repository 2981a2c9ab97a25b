package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of runs that call runs.

// grove says how many generations follow, and whom the run calls: two of them in each generation.
type grove struct {
	Below int    `json:"below"`
	Agent string `json:"agent"`
}

func init() {
	programs["grower"] = func() { agent.Main(grow) }
	programs["sprout"] = sprout
}

// grow counts the runs below and itself. The last generation waits for the gate.
func grow(ctx context.Context, r *agent.Run, in grove) (int, error) {
	if in.Below == 0 {
		note("leaves", r.ID)
		return 1, awaitGate(ctx, "grown")
	}
	next := grove{Below: in.Below - 1, Agent: in.Agent}
	out, err := agent.Parallel[int](ctx, r, []agent.Request{agent.To(in.Agent, next), agent.To(in.Agent, next)})
	if err != nil {
		return 0, err
	}
	last, err := agent.Call[int](ctx, r, in.Agent, grove{Agent: in.Agent})
	return 1 + out[0].Value + out[1].Value + last, err
}

func awaitGate(ctx context.Context, name string) error {
	for {
		if _, err := os.Stat(filepath.Join(os.Getenv(envDir), name)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sprout is grow as a program that knows nothing of the SDK: a document in, a line out.
func sprout() {
	var d struct {
		Run   string
		Input grove
		Steps []struct {
			Name   string
			Result struct {
				Children []struct{ Output int }
			}
		}
	}
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sum := 1
	for _, s := range d.Steps {
		for _, c := range s.Result.Children {
			sum += c.Output
		}
	}
	call := func(step string, below, n int) {
		one := fmt.Sprintf(`{"agent":%q,"input":{"below":%d,"agent":%q}}`, d.Input.Agent, below, d.Input.Agent)
		fmt.Printf(`{"park":{"on":"children","step":%q,"children":[%s]}}`+"\n", step, strings.TrimSuffix(strings.Repeat(one+",", n), ","))
	}
	switch {
	case d.Input.Below == 0:
		note("leaves", d.Run)
		if awaitGate(context.Background(), "grown") != nil {
			os.Exit(1)
		}
		fmt.Println(1)
	case len(d.Steps) == 0:
		call("two", d.Input.Below-1, 2)
	case len(d.Steps) == 1:
		call("last", 0, 1)
	default:
		fmt.Println(sum)
	}
}

// F28, F43: three generations through a limit of two, with the server killed in the middle.
func TestNestedRunsSurviveTheServer(t *testing.T) {
	t.Parallel()
	const limited = `
	shape: pool
	concurrency: {max: 2}
	retry: {maxAttempts: 4, backoff: {initial: 10ms, max: 10ms}}
	permissions: {call: [grower]}`
	for name, c := range map[string]struct{ program, protocol string }{
		"by the SDK in a worker":     {"grower", "worker"},
		"by the SDK in a program":    {"grower", "stdio"},
		"by a program of any origin": {"sprout", "stdio"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := newServerAt(p, p.agent("grower", c.program, c.protocol, limited))
			root := s.submit("grower", `{"below": 2, "agent": "grower"}`)
			outside.Eventually(t, outside.Patience, "two leaves are executed", func() bool { return len(s.notes("leaves")) >= 2 })
			s.Reboot()
			outside.Eventually(t, outside.Patience, "leaves are executed again", func() bool { return len(s.notes("leaves")) >= 4 })
			p.open("grown")
			s.Reboot()
			r := s.ends(root.ID)
			// A run of two generations has two subtrees of 1+2+1 runs, and one more leaf.
			if r.State != "succeeded" || output[int](t, r) != 10 {
				t.Fatalf("run is %s (%s: %s) with %s", r.State, r.Reason, r.Message, r.Output)
			}
			var all []api.Run
			for run, err := range s.Runs(t.Context(), api.RunFilter{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, run)
			}
			if len(all) != 10 {
				t.Errorf("%d runs, want 10", len(all))
			}
			for _, r := range all {
				if r.State != "succeeded" {
					t.Errorf("run %s of step %q is %s", r.ID, r.Stage, r.State)
				}
			}
			if tree, _, code := s.errand("tree", root.ID); code != 0 || strings.Count(tree, "\n") < 10 {
				t.Errorf("tree, code %d:\n%s", code, tree)
			}
			s.idle()
		})
	}
}
