// Package clerk makes agents of what package intake knows: those of the invoice-intake workflow. Which invoices are in is
// kept in the fleet's shared state; what is posted and who is written to goes into files, which stand for the outside
// world and would take everything twice.
package clerk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/intake"
	"github.com/errand-run/errand/shared/invoice/journal"
)

// Environment variables, and what stands for them.
const (
	EnvVendors = "VENDORS_FILE" // master data; nobody is known without it
	EnvOrders  = "ORDERS_FILE"
	EnvLedger  = "LEDGER_FILE" // what is posted, .errand/ledger.jsonl when empty
	EnvOutbox  = "OUTBOX_FILE" // who is written to, .errand/outbox.jsonl when empty

	defaultLedger = ".errand/ledger.jsonl"
	defaultOutbox = ".errand/outbox.jsonl"
)

// appendTime is more than appending a line takes. A successor of an attempt that was cut short in it waits so long.
const appendTime = 5 * time.Second

// Codes of what does not get better when it is tried again.
const (
	CodeDocument = "DocumentInvalid"
	CodeLine     = "LineInvalid"
	CodeMaster   = "MasterInvalid"
)

// Agents are what services/clerk is, by name.
func Agents() map[string]agent.Agent {
	return map[string]agent.Agent{
		"invoice-extract":  agent.Of(extract),
		"invoice-file":     agent.Of(file),
		"invoice-unfile":   agent.Of(unfile),
		"line-check":       agent.Of(checkLine),
		"vendor-lookup":    agent.Of(lookUpVendor),
		"order-lookup":     agent.Of(lookUpOrder),
		"duplicate-lookup": agent.Of(lookUpDuplicate),
		"invoice-verdict":  agent.Of(judge),
		"ledger-post":      agent.Of(post),
		"invoice-notify":   agent.Of(notify),
	}
}

func extract(_ context.Context, _ *agent.Run, in invoice.File) (intake.Extract, error) {
	d, err := in.Read()
	if err != nil {
		return intake.Extract{}, agent.Fail(CodeDocument, err)
	}
	e, err := intake.FromDocument(d)
	if err != nil {
		return e, agent.Fail(CodeDocument, err)
	}
	return e, nil
}

func checkLine(_ context.Context, _ *agent.Run, in intake.Line) (intake.LineReport, error) {
	report, err := intake.CheckLine(in)
	if err != nil {
		return report, agent.Fail(CodeLine, fmt.Errorf("line %d: %w", in.Number, err))
	}
	return report, nil
}

func lookUpVendor(_ context.Context, _ *agent.Run, in intake.Extract) (intake.VendorReport, error) {
	vendors, err := master[intake.Vendor](EnvVendors)
	if err != nil {
		return intake.VendorReport{}, err
	}
	return intake.MatchVendor(vendors, &in), nil
}

func lookUpOrder(_ context.Context, _ *agent.Run, in intake.Extract) (intake.OrderReport, error) {
	vendors, err := master[intake.Vendor](EnvVendors)
	if err != nil {
		return intake.OrderReport{}, err
	}
	orders, err := master[intake.Order](EnvOrders)
	if err != nil {
		return intake.OrderReport{}, err
	}
	return intake.MatchOrder(orders, vendors, &in), nil
}

// master reads a file of master data as it is now: it may change while the agent runs.
func master[T intake.Vendor | intake.Order](variable string) ([]T, error) {
	name := os.Getenv(variable)
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, agent.Fail(CodeMaster, fmt.Errorf("%s: %w", variable, err))
	}
	defer f.Close()
	all, err := intake.ReadMaster[T](f)
	if err != nil {
		return nil, agent.Fail(CodeMaster, fmt.Errorf("%s=%s: %w", variable, name, err))
	}
	return all, nil
}

type verdictInput struct {
	Invoice intake.Extract `json:"invoice"`
	Checks  intake.Checks  `json:"checks"`
}

func judge(_ context.Context, _ *agent.Run, in verdictInput) (intake.Verdict, error) {
	return intake.Judge(&in.Invoice, in.Checks), nil
}

// Receipt says under which key something stands outside.
type Receipt struct {
	Key string `json:"key"`
}

// post enters a payment into the ledger, once.
func post(ctx context.Context, r *agent.Run, in intake.Payment) (Receipt, error) {
	return appendOnce(ctx, r, "ledger:"+in.Invoice, place(EnvLedger, defaultLedger), in)
}

// notify writes a letter, once.
func notify(ctx context.Context, r *agent.Run, in intake.Verdict) (Receipt, error) {
	return appendOnce(ctx, r, "letter:"+in.Payment.Invoice, place(EnvOutbox, defaultOutbox), intake.Write(in))
}

func place(variable, otherwise string) journal.File {
	if name := os.Getenv(variable); name != "" {
		return journal.File(name)
	}
	return journal.File(otherwise)
}

// appendOnce appends to a file of the outside world. Whether a call that was cut short got there, the file itself says.
func appendOnce(ctx context.Context, r *agent.Run, effect string, f journal.File, entry any) (Receipt, error) {
	return agent.Once(ctx, r, effect, agent.Effect[Receipt]{
		Request: entry,
		Do: func(_ context.Context, key string) (Receipt, error) {
			err := f.Append(key, entry)
			if errors.Is(err, journal.ErrNotWritten) {
				return Receipt{}, agent.NotDone(err)
			}
			return Receipt{key}, err
		},
		Reconcile: func(_ context.Context, key string) (Receipt, bool, error) {
			_, there, err := f.Find(key)
			return Receipt{key}, there, err
		},
		OnUnknown: agent.Reconcile,
		Timeout:   appendTime,
	})
}
