package clerk

import (
	"context"
	"fmt"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice/intake"
)

// An entry of the register says which run has an invoice. Whoever comes first has it: the state is written only over the
// version that was read.
type entry struct {
	Run     string `json:"run"` // "" when nobody has it any more
	Invoice string `json:"invoice"`
}

// registerKey is where the register keeps an invoice, lookAlikeKey where it keeps what one vendor charges on one day.
func registerKey(e *intake.Extract) string  { return "register/" + e.Key() }
func lookAlikeKey(e *intake.Extract) string { return "register/like/" + e.LookAlike() }

type fileInput struct {
	Run     string         `json:"run"` // of the workflow
	Invoice intake.Extract `json:"invoice"`
}

// Filed says who has the invoice.
type Filed struct {
	Run  string `json:"run"`
	Like entry  `json:"like"` // the first of this vendor, day and amount
}

// file enters an invoice for a run, unless another one has it.
func file(ctx context.Context, r *agent.Run, in fileInput) (Filed, error) {
	if in.Run == "" {
		return Filed{}, agent.Fail(agent.CodeInputInvalid, fmt.Errorf("run: want the run that the invoice is filed for"))
	}
	mine := entry{in.Run, in.Invoice.ID}
	claim := func(old entry) (entry, error) {
		if old.Run != "" {
			return old, nil
		}
		return mine, nil
	}
	has, err := agent.UpdateState(ctx, r, registerKey(&in.Invoice), claim)
	if err != nil {
		return Filed{}, err
	}
	like, err := agent.UpdateState(ctx, r, lookAlikeKey(&in.Invoice), claim)
	return Filed{Run: has.Run, Like: like}, err
}

// unfile takes back what file did, when the run that has the invoice ends without success. Doing it twice does no harm.
func unfile(ctx context.Context, r *agent.Run, in struct {
	Input fileInput `json:"input"`
}) (Filed, error) {
	release := func(old entry) (entry, error) {
		if old.Run == in.Input.Run {
			return entry{}, nil
		}
		return old, nil
	}
	has, err := agent.UpdateState(ctx, r, registerKey(&in.Input.Invoice), release)
	if err != nil {
		return Filed{}, err
	}
	like, err := agent.UpdateState(ctx, r, lookAlikeKey(&in.Input.Invoice), release)
	return Filed{Run: has.Run, Like: like}, err
}

// lookUpDuplicate compares the run with the one that has the invoice.
func lookUpDuplicate(ctx context.Context, r *agent.Run, in fileInput) (intake.DuplicateReport, error) {
	out := intake.DuplicateReport{Findings: []string{}}
	has, _, err := agent.GetState[entry](ctx, r, registerKey(&in.Invoice))
	if err != nil {
		return out, err
	}
	if has.Run != "" && has.Run != in.Run {
		out.Of = has.Run
		return out, nil
	}
	like, _, err := agent.GetState[entry](ctx, r, lookAlikeKey(&in.Invoice))
	if err != nil {
		return out, err
	}
	if like.Run != "" && like.Run != in.Run {
		out.Findings = append(out.Findings, fmt.Sprintf("invoice %.60q of the same vendor, day and amount is in: run %s", like.Invoice, like.Run))
	}
	return out, nil
}
