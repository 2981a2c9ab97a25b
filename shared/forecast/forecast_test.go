package forecast_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/run"
)

var monday = run.At(time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC))

func agentOf(name string, change ...func(*fleet.Agent)) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: name}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"agent"}}}
	for _, c := range change {
		c(a)
	}
	a.SetDefaults()
	return a
}

func targetOf(name string, runs int, change ...func(*fleet.Target)) *fleet.Target {
	t := &fleet.Target{Meta: fleet.Meta{Name: name}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: runs}}
	for _, c := range change {
		c(t)
	}
	t.SetDefaults()
	return t
}

func tenantOf(name string, weight int, change ...func(*fleet.Tenant)) *fleet.Tenant {
	t := &fleet.Tenant{Meta: fleet.Meta{Name: name}, Weight: weight}
	for _, c := range change {
		c(t)
	}
	t.SetDefaults()
	return t
}

func seconds(s float64) float64 { return s * float64(time.Second) }

// play runs streams against objects.
func play(t testing.TB, window time.Duration, objects []fleet.Object, streams []forecast.Stream, change ...func(*forecast.Options)) *forecast.Result {
	t.Helper()
	o := forecast.Options{Start: monday, Window: window, Seed: 1}
	for _, c := range change {
		c(&o)
	}
	r, err := forecast.Run(objects, forecast.Streams(streams, monday, window, 1), o)
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, r)
	return r
}

// conserved asserts that every submission is somewhere, once.
func conserved(t testing.TB, r *forecast.Result) {
	t.Helper()
	var rows []forecast.Row
	rows = append(append(append(append(rows, r.Total), r.Tenants...), r.Agents...), r.Pairs...)
	for _, row := range rows {
		if sum := row.Succeeded + row.Failed + row.Shed + row.Refused + row.Waiting + row.Running; sum != row.Arrived {
			t.Errorf("%s: %d arrived, %d are accounted for: %+v", row.Name(), row.Arrived, sum, row)
		}
	}
}

// erlangC is the mean wait in M/M/c, in units of the mean duration.
func erlangC(c int, load float64) float64 {
	term, sum := 1.0, 1.0
	for k := 1; k < c; k++ {
		term *= load / float64(k)
		sum += term
	}
	term *= load / float64(c)
	last := term * float64(c) / (float64(c) - load)
	return last / (sum + last) / (float64(c) - load)
}

func TestWaitsAgreeWithQueueingTheory(t *testing.T) {
	for name, tc := range map[string]struct {
		slots int
		load  float64 // mean runs in progress
	}{
		"one slot, half used":        {1, 0.5},
		"one slot, four fifths used": {1, 0.8},
		"ten slots, 85 % used":       {10, 8.5},
		"fifty slots, 46 used":       {50, 46},
	} {
		t.Run(name, func(t *testing.T) {
			const mean = 20.0
			r := play(t, time.Duration(25_000/tc.load*mean)*time.Second, []fleet.Object{agentOf("a"), targetOf("t", tc.slots)}, []forecast.Stream{{
				Kind:    &forecast.Kind{Tenant: "acme", Agent: "a", Duration: forecast.Exponential(seconds(mean))},
				PerHour: tc.load / mean * 3600,
			}})
			want := erlangC(tc.slots, tc.load) * mean
			if got := r.Total.Wait.Mean.Std().Seconds(); math.Abs(got-want) > 0.2*want+0.02 {
				t.Errorf("mean wait %.3f s, theory says %.3f s", got, want)
			}
		})
	}
}

func TestTheSameSeedGivesTheSameBytes(t *testing.T) {
	once := func() string {
		r := play(t, time.Hour, busyFleet(), busyStreams())
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	a, b := once(), once()
	if a != b {
		t.Errorf("two results:\n%.2000s\n%.2000s", a, b)
	}
}

// busyFleet has a bit of everything.
func busyFleet() []fleet.Object {
	return []fleet.Object{
		agentOf("check", func(a *fleet.Agent) { a.Concurrency.PerTenant = 3; a.Run.Slots = 4 }),
		agentOf("big", func(a *fleet.Agent) { a.Needs.Slots = 3; a.Shape = fleet.Job }),
		agentOf("books", func(a *fleet.Agent) { a.Shape = fleet.Instance }),
		agentOf("gpu", func(a *fleet.Agent) { a.Needs.Accelerator = "l4"; a.Timeouts.Queue = fleet.Duration(10 * time.Minute) }),
		targetOf("t1", 6), targetOf("t2", 4), targetOf("farm", 0, func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll; t.Accelerator = "l4" }),
		tenantOf("acme", 2, func(t *fleet.Tenant) { t.Quota.Running = 5; t.Quota.Queued = 50 }),
		tenantOf("beta", 1),
	}
}

func busyStreams() []forecast.Stream {
	var list []forecast.Stream
	for i, tenant := range []string{"acme", "beta", "gamma"} {
		for _, agent := range []string{"check", "big", "books", "gpu"} {
			list = append(list, forecast.Stream{
				Kind: &forecast.Kind{
					Tenant: tenant, Agent: agent, Duration: forecast.Lognormal(seconds(3), seconds(20)),
					Failures:    []forecast.Failure{{Class: run.ClassInfrastructure, Rate: 0.1}, {Class: run.ClassUser, Rate: 0.1}},
					InputTokens: forecast.Constant(1000), InputUSD: 3,
				},
				PerHour: 120 * float64(i+1), Bursts: []forecast.Burst{{At: 10 * time.Minute, For: 5 * time.Minute, PerHour: 2000}},
				Batches: []forecast.Batch{{At: 30 * time.Minute, Count: 20}},
			})
		}
	}
	return list
}

// BenchmarkDay is a day of a million runs of 50 tenants and 10 agents on 20 targets.
func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		r := play(b, 24*time.Hour, dayFleet(), dayStreams(1_000_000))
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(r.Total.Arrived), "ns/run")
	}
}

func dayFleet() []fleet.Object {
	var list []fleet.Object
	for i := range 10 {
		list = append(list, agentOf(fmt.Sprintf("agent-%d", i), func(a *fleet.Agent) { a.Run.Slots = 4 }))
	}
	for i := range 20 {
		list = append(list, targetOf(fmt.Sprintf("target-%02d", i), 4))
	}
	for i := range 50 {
		list = append(list, tenantOf(fmt.Sprintf("tenant-%02d", i), 1+i%3, func(t *fleet.Tenant) {
			if i%5 == 0 {
				t.Quota.Running = 4
			}
		}))
	}
	return list
}

func dayStreams(runs float64) []forecast.Stream {
	var list []forecast.Stream
	for i := range 50 {
		for k := range 2 {
			list = append(list, forecast.Stream{
				Kind: &forecast.Kind{
					Tenant: fmt.Sprintf("tenant-%02d", i), Agent: fmt.Sprintf("agent-%d", (i+k)%10),
					Duration: forecast.Lognormal(seconds(3), seconds(12)),
					Failures: []forecast.Failure{{Class: run.ClassInfrastructure, Rate: 0.02}},
				},
				PerHour: runs / 24 / 100,
				Daily:   []float64{.4, .3, .3, .3, .4, .6, .9, 1.2, 1.5, 1.7, 1.7, 1.6, 1.4, 1.6, 1.7, 1.6, 1.4, 1.2, 1, .9, .8, .7, .6, .5},
			})
		}
	}
	return list
}
