package forecast

import (
	"time"

	"github.com/errand-run/errand/shared/run"
)

// Arrival is one submission.
type Arrival struct {
	At   run.Instant
	Kind *Kind
	Seed uint64 // of everything that is drawn for the run: the same under every fleet
	// Recorded is what became of the run in reality; nil draws it from the Kind.
	Recorded *Recorded
}

// Source gives arrivals in the order of their time, up to the end, which is false.
type Source interface {
	Next() (Arrival, bool, error)
}

// Kind is what submissions have in common. It must not change once an arrival names it.
type Kind struct {
	Tenant, Agent string
	Priority      *int     // nil: the tenant's default
	Sessions      []string // each run belongs to one of these, by chance; none: to no session
	Duration      Dist     // of an attempt
	Failures      []Failure
	// Tokens are what a run that is not cut short consumes, with their prices in dollars per million.
	InputTokens, OutputTokens Dist
	InputUSD, OutputUSD       float64
}

// Failure is how a share of the attempts ends.
type Failure struct {
	Class run.Class
	Code  string
	Rate  float64 // of all attempts, 0 to 1
}

// Recorded is a run as it was.
type Recorded struct {
	Attempts []RecordedAttempt // the last one stands for those that a forecast needs beyond
	Usage    run.Usage         // of all attempts together
}

// RecordedAttempt is one attempt as it was. Its Class is empty when it succeeded.
type RecordedAttempt struct {
	Took  time.Duration
	Class run.Class
	Code  string
}

// outcome is what one attempt comes to if nothing cuts it short.
type outcome struct {
	took  time.Duration
	class run.Class // "" for success
	code  string
	usage run.Usage
}

// What is drawn for an attempt. Each has a number of its own, so that one more draw changes no other.
const (
	drawDuration = iota
	drawFailure
	drawShare
	drawInput
	drawOutput
	drawJitter
	drawSession
	draws
)

// unit is a number in [0, 1) for one draw of one attempt.
func unit(seed uint64, attempt, draw int) float64 {
	return float64(mix(seed+uint64(attempt*draws+draw)*0x9e3779b97f4a7c15)>>11) / (1 << 53)
}

// mix spreads the bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// attempt is what the nth attempt of the arrival comes to, n from 1.
func (a *Arrival) attempt(n int) outcome {
	if a.Recorded != nil {
		return a.Recorded.attempt(n)
	}
	k := a.Kind
	o := outcome{took: k.Duration.At(unit(a.Seed, n, drawDuration))}
	share := 1.0
	roll := unit(a.Seed, n, drawFailure)
	for i := range k.Failures {
		f := &k.Failures[i]
		if roll -= f.Rate; roll < 0 {
			o.class, o.code = f.Class, f.Code
			share = unit(a.Seed, n, drawShare) // it fails somewhere on its way
			o.took = time.Duration(share * float64(o.took))
			break
		}
	}
	if k.InputTokens.kind != "" {
		o.usage.InputTokens = int64(share * k.InputTokens.value(unit(a.Seed, n, drawInput)))
	}
	if k.OutputTokens.kind != "" {
		o.usage.OutputTokens = int64(share * k.OutputTokens.value(unit(a.Seed, n, drawOutput)))
	}
	o.usage.USD = (float64(o.usage.InputTokens)*k.InputUSD + float64(o.usage.OutputTokens)*k.OutputUSD) / 1e6
	return o
}

func (r *Recorded) attempt(n int) outcome {
	if len(r.Attempts) == 0 {
		return outcome{}
	}
	at := &r.Attempts[min(n, len(r.Attempts))-1]
	o := outcome{took: at.Took, class: at.Class, code: at.Code}
	if n >= len(r.Attempts) {
		o.usage = r.Usage // as a whole, at the end
	}
	return o
}
