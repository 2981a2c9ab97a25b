package run

import (
	"cmp"
	"slices"
	"time"
)

// Span is a stretch of time from an instant up to another one, which is 0 while the stretch goes on.
type Span struct{ From, To Instant }

// Spans are stretches of time. Those that Union, Minus and Clip give are in order and apart, none of them empty or open.
type Spans []Span

// MaxSpans bounds the stretches that a record keeps of the time in which its run waited for people: the longest ones.
const MaxSpans = 16

// Total is their length; that of one that goes on is 0.
func (s Spans) Total() (total time.Duration) {
	for _, x := range s {
		total += max(x.To.Sub(x.From), 0)
	}
	return total
}

// Union is the time in any of them.
func (s Spans) Union() Spans {
	sorted := slices.DeleteFunc(slices.Clone(s), func(x Span) bool { return x.To <= x.From })
	slices.SortFunc(sorted, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	out := sorted[:0]
	for _, x := range sorted {
		if n := len(out); n > 0 && x.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, x.To)
			continue
		}
		out = append(out, x)
	}
	return out
}

// Clip is their part in a stretch; one that goes on lasts to its end.
func (s Spans) Clip(within Span) Spans {
	var out Spans
	for _, x := range s {
		if x.To == 0 {
			x.To = within.To
		}
		if x = (Span{max(x.From, within.From), min(x.To, within.To)}); x.From < x.To {
			out = append(out, x)
		}
	}
	return out.Union()
}

// Minus is the time in s and not in other. Both are what Union gives.
func (s Spans) Minus(other Spans) Spans {
	var out Spans
	i := 0
	for _, x := range s {
		for i < len(other) && other[i].To <= x.From {
			i++
		}
		for k := i; k < len(other) && other[k].From < x.To; k++ {
			if other[k].From > x.From {
				out = append(out, Span{x.From, other[k].From})
			}
			x.From = max(x.From, other[k].To)
		}
		if x.From < x.To {
			out = append(out, x)
		}
	}
	return out
}

// Longest are the longest of them, n at most, in order.
func (s Spans) Longest(n int) Spans {
	if len(s) <= n {
		return s
	}
	byLength := slices.Clone(s)
	slices.SortStableFunc(byLength, func(a, b Span) int { return cmp.Compare(b.To.Sub(b.From), a.To.Sub(a.From)) })
	return byLength[:n].Union()
}

// Wait is a stretch in which a run waited for runs that it called, and of which is not reckoned yet how much of it was
// waiting for people alone.
type Wait struct {
	Span
	Began Instant // the wait, of which the stretch is what is not reckoned
	Step  string  // whose children it waits for; of a workflow those of the stage that is at work
}

// Reckoning finds, from the runs that another one waits for, in which time it waited for people alone: when one of them at
// least did, and none that had not ended did anything else. Runs are added in any order.
type Reckoning struct {
	within       Span
	people, busy Spans
	sorted       int  // of both, when they were last put in order
	goesOn       bool // something is at work now
}

// NewReckoning is of a stretch in which a run waited for others.
func NewReckoning(within Span) *Reckoning { return &Reckoning{within: within} }

// Within is the stretch.
func (k *Reckoning) Within() Span { return k.within }

// Add adds a run that is waited for, as it is known at the end of the stretch or later. through is in which time it waited
// for people alone by way of runs that it called itself, as far as its record does not say so yet; still says that it does
// so now.
func (k *Reckoning) Add(r *Record, through Spans, still bool) {
	n := len(r.ForPeople)
	asks := n > 0 && r.ForPeople[n-1].To == 0
	k.goesOn = k.goesOn || r.EndedAt == 0 && !asks && !still
	life := Spans{{r.CreatedAt, r.EndedAt}}.Clip(k.within)
	people := append(slices.Clone(r.ForPeople), through...).Clip(k.within)
	k.people = append(k.people, people...)
	k.busy = append(k.busy, life.Minus(people)...)
	if n = len(k.people) + len(k.busy); n > 2*k.sorted+256 {
		k.people, k.busy = k.people.Union(), k.busy.Union()
		k.sorted = len(k.people) + len(k.busy)
	}
}

// Busy reports whether it is settled already that none of the stretch was waiting for people alone.
func (k *Reckoning) Busy() bool {
	k.busy = k.busy.Union()
	return len(k.busy) == 1 && k.busy[0] == k.within
}

// GoesOn reports whether one of the runs is at work at the end of the stretch. What it does may have begun that very moment.
func (k *Reckoning) GoesOn() bool { return k.goesOn }

// Result is the time found.
func (k *Reckoning) Result() Spans { return k.people.Union().Minus(k.busy.Union()) }

// OpenWait is the stretch of waiting for others that is to be reckoned at an instant: one that goes on lasts until then.
// It is empty where there is none.
func (r *Record) OpenWait(at Instant) Span {
	if r.ForRuns == nil {
		return Span{}
	}
	s := r.ForRuns.Span
	if s.To == 0 || s.To > at {
		s.To = at
	}
	return s
}

// MovedDeadline is the run's deadline, if it has one, when it has waited for people alone for so much longer.
func (r *Record) MovedDeadline(by time.Duration) Instant {
	return Earliest(r.Deadline.Add(by), r.Latest)
}

// waits folds what an event means for the time in which the run waited for people, or for others.
func (r *Record) waits(e *Event, leaves bool) {
	// 1. A question to people is over.
	if n := len(r.ForPeople); n > 0 && r.ForPeople[n-1].To == 0 && (leaves || e.Type == EvAdvanced) {
		asked := r.ForPeople[n-1]
		asked.To = e.At
		r.waited(append(slices.Clone(r.ForPeople[:n-1]), asked))
		if p := r.Park; p != nil && p.Left > 0 {
			r.Moved = min(r.Moved+int64(asked.To-asked.From), maxCount)
		}
	}
	// 2. So is a wait for others, or it is reckoned up to now.
	w := r.ForRuns
	if w == nil {
		return
	}
	switch {
	case e.Type == EvAdvanced && w.Span == Span{From: e.At}: // it has just begun, and this says with what
	case e.Type == EvWoken, e.Type == EvAdvanced && r.State == Running, e.Type == EvDeadlineMoved:
		r.waited(append(slices.Clone(r.ForPeople), e.ForPeople...))
		if e.Deadline != 0 {
			r.Deadline = e.Deadline
			r.Moved = min(r.Moved+e.ForPeople.Total().Milliseconds(), maxCount)
		}
		if r.ForRuns = nil; e.Type == EvDeadlineMoved && w.To == 0 {
			r.ForRuns = &Wait{Span{From: e.Due}, w.Began, w.Step}
		}
	case leaves && w.To == 0 && w.From < e.At:
		r.ForRuns = &Wait{Span{w.From, e.At}, w.Began, w.Step}
	case leaves && w.To == 0:
		r.ForRuns = nil
	}
}

// waited keeps in which time the run waited for people alone.
func (r *Record) waited(s Spans) {
	open := slices.IndexFunc(s, func(x Span) bool { return x.To == 0 })
	if open < 0 {
		if r.ForPeople = s.Union().Longest(MaxSpans); len(r.ForPeople) == 0 {
			r.ForPeople = nil
		}
		return
	}
	r.ForPeople = append(s.Union().Longest(MaxSpans-1), s[open])
}

// begins folds what the run waits for from now on.
func (r *Record) begins(e *Event) {
	switch {
	case e.Type == EvParked && e.Park.asks(), e.Type == EvCompensating && e.Reason == CompensationFailed:
		r.waited(append(slices.Clone(r.ForPeople), Span{From: e.At}))
	case e.Type == EvParked && e.Park.On == OnChildren:
		r.ForRuns = &Wait{Span{From: e.At}, e.At, e.Park.Step}
	case e.Type == EvBegan: // also after it was suspended: the runs of its stage may be older than that
		r.ForRuns = &Wait{Span{From: e.At}, r.StartedAt, ""}
	case e.Type == EvAdvanced && r.State == Running && r.ForRuns == nil:
		r.ForRuns = &Wait{Span{From: e.At}, e.At, ""}
	}
}

// asks reports whether a run parks until people have answered.
func (p *Park) asks() bool { return p.On == OnGate || p.On == OnInput && p.Left > 0 }
