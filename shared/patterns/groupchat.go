package patterns

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Group chat: a chair lets sales, production and finance speak to one another until all agree to one offer.

// maxTurns ends a talk without an end.
const maxTurns = 12

type inquiry struct {
	Quantity int     `json:"quantity"`
	WishDays int     `json:"wishDays"` // when the customer wants it
	WishUnit float64 `json:"wishUnit"` // what the customer wants to pay for one
	MostDays int     `json:"mostDays"` // later than this the customer leaves
	MostUnit float64 `json:"mostUnit"` // and above this
	PerDay   int     `json:"perDay"`   // production's capacity
	UnitCost float64 `json:"unitCost"` // of one
	Margin   float64 `json:"margin"`   // finance's least, as a part of the price
	RushDays int     `json:"rushDays"` // earlier than this costs RushCost more for one
	RushCost float64 `json:"rushCost"` // for one
}

type offer struct {
	Days int     `json:"days"`
	Unit float64 `json:"unit"`
}

type spoken struct {
	Speaker string `json:"speaker"`
	Text    string `json:"text"`
	Offer   offer  `json:"offer"` // as it stands after this
	Agrees  bool   `json:"agrees"`
}

type turn struct {
	Inquiry inquiry  `json:"inquiry"`
	Offer   offer    `json:"offer"`
	Said    []spoken `json:"said"` // so far
}

type agreement struct {
	Offer offer    `json:"offer"`
	Turns int      `json:"turns"`
	Said  []spoken `json:"said"`
}

var participants = []string{"chat-sales", "chat-production", "chat-finance"}

const chairRole = `You chair a talk of chat-sales, chat-production and chat-finance about an offer. You are told who has agreed to the offer ` +
	`as it stands ("Agreed:") and who has not ("Open:"), in order of when they last spoke. Answer with the name of who speaks next, one of the open ones, alone.`

// chair keeps the transcript, asks the model who speaks next, and ends the talk.
func chair(ctx context.Context, r *agent.Run, in inquiry) (agreement, error) {
	if in.Quantity < 1 || in.PerDay < 1 || in.Margin < 0 || in.Margin >= 1 {
		return agreement{}, invalid("want quantity and perDay of at least 1 and a margin from 0 to below 1")
	}
	talk := agreement{Offer: offer{in.WishDays, in.WishUnit}}
	agreed := make(map[string]bool)
	open := slices.Clone(participants)
	for len(open) > 0 {
		if talk.Turns == maxTurns {
			return talk, agent.Fail("NoConsensus", fmt.Errorf("after %d turns %s do not agree to %d days at %.2f", talk.Turns, strings.Join(open, " and "), talk.Offer.Days, talk.Offer.Unit))
		}
		talk.Turns++
		// 1. Who speaks.
		speaker, err := ask(ctx, r, fmt.Sprintf("turn %d", talk.Turns), chairRole, roll(agreed, open))
		if err != nil {
			return talk, err
		}
		if speaker = strings.TrimSpace(speaker); !slices.Contains(open, speaker) {
			speaker = open[0] // a chair that names nobody lets the next in line speak
		}
		// 2. Everybody hears everything.
		said, err := agent.Call[spoken](ctx, r, speaker, turn{in, talk.Offer, talk.Said})
		if err != nil {
			return talk, err
		}
		// 3. Another offer is open to all again.
		said.Speaker = speaker
		if said.Offer != talk.Offer {
			agreed = make(map[string]bool)
			talk.Offer = said.Offer
		}
		agreed[speaker] = said.Agrees
		talk.Said = append(talk.Said, said)
		open = stillOpen(agreed, talk.Said)
		r.Progress(float64(len(participants)-len(open))/float64(len(participants)), said.Text)
	}
	return talk, nil
}

func roll(agreed map[string]bool, open []string) string {
	var yes []string
	for _, p := range participants {
		if agreed[p] {
			yes = append(yes, p)
		}
	}
	return "Agreed: " + strings.Join(yes, ", ") + "\nOpen: " + strings.Join(open, ", ")
}

// stillOpen are those who have not agreed, who was silent longest first.
func stillOpen(agreed map[string]bool, said []spoken) (open []string) {
	last := make(map[string]int)
	for i, s := range said {
		last[s.Speaker] = i + 1
	}
	for at := 0; at <= len(said); at++ {
		for _, p := range participants {
			if last[p] == at && !agreed[p] {
				open = append(open, p)
			}
		}
	}
	return open
}

func speakForSales(_ context.Context, _ *agent.Run, in turn) (spoken, error) {
	q, o := in.Inquiry, in.Offer
	if o.Days <= q.MostDays && o.Unit <= q.MostUnit {
		return spoken{Text: fmt.Sprintf("The customer takes it in %d days at %.2f.", o.Days, o.Unit), Offer: o, Agrees: true}, nil
	}
	next := offer{min(o.Days, q.MostDays), math.Min(o.Unit, q.MostUnit)}
	return spoken{Text: fmt.Sprintf("The customer leaves beyond %d days or %.2f.", q.MostDays, q.MostUnit), Offer: next, Agrees: true}, nil
}

func speakForProduction(_ context.Context, _ *agent.Run, in turn) (spoken, error) {
	q, o := in.Inquiry, in.Offer
	need := (q.Quantity + q.PerDay - 1) / q.PerDay
	if o.Days >= need {
		return spoken{Text: fmt.Sprintf("%d pieces take %d days; %d are enough.", q.Quantity, need, o.Days), Offer: o, Agrees: true}, nil
	}
	return spoken{Text: fmt.Sprintf("%d pieces take %d days, %d are too few.", q.Quantity, need, o.Days), Offer: offer{need, o.Unit}, Agrees: true}, nil
}

func speakForFinance(_ context.Context, _ *agent.Run, in turn) (spoken, error) {
	q, o := in.Inquiry, in.Offer
	cost := q.UnitCost
	if o.Days < q.RushDays {
		cost += q.RushCost
	}
	least := math.Ceil(cost/(1-q.Margin)*100) / 100
	if o.Unit >= least {
		return spoken{Text: fmt.Sprintf("At %.2f we keep our margin; %.2f is the least.", o.Unit, least), Offer: o, Agrees: true}, nil
	}
	return spoken{Text: fmt.Sprintf("%.2f is below %.2f, which is the least in %d days.", o.Unit, least, o.Days), Offer: offer{o.Days, least}, Agrees: true}, nil
}
