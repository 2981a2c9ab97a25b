package patterns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice/journal"
)

// Human in the loop: what is paid back is computed, a person says yes to exactly that, and it is paid once.

type returned struct {
	Order string `json:"order"`
	IBAN  string `json:"iban"`
	Cents int    `json:"cents"` // that were paid
	Days  int    `json:"days"`  // since the goods came
	Used  bool   `json:"used"`
}

type payment struct {
	Order    string `json:"order"`
	IBAN     string `json:"iban"`
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
}

type quoted struct {
	Payment payment `json:"payment"`
	Why     string  `json:"why"`
}

// withdrawal is for how many days goods may be sent back for any reason.
const withdrawal = 14

func quoteRefund(_ context.Context, _ *agent.Run, in returned) (quoted, error) {
	switch {
	case in.Order == "" || in.IBAN == "":
		return quoted{}, invalid("order and iban: want both")
	case in.Cents <= 0 || in.Cents > 100_000_00 || in.Days < 0:
		return quoted{}, invalid("cents %d, days %d: want 1 to 10000000 cents, and no negative days", in.Cents, in.Days)
	}
	out := quoted{Payment: payment{in.Order, in.IBAN, in.Cents, "EUR"}, Why: fmt.Sprintf("back within %d days, unused", in.Days)}
	switch {
	case in.Days > withdrawal:
		out.Payment.Cents = in.Cents / 2
		out.Why = fmt.Sprintf("back after %d days, more than %d: half", in.Days, withdrawal)
	case in.Used:
		out.Payment.Cents = in.Cents - in.Cents/5
		out.Why = "used: four fifths"
	}
	return out, nil
}

type paid struct {
	Paid payment `json:"paid"`
	Key  string  `json:"key"` // under which the bank has it
}

// payRefund hands the payment to the bank, which is a file here that would take it twice: once is the receipt's doing.
func payRefund(ctx context.Context, r *agent.Run, in payment) (paid, error) {
	key, err := record(ctx, r, "refund:"+in.Order, "PAYMENTS_FILE", ".errand/payments.jsonl", in)
	return paid{in, key}, err
}

// record appends something to a file of the outside world, once, and returns the key that stands there.
func record(ctx context.Context, r *agent.Run, effect, variable, otherwise string, what any) (string, error) {
	file := journal.File(otherwise)
	if name := os.Getenv(variable); name != "" {
		file = journal.File(name)
	}
	return agent.Once(ctx, r, effect, agent.Effect[string]{
		Request: what,
		Do: func(_ context.Context, key string) (string, error) {
			err := file.Append(key, what)
			if errors.Is(err, journal.ErrNotWritten) {
				return "", agent.NotDone(err)
			}
			return key, err
		},
		Reconcile: func(_ context.Context, key string) (string, bool, error) {
			_, there, err := file.Find(key)
			return key, there, err
		},
		OnUnknown: agent.Reconcile,
		Timeout:   5 * time.Second, // more than appending a line takes: a successor waits so long for one that was cut short
	})
}
