// Package arrivals reads the submissions of a forecast: from a file that describes streams of them, from a file of
// recorded ones, or from the runs of a store.
//
// Files are decoded as strictly as manifests are: an unknown field, a wrong type or a bad value is an error with file,
// line and column, and says what would be right.
package arrivals

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/run"
)

// Limits of a file.
const (
	MaxStreams  = 5_000
	MaxParts    = 200 // bursts, and batches, of a stream
	MaxWorkers  = 200 // entries
	MaxSessions = 100_000
	MaxRate     = 1e9 // per hour
	MaxWindow   = 31 * 24 * time.Hour
)

// File describes streams of submissions.
type File struct {
	fleet.Meta `json:"-"`
	// Start is the instant at which the window begins, as in RFC 3339: it says what hour of the day it is. A Monday
	// at midnight, UTC, unless set.
	Start   string         `json:"start,omitempty"`
	Window  fleet.Duration `json:"window"` // 24h unless set
	Streams []Stream       `json:"streams"`
	Workers []Workers      `json:"workers,omitempty"` // of polled targets
}

// Stream is a flow of like submissions. Its lengths of time count from the start of the window.
type Stream struct {
	Tenant   string `json:"tenant"`
	Agent    string `json:"agent"`
	Priority *int   `json:"priority,omitempty"`
	Sessions int    `json:"sessions,omitempty"` // each run belongs to one of so many

	PerHour float64        `json:"perHour,omitempty"`
	Spacing string         `json:"spacing,omitempty"` // random | even
	Daily   []float64      `json:"daily,omitempty"`   // factors of perHour for each hour of the day, UTC
	From    fleet.Duration `json:"from,omitempty"`
	Until   fleet.Duration `json:"until,omitempty"`
	Bursts  []Burst        `json:"bursts,omitempty"`
	Batches []Batch        `json:"batches,omitempty"`

	Duration Length    `json:"duration"` // of an attempt
	Failures []Failure `json:"failures,omitempty"`
	Tokens   Tokens    `json:"tokens,omitzero"`
}

// Burst adds submissions for a while.
type Burst struct {
	At      fleet.Duration `json:"at,omitempty"`
	For     fleet.Duration `json:"for"`
	PerHour float64        `json:"perHour"`
}

// Batch is many submissions at once.
type Batch struct {
	At    fleet.Duration `json:"at,omitempty"`
	Every fleet.Duration `json:"every,omitempty"`
	Count int            `json:"count"`
}

// Length is how a length of time is distributed, in one of four forms: constant; min and max (equally often anything
// between); mean (exponential); p50 and p95 (lognormal).
type Length struct {
	Constant fleet.Duration `json:"constant,omitempty"`
	Min      fleet.Duration `json:"min,omitempty"`
	Max      fleet.Duration `json:"max,omitempty"`
	Mean     fleet.Duration `json:"mean,omitempty"`
	P50      fleet.Duration `json:"p50,omitempty"`
	P95      fleet.Duration `json:"p95,omitempty"`
}

// Amount is the same of a count.
type Amount struct {
	Constant float64 `json:"constant,omitempty"`
	Min      float64 `json:"min,omitempty"`
	Max      float64 `json:"max,omitempty"`
	Mean     float64 `json:"mean,omitempty"`
	P50      float64 `json:"p50,omitempty"`
	P95      float64 `json:"p95,omitempty"`
}

// Failure is how a share of the attempts fails.
type Failure struct {
	Class string  `json:"class"`
	Code  string  `json:"code,omitempty"`
	Rate  float64 `json:"rate"` // of all attempts
}

// Tokens are what an attempt consumes.
type Tokens struct {
	Input  Amount `json:"input,omitzero"`
	Output Amount `json:"output,omitzero"`
	// In dollars per million.
	InputUSD  float64 `json:"inputUSD,omitempty"`
	OutputUSD float64 `json:"outputUSD,omitempty"`
}

// Workers connect to a polled target by themselves.
type Workers struct {
	Target string         `json:"target"`
	Agents []string       `json:"agents"`
	Slots  int            `json:"slots"` // of each
	Count  int            `json:"count"`
	From   fleet.Duration `json:"from,omitempty"`
	Until  fleet.Duration `json:"until,omitempty"`
}

// Kind is manifest.KindArrivals.
func (*File) Kind() string { return manifest.KindArrivals }

const defaultWindow = fleet.Duration(24 * time.Hour)

// defaultStart is a Monday.
var defaultStart = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// SetDefaults fills what is unset and has a default.
func (f *File) SetDefaults() {
	if f.Start == "" {
		f.Start = defaultStart.Format(time.RFC3339)
	}
	if f.Window == 0 {
		f.Window = defaultWindow
	}
	for i := range f.Streams {
		if s := &f.Streams[i]; s.Spacing == "" {
			s.Spacing = "random"
		}
	}
	for i := range f.Workers {
		w := &f.Workers[i]
		w.Slots, w.Count = max(w.Slots, 1), max(w.Count, 1)
	}
}

// Validate returns every problem of the file.
func (f *File) Validate() []fleet.Problem {
	var c check
	if f.Meta.Name != "" && !fleet.IsName(f.Meta.Name) {
		c.add("metadata.name", "%q is not a name: lower-case letters, digits and hyphens, %d at most", f.Meta.Name, fleet.MaxNameLength)
	}
	if f.Start != "" {
		if at, err := time.Parse(time.RFC3339, f.Start); err != nil || run.At(at) <= 0 {
			c.add("spec.start", "%q is not an instant; write it like %s", f.Start, defaultStart.Format(time.RFC3339))
		}
	}
	c.span("spec.window", f.Window, MaxWindow)
	if f.Window > 0 && f.Window < fleet.Duration(time.Second) {
		c.add("spec.window", "%s is shorter than a second", f.Window)
	}
	switch n := len(f.Streams); {
	case n == 0:
		c.add("spec.streams", "required; say at least of one tenant and agent how many runs it submits")
	case n > MaxStreams:
		c.add("spec.streams", "%d streams; want at most %d", n, MaxStreams)
	default:
		total := 0.0
		for i := range f.Streams {
			c.stream(fleet.At("spec.streams", i), &f.Streams[i])
			made, err := f.Streams[i].made()
			if err == nil {
				total += made.Expected(f.window())
			}
		}
		if !(total <= forecast.MaxArrivals) {
			c.add("spec.streams", "about %.0f runs in %s; want at most %d", total, f.window(), forecast.MaxArrivals)
		}
	}
	if n := len(f.Workers); n > MaxWorkers {
		c.add("spec.workers", "%d entries; want at most %d", n, MaxWorkers)
	}
	for i := range min(len(f.Workers), MaxWorkers) {
		c.workers(fleet.At("spec.workers", i), &f.Workers[i])
	}
	return c.problems
}

// check collects problems.
type check struct{ problems []fleet.Problem }

func (c *check) add(path, format string, args ...any) {
	c.problems = append(c.problems, fleet.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (c *check) span(path string, d fleet.Duration, most time.Duration) {
	switch {
	case d < 0:
		c.add(path, "%s is negative", d)
	case d.Std() > most:
		c.add(path, "%s is too long; want at most %s", d, fleet.Duration(most))
	}
}

func (c *check) name(path, s, what string) {
	switch {
	case s == "":
		c.add(path, "required; name the %s", what)
	case !fleet.IsName(s):
		c.add(path, "%.80q is not a name: lower-case letters, digits and hyphens, %d at most", s, fleet.MaxNameLength)
	}
}

func (c *check) between(path string, v, low, high float64) {
	if !(v >= low && v <= high) {
		c.add(path, "%v is outside %v to %v", v, low, high)
	}
}

func (c *check) stream(path string, s *Stream) {
	at := func(parts ...any) string { return fleet.At(append([]any{path}, parts...)...) }
	c.name(at("tenant"), s.Tenant, "tenant that submits the runs")
	c.name(at("agent"), s.Agent, "agent that runs them")
	if s.Priority != nil {
		c.between(at("priority"), float64(*s.Priority), 0, fleet.MaxPriority)
	}
	c.between(at("sessions"), float64(s.Sessions), 0, MaxSessions)
	// 1. How many, and when.
	if s.PerHour == 0 && len(s.Bursts) == 0 && len(s.Batches) == 0 {
		c.add(at("perHour"), "required, unless there are bursts or batches")
	}
	c.between(at("perHour"), s.PerHour, 0, MaxRate)
	if s.Spacing != "" && s.Spacing != "random" && s.Spacing != "even" {
		c.add(at("spacing"), "%.80q is not one of random, even", s.Spacing)
	}
	if n := len(s.Daily); n != 0 && n != 24 {
		c.add(at("daily"), "%d factors; want 24, one for each hour of the day", n)
	}
	for i, factor := range s.Daily[:min(len(s.Daily), 24)] {
		c.between(at("daily", i), factor, 0, 1e6)
	}
	if len(s.Daily) > 0 && slices.Max(s.Daily) == 0 {
		c.add(at("daily"), "all factors are 0; leave the stream out")
	}
	c.span(at("from"), s.From, MaxWindow)
	c.span(at("until"), s.Until, MaxWindow)
	if s.Until != 0 && s.Until <= s.From {
		c.add(at("until"), "%s is not after from, %s", s.Until, s.From)
	}
	if len(s.Bursts) > MaxParts || len(s.Batches) > MaxParts {
		c.add(path, "want at most %d bursts and %d batches", MaxParts, MaxParts)
		return
	}
	for i, b := range s.Bursts {
		c.span(at("bursts", i, "at"), b.At, MaxWindow)
		c.span(at("bursts", i, "for"), b.For, MaxWindow)
		if b.For == 0 {
			c.add(at("bursts", i, "for"), "required; say for how long it comes")
		}
		c.between(at("bursts", i, "perHour"), b.PerHour, 1e-9, MaxRate)
	}
	for i, b := range s.Batches {
		c.span(at("batches", i, "at"), b.At, MaxWindow)
		c.span(at("batches", i, "every"), b.Every, MaxWindow)
		if b.Every > 0 && b.Every < fleet.Duration(time.Second) {
			c.add(at("batches", i, "every"), "%s is shorter than a second; use perHour with spacing: even", b.Every)
		}
		c.between(at("batches", i, "count"), float64(b.Count), 1, forecast.MaxArrivals)
	}
	// 2. What they are like.
	if _, err := s.Duration.dist(); err != nil {
		c.add(at("duration"), "%v", err)
	}
	c.failures(at("failures"), s.Failures)
	for name, amount := range map[string]Amount{"input": s.Tokens.Input, "output": s.Tokens.Output} {
		if amount != (Amount{}) {
			if _, err := amount.dist(); err != nil {
				c.add(at("tokens", name), "%v", err)
			}
		}
	}
	c.between(at("tokens", "inputUSD"), s.Tokens.InputUSD, 0, 1e6)
	c.between(at("tokens", "outputUSD"), s.Tokens.OutputUSD, 0, 1e6)
}

func (c *check) failures(path string, list []Failure) {
	if len(list) > MaxParts {
		c.add(path, "%d entries; want at most %d", len(list), MaxParts)
		return
	}
	sum := 0.0
	for i, f := range list {
		if !slices.Contains(fleet.Classes(), f.Class) {
			c.add(fleet.At(path, i, "class"), "%.80q is not a class; want one of %v", f.Class, fleet.Classes())
		}
		if len(f.Code) > fleet.MaxTextLength {
			c.add(fleet.At(path, i, "code"), "want at most %d bytes", fleet.MaxTextLength)
		}
		c.between(fleet.At(path, i, "rate"), f.Rate, 0, 1)
		sum += f.Rate
	}
	if sum > 1+1e-9 {
		c.add(path, "the rates add up to %v; want at most 1", sum)
	}
}

func (c *check) workers(path string, w *Workers) {
	c.name(fleet.At(path, "target"), w.Target, "polled target that they connect to")
	if len(w.Agents) == 0 || len(w.Agents) > fleet.MaxListLength {
		c.add(fleet.At(path, "agents"), "want 1 to %d agents that they serve", fleet.MaxListLength)
	}
	for i, name := range w.Agents[:min(len(w.Agents), fleet.MaxListLength)] {
		c.name(fleet.At(path, "agents", i), name, "agent")
	}
	c.between(fleet.At(path, "slots"), float64(w.Slots), 0, 1000)
	c.between(fleet.At(path, "count"), float64(w.Count), 0, forecast.MaxWorkers)
	c.span(fleet.At(path, "from"), w.From, MaxWindow)
	c.span(fleet.At(path, "until"), w.Until, MaxWindow)
	if w.Until != 0 && w.Until <= w.From {
		c.add(fleet.At(path, "until"), "%s is not after from, %s", w.Until, w.From)
	}
}

// dist makes the distribution, or says what is wrong with it.
func (l Length) dist() (forecast.Dist, error) {
	ns := func(d fleet.Duration) float64 { return float64(d) }
	return Amount{ns(l.Constant), ns(l.Min), ns(l.Max), ns(l.Mean), ns(l.P50), ns(l.P95)}.dist()
}

func (a Amount) dist() (forecast.Dist, error) {
	for _, v := range []float64{a.Constant, a.Min, a.Max, a.Mean, a.P50, a.P95} {
		if !(v >= 0 && v <= forecast.MaxValue) {
			return forecast.Dist{}, fmt.Errorf("values are to be from 0 to %v", forecast.MaxValue)
		}
	}
	forms := 0
	for _, given := range []bool{a.Constant > 0, a.Min > 0 || a.Max > 0, a.Mean > 0, a.P50 > 0 || a.P95 > 0} {
		if given {
			forms++
		}
	}
	switch {
	case forms != 1:
		return forecast.Dist{}, fmt.Errorf("give one of: constant; min and max; mean; p50 and p95")
	case a.Constant > 0:
		return forecast.Constant(a.Constant), nil
	case a.Mean > 0:
		return forecast.Exponential(a.Mean), nil
	case a.P50 > 0 || a.P95 > 0:
		if a.P50 <= 0 || a.P95 < a.P50 {
			return forecast.Dist{}, fmt.Errorf("p95 is to be given with p50 and not to be below it")
		}
		return forecast.Lognormal(a.P50, a.P95), nil
	}
	if a.Max < a.Min {
		return forecast.Dist{}, fmt.Errorf("max is below min")
	}
	return forecast.Uniform(a.Min, a.Max), nil
}

func (f *File) window() time.Duration {
	if f.Window > 0 {
		return min(f.Window.Std(), MaxWindow)
	}
	return defaultWindow.Std()
}

// made is the stream as forecasts know it.
func (s *Stream) made() (forecast.Stream, error) {
	k := &forecast.Kind{Tenant: s.Tenant, Agent: s.Agent, Priority: s.Priority, InputUSD: s.Tokens.InputUSD, OutputUSD: s.Tokens.OutputUSD}
	var err error
	if k.Duration, err = s.Duration.dist(); err != nil {
		return forecast.Stream{}, err
	}
	if s.Tokens.Input != (Amount{}) {
		if k.InputTokens, err = s.Tokens.Input.dist(); err != nil {
			return forecast.Stream{}, err
		}
	}
	if s.Tokens.Output != (Amount{}) {
		if k.OutputTokens, err = s.Tokens.Output.dist(); err != nil {
			return forecast.Stream{}, err
		}
	}
	for _, f := range s.Failures {
		k.Failures = append(k.Failures, forecast.Failure{Class: run.Class(f.Class), Code: f.Code, Rate: f.Rate})
	}
	out := forecast.Stream{
		Kind: k, PerHour: s.PerHour, Even: s.Spacing == "even", Daily: s.Daily, From: s.From.Std(), Until: s.Until.Std(),
	}
	for _, b := range s.Bursts {
		out.Bursts = append(out.Bursts, forecast.Burst{At: b.At.Std(), For: b.For.Std(), PerHour: b.PerHour})
	}
	for _, b := range s.Batches {
		out.Batches = append(out.Batches, forecast.Batch{At: b.At.Std(), Every: b.Every.Std(), Count: b.Count})
	}
	return out, nil
}

// sessions names the sessions of a stream.
func sessions(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "s" + strconv.Itoa(i+1)
	}
	return list
}

// Set is arrivals that can be played again and again, the same each time.
type Set struct {
	Start   run.Instant
	Window  time.Duration
	Workers []forecast.Workers
	// Expected is about how many there are.
	Expected float64
	// Source begins them anew. The seed is that of streams.
	Source func(seed uint64) forecast.Source
}

// set makes the arrivals of a valid file that has its defaults.
func (f *File) set() (*Set, error) {
	start, err := time.Parse(time.RFC3339, f.Start)
	if err != nil {
		return nil, fmt.Errorf("spec.start: %w", err)
	}
	s := &Set{Start: run.At(start), Window: f.window()}
	list := make([]forecast.Stream, len(f.Streams))
	for i := range f.Streams {
		if list[i], err = f.Streams[i].made(); err != nil {
			return nil, fmt.Errorf("spec.streams[%d]: %w", i, err)
		}
		list[i].Kind.Sessions = sessions(f.Streams[i].Sessions)
		s.Expected += list[i].Expected(s.Window)
	}
	for _, w := range f.Workers {
		s.Workers = append(s.Workers, forecast.Workers{
			Target: w.Target, Agents: w.Agents, Slots: w.Slots, Count: w.Count, From: w.From.Std(), Until: w.Until.Std(),
		})
	}
	s.Source = func(seed uint64) forecast.Source { return forecast.Streams(list, s.Start, s.Window, seed) }
	if math.IsInf(s.Expected, 0) {
		return nil, fmt.Errorf("spec.streams: the rates are without bound")
	}
	return s, nil
}
