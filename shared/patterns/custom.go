package patterns

import (
	"context"
	"fmt"

	"github.com/errand-run/errand/shared/agent"
)

// Custom: an order is fulfilled by plain code that calls, waits, asks and decides as the case needs it.

// Bounds of an order.
const (
	maxLines    = 200
	maxCarriers = 10
)

type goods struct {
	ID       string         `json:"id"`
	Lines    []goodsLine    `json:"lines"`
	Stock    map[string]int `json:"stock"`
	Grams    int            `json:"grams"` // of one piece
	Carriers []string       `json:"carriers"`
	// AskAbove is the price of a delivery in cents above which a person has to agree.
	AskAbove int `json:"askAbove"`
}

type goodsLine struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

type parcel struct {
	Carrier string `json:"carrier"`
	Grams   int    `json:"grams"`
}

type offered struct {
	Carrier string `json:"carrier"`
	Cents   int    `json:"cents"`
	Days    int    `json:"days"`
}

type fulfilled struct {
	Sent      []goodsLine `json:"sent"`
	Supplied  []goodsLine `json:"supplied"` // ordered from the supplier
	Delivery  *offered    `json:"delivery,omitempty"`
	Quotes    []offered   `json:"quotes"`
	NoQuote   []string    `json:"noQuote"` // carriers that made none
	Booking   string      `json:"booking,omitempty"`
	Asked     bool        `json:"asked"`
	Supplier  string      `json:"supplier,omitempty"` // the supplier's number
	Cancelled string      `json:"cancelled,omitempty"`
}

func fulfil(ctx context.Context, r *agent.Run, in goods) (fulfilled, error) {
	out := fulfilled{Sent: []goodsLine{}, Supplied: []goodsLine{}, Quotes: []offered{}, NoQuote: []string{}}
	if len(in.Lines) == 0 || len(in.Lines) > maxLines || len(in.Carriers) == 0 || len(in.Carriers) > maxCarriers {
		return out, invalid("lines and carriers: want 1 to %d and 1 to %d, got %d and %d", maxLines, maxCarriers, len(in.Lines), len(in.Carriers))
	}
	// 1. What there is, and what has to be ordered.
	grams := split(in, &out)
	if len(out.Supplied) > 0 {
		number, err := agent.Call[string](ctx, r, "order-supply", map[string]any{"id": in.ID, "lines": out.Supplied})
		if err != nil {
			return out, err
		}
		out.Supplier = number
	}
	if len(out.Sent) == 0 {
		return out, nil
	}
	// 2. All carriers at the same time; those that make no quote are done without, as long as one does.
	var calls []agent.Request
	for _, c := range in.Carriers {
		calls = append(calls, agent.To("carrier-quote", parcel{c, grams}))
	}
	results, err := agent.Parallel[offered](ctx, r, calls, agent.Tolerate(float64(len(calls)-1)))
	if err != nil {
		return out, err
	}
	for i, result := range results {
		if result.Err != nil {
			out.NoQuote = append(out.NoQuote, in.Carriers[i])
			continue
		}
		out.Quotes = append(out.Quotes, result.Value)
		if best := out.Delivery; best == nil || result.Value.Cents < best.Cents {
			out.Delivery = &result.Value
		}
	}
	// 3. Only what is dear needs a person.
	if out.Delivery.Cents > in.AskAbove {
		out.Asked = true
		yes, err := agent.Ask(ctx, r, agent.Question{
			Title:  fmt.Sprintf("Send order %s with %s for %d cents?", in.ID, out.Delivery.Carrier, out.Delivery.Cents),
			Action: out.Delivery,
		})
		if err != nil {
			return out, err
		}
		if !yes {
			out.Cancelled = "the delivery is too dear"
			return out, nil
		}
	}
	// 4. Booked once, whatever happens to this process.
	out.Booking, err = record(ctx, r, "carrier:"+in.ID, "BOOKINGS_FILE", ".errand/bookings.jsonl", out.Delivery)
	return out, err
}

// split fills in what is sent and what is supplied, and returns the weight of the former.
func split(in goods, out *fulfilled) (grams int) {
	left := make(map[string]int, len(in.Stock))
	for sku, n := range in.Stock {
		left[sku] = n
	}
	for _, line := range in.Lines {
		there := min(line.Quantity, max(left[line.SKU], 0))
		left[line.SKU] -= there
		if there > 0 {
			out.Sent = append(out.Sent, goodsLine{line.SKU, there})
			grams += there * in.Grams
		}
		if missing := line.Quantity - there; missing > 0 {
			out.Supplied = append(out.Supplied, goodsLine{line.SKU, missing})
		}
	}
	return grams
}

// carriers are what they charge: a base, and so much for each started kilogram up to what they carry.
var carriers = map[string]struct{ base, each, most, days int }{
	"van":  {390, 60, 30_000, 2},
	"bike": {250, 200, 5_000, 1},
	"rail": {900, 15, 500_000, 4},
}

func quoteCarrier(_ context.Context, _ *agent.Run, in parcel) (offered, error) {
	c, known := carriers[in.Carrier]
	switch {
	case !known:
		return offered{}, agent.Fail("CarrierUnknown", fmt.Errorf("carrier %q", cut(in.Carrier, 40)))
	case in.Grams > c.most:
		return offered{}, agent.Fail("TooHeavy", fmt.Errorf("%s carries up to %d g, not %d", in.Carrier, c.most, in.Grams))
	}
	return offered{in.Carrier, c.base + c.each*((in.Grams+999)/1000), c.days}, nil
}

type supplyOrder struct {
	ID    string      `json:"id"`
	Lines []goodsLine `json:"lines"`
}

// supply orders what is missing, once.
func supply(ctx context.Context, r *agent.Run, in supplyOrder) (string, error) {
	return record(ctx, r, "supplier:"+in.ID, "SUPPLIER_FILE", ".errand/supplier.jsonl", in)
}
