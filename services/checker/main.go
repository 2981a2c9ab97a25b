// Checker is the agent invoice-check of the worked example: a pool of workers
// that check the arithmetic of invoices.
package main

import (
	"context"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice"
)

func main() { agent.Main(check) }

// check reports on one document. Wrong arithmetic is a result; what is no
// invoice ends the run, for it would be none on the next attempt either.
func check(_ context.Context, r *agent.Run, file invoice.File) (invoice.Report, error) {
	document, err := file.Read()
	if err != nil {
		return invoice.Report{}, agent.Fail("DocumentInvalid", err)
	}
	report := invoice.Check(document)
	if report.Omitted > 0 {
		r.Log().Warn("violations were left out of the report", "omitted", report.Omitted)
	}
	return report, nil
}
