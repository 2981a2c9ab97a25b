package patterns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Coordinator: the desk takes a customer's request apart, asks the specialists at the same time, and answers as one.

type request struct {
	Request string `json:"request"`
	Order   order  `json:"order"`
}

type order struct {
	ID       string  `json:"id"`
	Total    string  `json:"total"`
	Charges  int     `json:"charges"` // how often the total was charged
	Carrier  string  `json:"carrier"`
	Tracking string  `json:"tracking"`
	Days     int     `json:"days"` // since it was handed to the carrier
	Model    string  `json:"model"`
	Firmware float64 `json:"firmware"`
}

type question struct {
	Question string `json:"question"`
	Order    order  `json:"order"`
}

type answered struct {
	Answer string `json:"answer"`
	Action string `json:"action,omitempty"` // that the specialist proposes
}

type deskReply struct {
	Answer  string            `json:"answer"`
	Actions []string          `json:"actions"`
	Asked   map[string]string `json:"asked"`             // question by specialist
	Nobody  []string          `json:"nobody,omitempty"`  // questions for a specialist that there is not
	Without []string          `json:"without,omitempty"` // specialists who had no answer
}

type specialist struct{ agent, knows string }

// specialists are whom the desk may ask, and what they know.
var specialists = []specialist{
	{"desk-billing", "charges, invoices, refunds"},
	{"desk-shipping", "where a parcel is, when it comes"},
	{"desk-technical", "devices that do not work, firmware"},
}

// maxQuestions bounds what one request may set off.
const maxQuestions = 6

func deskRole() string {
	var b strings.Builder
	b.WriteString("You are the coordinator of a service desk. Take the customer's request apart into questions for these specialists:\n")
	for _, s := range specialists {
		fmt.Fprintf(&b, "%s: %s\n", s.agent, s.knows)
	}
	b.WriteString(`Answer with JSON alone: {"questions":[{"to":"NAME","question":"…"}]}`)
	return b.String()
}

// coordinate lets the model choose whom to ask, and code decide what of that is allowed.
func coordinate(ctx context.Context, r *agent.Run, in request) (deskReply, error) {
	out := deskReply{Actions: []string{}, Asked: map[string]string{}}
	// 1. Who is to be asked what.
	plan, err := askJSON[struct {
		Questions []struct{ To, Question string }
	}](ctx, r, "take apart", deskRole(), "Request: "+in.Request)
	if err != nil {
		return out, err
	}
	var calls []agent.Request
	var asked []string
	for _, q := range plan.Questions {
		switch {
		case len(calls) == maxQuestions:
			return out, agent.Fail(CodeAnswerUnusable, fmt.Errorf("the model asks more than %d questions", maxQuestions))
		case !isSpecialist(q.To) || out.Asked[q.To] != "":
			out.Nobody = append(out.Nobody, q.Question)
		default:
			out.Asked[q.To] = q.Question
			asked = append(asked, q.To)
			calls = append(calls, agent.To(q.To, question{q.Question, in.Order}))
		}
	}
	if len(calls) == 0 {
		return out, agent.Fail("NobodyAsked", fmt.Errorf("none of the %d questions is for a specialist", len(plan.Questions)))
	}
	// 2. All of them at the same time. One who fails leaves a gap, not a failure.
	results, err := agent.Parallel[answered](ctx, r, calls, agent.Tolerate(float64(len(calls)-1)))
	if err != nil {
		return out, err
	}
	// 3. One answer.
	var answers []string
	for i, result := range results {
		if result.Err != nil {
			out.Without = append(out.Without, asked[i])
			continue
		}
		answers = append(answers, result.Value.Answer)
		if result.Value.Action != "" {
			out.Actions = append(out.Actions, result.Value.Action)
		}
	}
	out.Answer = strings.Join(answers, " ")
	return out, nil
}

func isSpecialist(name string) bool {
	return slices.ContainsFunc(specialists, func(s specialist) bool { return s.agent == name })
}

func answerBilling(_ context.Context, _ *agent.Run, in question) (answered, error) {
	switch o := in.Order; {
	case o.Charges > 1:
		return answered{
			Answer: fmt.Sprintf("Your order %s over %s was charged %d times; what is too much goes back to you.", o.ID, o.Total, o.Charges),
			Action: fmt.Sprintf("refund %d × %s of order %s", o.Charges-1, o.Total, o.ID),
		}, nil
	case o.Charges == 1:
		return answered{Answer: fmt.Sprintf("Your order %s was charged once, %s.", o.ID, o.Total)}, nil
	}
	return answered{Answer: fmt.Sprintf("Your order %s was not charged yet.", in.Order.ID)}, nil
}

// usualDelivery is after how many days a parcel is looked for.
const usualDelivery = 5

func answerShipping(_ context.Context, _ *agent.Run, in question) (answered, error) {
	o := in.Order
	if o.Tracking == "" {
		return answered{Answer: "Your parcel has not left our house."}, nil
	}
	out := answered{Answer: fmt.Sprintf("%s has had your parcel %s for %d days.", o.Carrier, o.Tracking, o.Days)}
	if o.Days > usualDelivery {
		out.Answer += " That is too long; we have it looked for."
		out.Action = "have " + o.Carrier + " look for " + o.Tracking
	}
	return out, nil
}

// fixedIn is the first firmware of each model that starts when it is cold.
var fixedIn = map[string]float64{"lamp-2": 1.4, "kettle-5": 2.1}

func answerTechnical(_ context.Context, _ *agent.Run, in question) (answered, error) {
	fixed, known := fixedIn[in.Order.Model]
	switch {
	case !known:
		return answered{}, agent.Fail("ModelUnknown", fmt.Errorf("model %q is not one of ours", cut(in.Order.Model, 40)))
	case in.Order.Firmware < fixed:
		return answered{
			Answer: fmt.Sprintf("Your %s does not start with firmware %.1f when it is cold; %.1f mends that.", in.Order.Model, in.Order.Firmware, fixed),
			Action: fmt.Sprintf("send firmware %.1f for %s", fixed, in.Order.Model),
		}, nil
	}
	return answered{Answer: fmt.Sprintf("Your %s is up to date; please send it in.", in.Order.Model), Action: "send a return label"}, nil
}
