package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/inputs"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// runFlags are what run is asked for.
type runFlags struct {
	input     string
	forEach   []string
	key       string
	priority  int
	labels    []string
	deadline  string
	notBefore string
	session   string
	usd       float64
	tokens    int64
	wait      waitFlags
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run AGENT|WORKFLOW",
		Short: "Submit runs of an agent or a workflow: one, or one for each file",
		Example: "  errand run greeter -i '{\"name\": \"Ada\"}' --wait\n" +
			"  errand run invoice-check --for-each inbox/*.xml --wait -o json\n" +
			"  errand run invoice-check --for-each inbox/*.xml --key 2026-01 # safe to repeat",
		Args: args(1, -1, "an agent or a workflow"),
		RunE: func(cmd *cobra.Command, words []string) error {
			// The shell turns --for-each *.xml into one flag value and further words.
			if len(words) > 1 && len(f.forEach) == 0 {
				return usagef("run: unexpected %q; want one agent or workflow, and files after --for-each", render.Clean(words[1]))
			}
			proto, err := a.submission(cmd, words[0], &f)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if len(f.forEach) > 0 {
				return a.runForEach(cmd.Context(), c, proto, append(f.forEach, words[1:]...), &f)
			}
			return a.runOne(cmd.Context(), c, proto, &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.input, "input", "i", "", "input: JSON, @FILE or - for standard input")
	flags.StringArrayVar(&f.forEach, "for-each", nil, "one run for each of these files: a JSON file is the input as it is, any other\n"+
		"becomes {name, contentType, text} or, where it is not text, base64")
	flags.StringVar(&f.key, "key", "", "submit once per key; with --for-each the key is KEY/FILENAME")
	flags.IntVar(&f.priority, "priority", 50, "0 to 100; more is sooner within the tenant")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE; may be repeated")
	flags.StringVar(&f.deadline, "deadline", "", "the run fails if it is not over by then: a time (RFC 3339) or how long from now (90m)")
	flags.StringVar(&f.notBefore, "not-before", "", "do not start before: a time (RFC 3339) or how long from now (90m)")
	flags.StringVar(&f.session, "session", "", "session whose turn this is, for agents of shape instance")
	flags.Float64Var(&f.usd, "budget-usd", 0, "ceiling in dollars")
	flags.Int64Var(&f.tokens, "budget-tokens", 0, "ceiling in tokens")
	f.wait.add(cmd)
	return cmd
}

// submission is what all runs of one command have in common.
func (a *app) submission(cmd *cobra.Command, agent string, f *runFlags) (api.Submit, error) {
	s := api.Submit{Agent: agent, Tenant: a.tenantName(), Key: f.key, Session: f.session}
	err := saysSomething(cmd, "key")
	if err != nil {
		return s, err
	}
	if cmd.Flags().Changed("priority") {
		if f.priority < 0 || f.priority > 100 {
			return s, usagef("--priority %d: want 0 to 100", f.priority)
		}
		s.Priority = &f.priority
	}
	if s.Labels, err = pairs("--label", f.labels); err != nil {
		return s, err
	}
	if s.Deadline, err = a.when("--deadline", f.deadline, 1); err != nil {
		return s, err
	}
	if s.NotBefore, err = a.when("--not-before", f.notBefore, 1); err != nil {
		return s, err
	}
	if f.usd < 0 || f.tokens < 0 {
		return s, usagef("--budget-usd, --budget-tokens: want 0 or more")
	}
	if f.usd > 0 || f.tokens > 0 {
		s.Budget = &api.Budget{USD: f.usd, Tokens: f.tokens}
	}
	if f.input != "" && len(f.forEach) > 0 {
		return s, usagef("-i and --for-each: the input comes from one of them")
	}
	s.Input, err = a.readValue("-i", f.input)
	return s, err
}

func (a *app) runOne(ctx context.Context, c *api.Client, s api.Submit, f *runFlags) error {
	r, existed, err := c.Submit(ctx, s)
	if isMissing(err) && a.isWorkflow(ctx, c, &s) {
		r, existed, err = c.Submit(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", s.Agent+s.Workflow, err)
	}
	if existed {
		a.say("key %q was used before: this is the earlier run", render.Clean(s.Key))
	}
	return a.settle(ctx, c, []api.Run{*r}, true, f.wait, nil)
}

// isMissing reports whether the server knows nothing of what was named.
func isMissing(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Code() == api.CodeNotFound
}

// isWorkflow makes a submission to what is no agent one to the workflow of that name, if there is one.
func (a *app) isWorkflow(ctx context.Context, c *api.Client, s *api.Submit) bool {
	if s.Agent == "" || s.Session != "" {
		return false
	}
	if _, err := c.Object(ctx, api.Workflows, s.Agent); err != nil {
		return false
	}
	s.Agent, s.Workflow = "", s.Agent
	return true
}

// Bounds of one batch, well below what the server takes.
const (
	batchRuns  = api.MaxBatch
	batchBytes = api.MaxBatchBody / 2
)

// runForEach submits a run for each file, batch by batch, and shows or awaits all of them.
func (a *app) runForEach(ctx context.Context, c *api.Client, proto api.Submit, words []string, f *runFlags) error {
	// 1. Which files, and that each has a key of its own.
	files, err := inputs.Expand(words)
	if err != nil {
		return &exitError{ExitUsage, err}
	}
	if proto.Key != "" {
		first := make(map[string]string)
		for _, file := range files {
			base := filepath.Base(file)
			if other, taken := first[base]; taken {
				return usagef("--key %s: %s and %s have the same name, and with it the same key %s/%s",
					proto.Key, other, file, proto.Key, base)
			}
			first[base] = file
		}
	}
	// 2. Submit them. A file that cannot be read stops the command before its batch is sent.
	runs := []api.Run{}
	var refused error
	existed := 0
	progress := render.NewProgress(a.err, "files submitted", a.now)
	for start := 0; start < len(files); {
		batch, err := nextBatch(proto, files[start:])
		if err != nil {
			return fmt.Errorf("run %s --for-each: %w", proto.Agent+proto.Workflow, err)
		}
		items, err := a.submitBatch(ctx, c, batch)
		if err != nil {
			return fmt.Errorf("run %s for %s and %d more files: %w", proto.Agent+proto.Workflow, files[start], len(batch)-1, err)
		}
		if start == 0 && items[0].Error != nil && isMissing(items[0].Error) && a.isWorkflow(ctx, c, &proto) {
			continue
		}
		for i, item := range items {
			switch {
			case item.Error != nil:
				err := fmt.Errorf("run %s for %s: %w", proto.Agent+proto.Workflow, files[start+i], item.Error)
				a.report(err)
				if refused == nil {
					refused = ended(exitCode(ctx, err))
				}
			case item.Run != nil:
				runs = append(runs, *item.Run)
				if item.Existed {
					existed++
				}
			}
		}
		start += len(batch)
		if start < len(files) {
			progress.Set(start, len(files), "")
		}
	}
	if existed > 0 {
		a.say("%d of %d keys were used before: these are the earlier runs", existed, len(files))
	}
	// 3. Await or show.
	return a.settle(ctx, c, runs, false, f.wait, refused)
}

// nextBatch makes submissions of the first files, as many as fit into one call.
func nextBatch(proto api.Submit, files []string) ([]api.Submit, error) {
	var batch []api.Submit
	size := 0
	for _, file := range files {
		input, err := inputs.FromFile(file)
		if err != nil {
			return nil, err
		}
		if size += len(input); len(batch) > 0 && size > batchBytes {
			break
		}
		s := proto
		s.Input = input
		if proto.Key != "" {
			s.Key = proto.Key + "/" + filepath.Base(file)
		}
		if batch = append(batch, s); len(batch) == batchRuns {
			break
		}
	}
	return batch, nil
}

// Bounds on asking again for runs that a busy server turned away. They were not created, so asking again is safe.
const (
	overloadRounds = 20
	overloadWait   = 30 * time.Second
)

// submitBatch submits, and comes back for those that the server turned away when it said to.
func (a *app) submitBatch(ctx context.Context, c *api.Client, batch []api.Submit) ([]api.BatchItem, error) {
	items, err := c.SubmitBatch(ctx, batch)
	if err != nil {
		return nil, err
	}
	for range overloadRounds {
		var again []int
		var wait time.Duration
		for i, item := range items {
			if item.Error != nil && item.Error.Code() == api.CodeOverloaded && item.Error.RetryAfter > 0 {
				again = append(again, i)
				wait = max(wait, time.Duration(item.Error.RetryAfter)*time.Second)
			}
		}
		if len(again) == 0 || wait > overloadWait {
			break
		}
		a.say("the server is busy: %d of %d runs are submitted again in %s", len(again), len(batch), render.Span(wait))
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		rest := make([]api.Submit, len(again))
		for i, at := range again {
			rest[i] = batch[at]
		}
		answers, err := c.SubmitBatch(ctx, rest)
		if err != nil {
			return nil, err
		}
		for i, at := range again {
			items[at] = answers[i]
		}
	}
	return items, nil
}

// settle ends a command that made runs: it shows them or, with --wait, awaits and then shows them. What went wrong
// before (refused) decides the exit code, then what became of the runs.
func (a *app) settle(ctx context.Context, c *api.Client, runs []api.Run, single bool, w waitFlags, refused error) error {
	if !w.wait || len(runs) == 0 {
		if err := a.showRuns(runs, single); err != nil {
			return err
		}
		return refused
	}
	waitCtx, cancel := within(ctx, w.timeout)
	defer cancel()
	waitErr := a.waitRuns(waitCtx, c, runs)
	if waitErr != nil && !errors.Is(waitErr, context.DeadlineExceeded) {
		return fmt.Errorf("wait for %d runs: %w", len(runs), waitErr)
	}
	if err := a.showSettled(runs, single); err != nil {
		return err
	}
	code := a.tellEnds(runs)
	switch {
	case refused != nil:
		return refused
	case waitErr != nil:
		a.say("errand: %d of %d runs were not over after %s; they go on", unfinished(runs), len(runs), w.timeout)
		return ended(ExitTimeout)
	}
	return ended(code)
}

// showSettled shows one run in full and several as a list.
func (a *app) showSettled(runs []api.Run, single bool) error {
	if single && len(runs) == 1 {
		return render.One(a.printer(), a.runView(), runs[0])
	}
	return render.List(a.printer(), a.runView(), runs)
}

// tellEnds tells what failed, and returns the exit code that the runs together ask for.
func (a *app) tellEnds(runs []api.Run) int {
	const most = 20
	failed, canceled := 0, 0
	for _, r := range runs {
		switch r.State {
		case "failed":
			if failed++; failed <= most {
				a.say("errand: run %s failed: %s", r.ID, render.Clean(reasonOf(r)))
			}
		case "canceled":
			canceled++
		}
	}
	if failed > most {
		a.say("errand: and %d more failed", failed-most)
	}
	switch {
	case failed > 0:
		return ExitRunFailed
	case canceled > 0:
		return ExitCanceled
	}
	return ExitOK
}

func reasonOf(r api.Run) string {
	if r.Message == "" {
		return r.Reason
	}
	return r.Reason + ": " + r.Message
}

func unfinished(runs []api.Run) int {
	n := 0
	for i := range runs {
		if !runs[i].Terminal() {
			n++
		}
	}
	return n
}
