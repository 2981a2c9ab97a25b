package sim

// The operations. Their order is part of what a script means.
const (
	Nothing Op = iota

	// Control processes and time.
	Step   // one pass of a process
	Settle // passes until there is nothing more to do
	Tick   // up to a second goes by, or up to ten
	NextDue
	Wait // ten seconds to two minutes
	Leap // up to an hour
	Skew // one process's clock is set

	// Clients.
	Submit
	Flood
	Cancel
	Suspend
	Resume
	Signal
	Retry
	Score
	Begin // a handler that was called directly registers itself

	// Workers and their attempts.
	Join
	Lease
	Beat
	Work
	Act // an effect goes on: begin, perform, commit
	Vanish
	Stall
	Drain
	Resolve // a person looks what became of an unknown effect
	Outlive // a worker hangs in the middle of an effect until its successor comes to it, and then goes on

	// The fleet.
	ChangeTarget
	DropTarget
	ChangeTenant
	ChangeAgent
	PauseAgent

	// Faults.
	Crash
	CommitFault // of the next commit: an error before or after it was applied, a crash there, conflicts, a long pause
	ReadFault
	StartFault // of the next start by a runtime
	Outage     // the store answers a process with errors for a while

	// People and families, in worlds with calls.
	Decide // somebody decides a gate, or two at once
	GoOn   // an attempt goes the next step of its program
)

type opInfo struct {
	name   string
	weight int
	do     func(*world, *rng)
}

// ops lists what each Op is called, how often it comes in a world of even temper, and what it does.
var ops []opInfo

func init() {
	ops = []opInfo{
		Nothing: {"Nothing", 0, func(*world, *rng) {}},

		Step:    {"Step", 12, (*world).opStep},
		Settle:  {"Settle", 22, (*world).opSettle},
		Tick:    {"Tick", 14, (*world).opTick},
		NextDue: {"NextDue", 8, (*world).opNextDue},
		Wait:    {"Wait", 3, (*world).opWait},
		Leap:    {"Leap", 1, (*world).opLeap},
		Skew:    {"Skew", 1, (*world).opSkew},

		Submit:  {"Submit", 14, (*world).opSubmit},
		Flood:   {"Flood", 1, (*world).opFlood},
		Cancel:  {"Cancel", 3, (*world).opCancel},
		Suspend: {"Suspend", 2, (*world).opSuspend},
		Resume:  {"Resume", 3, (*world).opResume},
		Signal:  {"Signal", 4, (*world).opSignal},
		Retry:   {"Retry", 2, (*world).opRetry},
		Score:   {"Score", 1, (*world).opScore},
		Begin:   {"Begin", 2, (*world).opBegin},

		Join:    {"Join", 4, (*world).opJoin},
		Lease:   {"Lease", 20, (*world).opLease},
		Beat:    {"Beat", 14, (*world).opBeat},
		Work:    {"Work", 34, (*world).opWork},
		Act:     {"Act", 34, (*world).opAct},
		Vanish:  {"Vanish", 2, (*world).opVanish},
		Stall:   {"Stall", 2, (*world).opStall},
		Drain:   {"Drain", 3, (*world).opDrain},
		Resolve: {"Resolve", 3, (*world).opResolve},
		Outlive: {"Outlive", 4, (*world).opOutlive},

		ChangeTarget: {"ChangeTarget", 2, (*world).opChangeTarget},
		DropTarget:   {"DropTarget", 1, (*world).opDropTarget},
		ChangeTenant: {"ChangeTenant", 1, (*world).opChangeTenant},
		ChangeAgent:  {"ChangeAgent", 1, (*world).opChangeAgent},
		PauseAgent:   {"PauseAgent", 2, (*world).opPauseAgent},

		Crash:       {"Crash", 3, (*world).opCrash},
		CommitFault: {"CommitFault", 8, (*world).opCommitFault},
		ReadFault:   {"ReadFault", 2, (*world).opReadFault},
		StartFault:  {"StartFault", 2, (*world).opStartFault},
		Outage:      {"Outage", 1, (*world).opOutage},

		Decide: {"Decide", 7, (*world).opDecide},
		GoOn:   {"GoOn", 40, (*world).opGoOn},
	}
}

func (o Op) String() string { return ops[o].name }

// temper is what a seed makes of its world. Not every world has everything in it: a few things that meet often find more
// than many that meet rarely.
type temper struct {
	two     bool // two control processes over one store
	effects bool // agents act on the outside; clocks then go wrong by less than an effect's settling time
	calm    bool // no faults of processes and stores
	flood   bool
	fair    bool     // one agent that every slot can take, and tenants with nothing but weights: shares are exact there
	calls   bool     // agents call others and ask people
	agents  []string // declared here
}

// callsIn reports whether the agents of a seed's world call others: in every other one.
func callsIn(seed uint64) bool {
	r := rng(seed ^ 0xca115)
	return r.oneIn(2)
}

func temperOf(s Script) temper {
	r := rng(s.Seed ^ 0x7e3be5)
	t := temper{two: r.oneIn(4), effects: r.n(3) > 0, calm: r.oneIn(6), flood: r.oneIn(5), agents: []string{"plain"}}
	if r.oneIn(8) {
		t.two, t.effects, t.flood, t.fair = false, false, true, true
		return t
	}
	t.agents = append(t.agents, some(&r, 3, []string{"gpu", "wide", "chat", "capped", "brief", "park"})...)
	if t.effects {
		t.agents = append(t.agents, some(&r, 2, []string{"reconciles", "repeats", "asks", "fails"})...)
	}
	if t.calls = s.Calls; t.calls {
		t.agents = append(t.agents, "boss", "mid", "leaf", "keyed")
		if t.effects {
			t.agents = append(t.agents, "undoes")
		}
	}
	return t
}

// some takes so many of the list.
func some(r *rng, n int, list []string) []string {
	for i := range n {
		k := i + r.n(len(list)-i)
		list[i], list[k] = list[k], list[i]
	}
	return list[:n]
}

func (t temper) weight(op Op) int {
	w := ops[op].weight
	switch op {
	case Crash, CommitFault, ReadFault, StartFault, Skew, Outage:
		if t.calm || t.fair && op != Crash && op != Skew {
			return 0
		}
	case ChangeTarget, DropTarget, ChangeTenant, ChangeAgent, PauseAgent, Begin:
		if t.fair {
			return 0
		}
	case Act, Resolve, Outlive:
		if !t.effects {
			return 0
		}
	case Decide, GoOn:
		if !t.calls {
			return 0
		}
	case Cancel, Suspend:
		if t.calls {
			return 2 * w
		}
	case Flood:
		if t.flood {
			return 6 * w
		}
	}
	return w
}
