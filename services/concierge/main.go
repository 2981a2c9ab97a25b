// Concierge is the service of the worked example: it is asked about an invoice
// and answers at once, keeping nothing from one request to the next.
package main

import (
	"context"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/desk"
)

func main() { agent.Main(answer) }

type request struct {
	Question string        `json:"question"`
	Document *invoice.File `json:"document"` // what it is about; without it the answer asks for it
}

func answer(_ context.Context, _ *agent.Run, in request) (desk.Reply, error) {
	var document *invoice.Document
	if in.Document != nil {
		var err error
		if document, err = in.Document.Read(); err != nil {
			return desk.Reply{}, agent.Fail("DocumentInvalid", err)
		}
	}
	reply, err := desk.Answer(in.Question, document)
	if err != nil {
		return desk.Reply{}, agent.Fail("QuestionInvalid", err)
	}
	return reply, nil
}
