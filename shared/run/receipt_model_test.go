package run

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// caller is one call of an attempt, as the world sees it.
type caller struct {
	run     string
	attempt int
	nonce   string

	known  bool // it was told to proceed
	acting bool
	until  Instant // acting no longer than this
	died   Instant // 0 while alive
	sent   bool    // its request left; it lands within the settling time, or is lost
	told   bool    // it knows how its request ended and has not reported yet
	word   bool    // it reported how it ended
	closed bool    // it asks and reports no more
	evid   string  // what its hook found: happened, didNotHappen
}

// flight is a request on its way.
type flight struct {
	lands Instant
	from  *caller
}

// world is the outside system and everything that can happen around one receipt.
type world struct {
	t       *rapid.T
	policy  UnknownPolicy
	settle  time.Duration
	now     Instant
	stored  *Receipt
	run     int
	attempt int
	calls   []*caller
	flights []flight
	landed  int
	died    map[string]Instant // true death of each attempt
}

func (w *world) key(run string, attempt int) string { return fmt.Sprintf("%s/%d", run, attempt) }

// effective is until when anything of a call can still land.
func (w *world) effective(c *caller) Instant {
	return Earliest(c.until, c.died).Add(w.settle)
}

func (w *world) store(next *Receipt) {
	if next == nil {
		return
	}
	if w.stored != nil && next.Version != w.stored.Version+1 || w.stored == nil && next.Version != 1 {
		w.t.Fatalf("version %d follows %+v", next.Version, w.stored)
	}
	body, err := EncodeReceipt(next)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.stored, err = DecodeReceipt(body); err != nil {
		w.t.Fatal(err)
	}
}

// holds is the store's fence: only the live attempt's reports arrive.
func (w *world) holds(c *caller) bool {
	return c.run == fmt.Sprint("r", w.run) && c.attempt == w.attempt && w.died[w.key(c.run, c.attempt)] == 0
}

func (w *world) pick(label string, ok func(*caller) bool) *caller {
	var fit []*caller
	for _, c := range w.calls {
		if c.died == 0 && ok(c) {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return rapid.SampledFrom(fit).Draw(w.t, label)
}

func (w *world) begin(t *rapid.T) {
	c := w.pick("call", func(c *caller) bool { return !c.known && !c.closed && c.evid != "happened" && w.holds(c) })
	if c == nil {
		return
	}
	q := BeginRequest{
		Tenant: "t", Unit: "u", Effect: "e", Run: c.run, Attempt: c.attempt, Nonce: c.nonce, Hash: "h",
		Policy: w.policy, Now: w.now, Settle: w.settle, DidNotHappen: c.evid == "didNotHappen",
		Until: w.now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "seconds")) * time.Second),
	}
	if w.stored != nil && rapid.Bool().Draw(t, "deathKnown") {
		q.OwnerEnded = w.died[w.key(w.stored.Run, w.stored.Attempt)]
	}
	wasDone := w.stored != nil && w.stored.State == ReceiptDone
	next, answer := BeginReceipt(w.stored, q)
	w.store(next)
	if answer.Begin == BeginProceed {
		if wasDone {
			t.Fatal("told to perform what is done")
		}
		for _, other := range w.calls {
			if other != c && other.until != 0 && !other.word && w.now < w.effective(other) {
				t.Fatalf("call %s/%s proceeds at %d while %s/%s may act until %d", c.run, c.nonce, w.now, other.run, other.nonce, w.effective(other))
			}
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "replyLost") == 0 {
		if answer.Begin == BeginProceed { // the receipt says that it may act, the call does not know
			c.until = answer.Until
		}
		return
	}
	switch answer.Begin {
	case BeginProceed:
		c.known, c.acting, c.until, c.evid = true, true, answer.Until, ""
	case BeginUnknown:
		if w.policy == UnknownReconcile {
			c.evid = "didNotHappen"
			if w.landed > 0 {
				c.evid = "happened"
			}
		}
	case BeginDone:
		if w.landed == 0 {
			t.Fatal("done without having happened")
		}
		c.closed = true
	}
}

func (w *world) send(t *rapid.T) {
	c := w.pick("call", func(c *caller) bool { return c.acting && !c.sent && w.now < c.until })
	if c == nil {
		return
	}
	c.sent = true
	if rapid.Bool().Draw(t, "lost") {
		return
	}
	delay := time.Duration(rapid.Int64Range(0, int64(w.settle/time.Millisecond)-1).Draw(t, "flight")) * time.Millisecond
	w.flights = append(w.flights, flight{w.now.Add(delay), c})
	w.land()
}

func (w *world) land() {
	var rest []flight
	for _, f := range w.flights {
		if f.lands > w.now {
			rest = append(rest, f)
			continue
		}
		w.landed++
		f.from.told = f.from.acting && f.from.died == 0
	}
	w.flights = rest
	if w.landed > 1 && w.policy != UnknownRepeat {
		w.t.Fatalf("the effect happened %d times under policy %s", w.landed, w.policy)
	}
}

func (w *world) commit(*rapid.T) {
	c := w.pick("call", func(c *caller) bool { return (c.told || c.evid == "happened") && !c.closed && w.holds(c) })
	if c == nil {
		return
	}
	next, err := CommitReceipt(w.stored, CommitRequest{Run: c.run, Attempt: c.attempt, Now: w.now, Reconciled: !c.told})
	if err != nil {
		w.t.Fatalf("a true commit is refused: %v", err)
	}
	w.store(next)
	if w.stored.State != ReceiptDone {
		w.t.Fatalf("committed, yet %s", w.stored.State)
	}
	c.word, c.closed, c.acting = true, true, false
}

func (w *world) abandon(*rapid.T) {
	c := w.pick("call", func(c *caller) bool { return c.known && !c.sent && !c.closed && w.holds(c) })
	if c == nil {
		return
	}
	c.word, c.closed, c.acting = true, true, false
	next, err := AbandonReceipt(w.stored, AbandonRequest{Run: c.run, Attempt: c.attempt, Nonce: c.nonce})
	if err == nil {
		w.store(next)
	}
}

// fork gives the live attempt one more call of the same effect.
func (w *world) fork(*rapid.T) {
	run := fmt.Sprint("r", w.run)
	if w.died[w.key(run, w.attempt)] != 0 || len(w.calls) > 200 {
		return
	}
	w.calls = append(w.calls, &caller{run: run, attempt: w.attempt, nonce: fmt.Sprint("n", len(w.calls))})
}

// replace ends the live attempt, of which the control plane is sure, and starts the next one, or a retried run. What
// the old one sent may still land.
func (w *world) replace(t *rapid.T) {
	run := fmt.Sprint("r", w.run)
	w.died[w.key(run, w.attempt)] = w.now
	for _, c := range w.calls {
		if c.run == run && c.attempt == w.attempt && c.died == 0 {
			c.died = w.now
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "retriedRun") == 0 {
		w.run, w.attempt = w.run+1, 0
	}
	w.attempt++
	w.fork(t)
}

// desert starts the next attempt while the old one, no longer heard, goes on by itself.
func (w *world) desert(t *rapid.T) {
	w.attempt++
	w.fork(t)
}

func (w *world) mark(*rapid.T) {
	ended := Instant(0)
	if w.stored != nil {
		ended = w.died[w.key(w.stored.Run, w.stored.Attempt)]
	}
	w.store(MarkUnknown(w.stored, ended, w.now))
}

func (w *world) resolve(*rapid.T) {
	if w.policy != UnknownAsk {
		return
	}
	if next, err := ResolveReceipt(w.stored, w.landed > 0, Payload{}, "ann", w.now); err == nil {
		w.store(next)
	}
}

// undo makes what happened undone: from then on it may happen once more.
func (w *world) undo(*rapid.T) {
	if w.stored == nil || w.stored.State != ReceiptDone || len(w.flights) > 0 || w.policy == UnknownRepeat {
		return
	}
	key, round := w.stored.Key(), w.stored.Round
	next, err := CompensateReceipt(w.stored)
	if err != nil {
		w.t.Fatalf("what is done cannot be undone: %v", err)
	}
	w.store(next)
	if w.stored.Key() == key || w.stored.Round != round+1 {
		w.t.Fatalf("key %s of round %d goes on as %s of round %d", key, round, w.stored.Key(), w.stored.Round)
	}
	w.landed = 0
	for _, c := range w.calls { // their attempt ended before it was undone
		c.closed = true
	}
}

func (w *world) wait(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
	w.land()
	for _, c := range w.calls {
		if c.acting && w.now >= c.until { // cancelled at its time; only what it knows already counts
			c.acting = false
			c.closed = c.closed || (c.sent && !c.told)
		}
	}
}

// Whatever the order of calls, crashes, deserted attempts, lost replies, sweeps, hooks and people: an effect is never
// performed while another call may be acting, never after it is done, and never twice unless the policy says repeat.
func TestAnEffectHappensOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]UnknownPolicy{UnknownAsk, UnknownReconcile, UnknownReconcile, UnknownRepeat, UnknownFail}).Draw(t, "policy")
		for range 6 {
			w := &world{t: t, now: t0, settle: 2 * time.Second, run: 1, attempt: 1, died: map[string]Instant{}, policy: policy}
			actions := []func(*rapid.T){
				w.begin, w.begin, w.begin, w.send, w.send, w.commit, w.abandon, w.fork, w.replace, w.desert, w.mark,
				w.resolve, w.undo, w.wait, w.wait, w.wait,
			}
			w.fork(t)
			for range 50 {
				rapid.SampledFrom(actions).Draw(t, "action")(t)
			}
		}
	})
}
