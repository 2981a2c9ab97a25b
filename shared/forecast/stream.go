package forecast

import (
	"math"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// Stream is a flow of like submissions within a window.
type Stream struct {
	Kind    *Kind
	PerHour float64
	Even    bool          // equal distances; else the gaps are random, as those of many who do not know of each other
	Daily   []float64     // 24 factors of the rate, one for each hour of the day (UTC); none: all 1
	From    time.Duration // after the start of the window
	Until   time.Duration // 0: to its end
	Bursts  []Burst
	Batches []Batch
}

// Burst adds submissions for a while.
type Burst struct {
	At      time.Duration // after the start of the window
	For     time.Duration
	PerHour float64
}

// Batch is many submissions in one instant.
type Batch struct {
	At    time.Duration // after the start of the window
	Every time.Duration // 0: once
	Count int
}

// MaxArrivals bounds the submissions of a forecast.
const MaxArrivals = 100_000_000

// Expected is about how many submissions the stream makes in a window.
func (s *Stream) Expected(window time.Duration) float64 {
	until := window
	if s.Until > 0 {
		until = min(until, s.Until)
	}
	factor := 1.0
	for i, f := range s.Daily {
		if i == 0 {
			factor = 0
		}
		factor += f / float64(len(s.Daily))
	}
	sum := s.PerHour * factor * max(until-s.From, 0).Hours()
	for _, b := range s.Bursts {
		sum += b.PerHour * min(b.For, max(window-b.At, 0)).Hours()
	}
	for _, b := range s.Batches {
		times := 0.0
		if b.At < window {
			times = 1
			if b.Every > 0 {
				times += math.Floor(float64(window-b.At) / float64(b.Every))
			}
		}
		sum += times * float64(b.Count)
	}
	return sum
}

// flow is one regular part of a stream: its base, a burst or a batch.
type flow struct {
	kind  *Kind
	order int
	seed  uint64
	n     uint64 // submissions so far

	perMs float64 // 0 for a batch
	even  bool
	daily []float64
	start run.Instant
	at    float64 // of the next submission, in ms after start
	until float64

	every float64 // of a batch
	count int
	left  int
}

const (
	msPerHour = 3_600_000
	msPerDay  = 24 * msPerHour
)

// step finds the next submission and reports whether there is one.
func (f *flow) step() bool {
	f.n++
	if f.perMs == 0 {
		if f.left--; f.left < 0 {
			if f.every <= 0 {
				return false
			}
			f.at += f.every
			f.left = f.count - 1
		}
		return f.at < f.until
	}
	amount := 1.0
	if !f.even {
		amount = -math.Log1p(-unit(f.draw(), 0, drawDuration))
	}
	if f.daily == nil {
		f.at += amount / f.perMs
		return f.at < f.until
	}
	// Hour by hour, until the rates have added up to the amount.
	for f.at < f.until {
		ofDay := math.Mod(float64(f.start%msPerDay)+f.at, msPerDay)
		rate := f.perMs * f.daily[int(ofDay/msPerHour)%len(f.daily)]
		rest := msPerHour - math.Mod(ofDay, msPerHour)
		if amount <= rate*rest {
			f.at += amount / rate
			return f.at < f.until
		}
		amount -= rate * rest
		f.at += rest
	}
	return false
}

// draw is the seed of the present submission.
func (f *flow) draw() uint64 { return mix(f.seed + f.n*0x9e3779b97f4a7c15) }

func (f *flow) before(g *flow) bool { return f.at < g.at || f.at == g.at && f.order < g.order }

// streams merges flows.
type streams struct {
	start run.Instant
	heap  []*flow // by time
}

// Streams makes one source of many streams. The same seed gives the same arrivals.
func Streams(list []Stream, start run.Instant, window time.Duration, seed uint64) Source {
	s := &streams{start: start}
	order := 0
	add := func(f flow) {
		f.start, f.order, f.seed = start, order, mix(seed^mix(uint64(order)+1))
		order++
		if f.perMs > 0 || f.count > 0 {
			f.left = f.count
			if f.step() {
				s.heap = append(s.heap, &f)
			}
		}
	}
	end := float64(window.Milliseconds())
	for i := range list {
		x := &list[i]
		until := end
		if x.Until > 0 {
			until = min(end, float64(x.Until.Milliseconds()))
		}
		add(flow{kind: x.Kind, perMs: x.PerHour / msPerHour, even: x.Even, daily: x.Daily, at: float64(x.From.Milliseconds()), until: until})
		for _, b := range x.Bursts {
			at := float64(b.At.Milliseconds())
			add(flow{kind: x.Kind, perMs: b.PerHour / msPerHour, even: x.Even, at: at, until: min(end, at+float64(b.For.Milliseconds()))})
		}
		for _, b := range x.Batches {
			add(flow{kind: x.Kind, at: float64(b.At.Milliseconds()), until: end, every: float64(b.Every.Milliseconds()), count: b.Count})
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	return s
}

// Next implements Source.
func (s *streams) Next() (Arrival, bool, error) {
	if len(s.heap) == 0 {
		return Arrival{}, false, nil
	}
	f := s.heap[0]
	a := Arrival{At: s.start + run.Instant(f.at), Kind: f.kind, Seed: f.draw()}
	if !f.step() {
		last := len(s.heap) - 1
		s.heap[0] = s.heap[last]
		s.heap = s.heap[:last]
	}
	s.down(0)
	return a, true, nil
}

func (s *streams) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(s.heap); c++ {
			if s.heap[c].before(s.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		s.heap[i], s.heap[least] = s.heap[least], s.heap[i]
		i = least
	}
}
