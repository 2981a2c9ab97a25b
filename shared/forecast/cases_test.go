package forecast_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/run"
)

// stream makes runs of agent a.
func stream(tenant string, perHour float64, took forecast.Dist, change ...func(*forecast.Stream)) forecast.Stream {
	s := forecast.Stream{Kind: &forecast.Kind{Tenant: tenant, Agent: "a", Duration: took}, PerHour: perHour, Even: true}
	for _, c := range change {
		c(&s)
	}
	return s
}

// batch makes runs of agent a, all at once.
func batch(tenant string, count int, took forecast.Dist) forecast.Stream {
	return stream(tenant, 0, took, func(s *forecast.Stream) { s.Batches = []forecast.Batch{{Count: count}} })
}

func of(rows []forecast.Row, tenant string) forecast.Row {
	for _, r := range rows {
		if r.Tenant == tenant {
			return r
		}
	}
	return forecast.Row{}
}

func TestBackloggedTenantsShareByWeight(t *testing.T) {
	ten := forecast.Constant(seconds(10))
	r := play(t, time.Hour, []fleet.Object{agentOf("a"), targetOf("t", 6), tenantOf("two", 2), tenantOf("one", 1)},
		[]forecast.Stream{batch("two", 5000, ten), batch("one", 5000, ten)})
	two, one := of(r.Tenants, "two").Succeeded, of(r.Tenants, "one").Succeeded
	if total := two + one; total < 6*359 {
		t.Errorf("%d runs ended; six slots have room for %d in an hour", total, 6*360)
	}
	if math.Abs(float64(two)-2*float64(one)) > 8 {
		t.Errorf("%d runs of weight 2 and %d of weight 1 ended, want two to one", two, one)
	}
}

// main is the cause that most of a tenant's waiting went to.
func mainCause(r forecast.Row) forecast.Cause {
	best := forecast.Cause("")
	for _, c := range forecast.Causes {
		if r.Causes[c] > r.Causes[best] {
			best = c
		}
	}
	return best
}

func TestWaitingHasItsCause(t *testing.T) {
	ten := forecast.Constant(seconds(10))
	for name, tc := range map[string]struct {
		objects []fleet.Object
		streams []forecast.Stream
		workers []forecast.Workers
		want    forecast.Cause
	}{
		"the tenant's own quota": {
			objects: []fleet.Object{agentOf("a"), targetOf("t", 10), tenantOf("acme", 1, func(t *fleet.Tenant) { t.Quota.Running = 2 })},
			streams: []forecast.Stream{batch("acme", 100, ten)}, want: forecast.CauseQuota,
		},
		"the agent's limit": {
			objects: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Concurrency.Max = 2 }), targetOf("t", 10)},
			streams: []forecast.Stream{batch("acme", 100, ten), batch("beta", 100, ten)}, want: forecast.CauseConcurrency,
		},
		"the agent's limit for each tenant": {
			objects: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Concurrency.PerTenant = 2 }), targetOf("t", 10)},
			streams: []forecast.Stream{batch("acme", 100, ten)}, want: forecast.CausePerTenant,
		},
		"slots held by its own runs": {
			objects: []fleet.Object{agentOf("a"), targetOf("t", 2)},
			streams: []forecast.Stream{batch("acme", 100, ten)}, want: forecast.CauseOwn,
		},
		"slots held by others": {
			objects: []fleet.Object{agentOf("a"), targetOf("t", 8)},
			streams: []forecast.Stream{stream("acme", 360, forecast.Constant(seconds(1))), batch("flood", 9000, ten)}, want: forecast.CauseShare,
		},
		"the turn before in a session": {
			objects: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Shape = fleet.Instance }), targetOf("t", 8)},
			streams: []forecast.Stream{batch("acme", 50, ten)}, want: forecast.CauseSession,
		},
		"no target that could take it": {
			objects: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Needs.Regions = []string{"mars"} }), targetOf("t", 8)},
			streams: []forecast.Stream{batch("acme", 5, ten)}, want: forecast.CauseUnschedulable,
		},
		"no worker": {
			objects: []fleet.Object{agentOf("a"), targetOf("t", 0, func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll })},
			streams: []forecast.Stream{batch("acme", 5, ten)}, want: forecast.CauseCapacity,
			workers: []forecast.Workers{{Target: "t", Agents: []string{"a"}, Slots: 1, Count: 1, From: 50 * time.Minute}},
		},
		"backing off": {
			objects: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Retry.MaxAttempts = 100 }), targetOf("t", 50)},
			streams: []forecast.Stream{stream("acme", 60, ten, func(s *forecast.Stream) {
				s.Kind.Failures = []forecast.Failure{{Class: run.ClassUser, Rate: 0.9}}
			})}, want: forecast.CauseBackoff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := play(t, time.Hour, tc.objects, tc.streams, func(o *forecast.Options) { o.Workers = tc.workers })
			row := of(r.Tenants, "acme")
			if got := mainCause(row); got != tc.want {
				t.Errorf("most of the waiting went to %q, want %q: %v", got, tc.want, row.Causes)
			}
			// All of the waiting is in the causes: the queue and the backoffs over time, integrated.
			if tc.want != forecast.CauseUnschedulable && tc.want != forecast.CauseBackoff {
				sum := 0.0
				for _, x := range r.Series.Tenants {
					for _, n := range x.Queued {
						sum += n * r.Series.Step.Std().Seconds()
					}
				}
				if got := float64(r.Total.Waited()); math.Abs(got-sum) > 0.01*sum+1 {
					t.Errorf("the causes add up to %.0f run-seconds, the queue to %.0f", got, sum)
				}
			}
		})
	}
}

func TestWhatBecomesOfRuns(t *testing.T) {
	ten := forecast.Constant(seconds(10))
	failing := func(class run.Class, rate float64) func(*forecast.Stream) {
		return func(s *forecast.Stream) { s.Kind.Failures = []forecast.Failure{{Class: class, Rate: rate}} }
	}
	for name, tc := range map[string]struct {
		agent  func(*fleet.Agent)
		tenant func(*fleet.Tenant)
		stream forecast.Stream
		want   func(forecast.Row) bool
	}{
		"a quota of queued runs sheds what passes it": {
			tenant: func(t *fleet.Tenant) { t.Quota.Queued = 7 }, stream: batch("acme", 100, ten),
			want: func(r forecast.Row) bool { return r.ShedByQuota == 93 && r.Succeeded == 7 },
		},
		"backpressure sheds what could not start at once": {
			agent: func(a *fleet.Agent) { a.Backpressure = fleet.BackpressureShed }, stream: stream("acme", 3600, ten),
			want: func(r forecast.Row) bool { return r.ShedByBackpressure > 2000 && r.ShedByQuota == 0 },
		},
		"a priority that the tenant may not ask for is refused": {
			tenant: func(t *fleet.Tenant) { t.PriorityMax = 10 },
			stream: stream("acme", 60, ten, func(s *forecast.Stream) { s.Kind.Priority = new(90) }),
			want:   func(r forecast.Row) bool { return r.Refused == r.Arrived && r.Arrived >= 59 },
		},
		"what waits too long ends": {
			agent: func(a *fleet.Agent) { a.Timeouts.Queue = fleet.Duration(time.Minute) }, stream: batch("acme", 100, ten),
			want: func(r forecast.Row) bool { return r.Expired == 100-4*6 && r.Wait.Max == forecast.Span(time.Minute) },
		},
		"a run ends at its deadline, waiting or running": {
			agent: func(a *fleet.Agent) {
				a.Timeouts.Run = fleet.Duration(25 * time.Second)
				a.Timeouts.Attempt = a.Timeouts.Run
			},
			stream: batch("acme", 100, ten),
			want:   func(r forecast.Row) bool { return r.Succeeded == 8 && r.Late == 92 },
		},
		"an attempt is cut at its time-out and tried again": {
			agent:  func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(2 * time.Second); a.Retry.MaxAttempts = 3 },
			stream: batch("acme", 10, ten),
			want: func(r forecast.Row) bool {
				return r.Failed == 10 && r.Retries == 20 && r.SlotTime == 60
			},
		},
		"failures of class user are spent": {
			agent: func(a *fleet.Agent) { a.Retry.MaxAttempts = 2 }, stream: stream("acme", 60, ten, failing(run.ClassUser, 1)),
			want: func(r forecast.Row) bool {
				return r.Failed >= 58 && r.Retries >= 58 && r.Retries <= 60 && r.Succeeded == 0
			},
		},
		"failures of the infrastructure are given back": {
			agent: func(a *fleet.Agent) { a.Retry.MaxAttempts = 1 }, stream: stream("acme", 60, ten, failing(run.ClassInfrastructure, 0.5)),
			want: func(r forecast.Row) bool { return r.Failed == 0 && r.Retries > 30 },
		},
		"a rule of the policy ends a run": {
			agent: func(a *fleet.Agent) {
				a.Retry.On = []fleet.RetryRule{{Class: "infrastructure", Action: fleet.ActionFail}}
			},
			stream: stream("acme", 60, ten, failing(run.ClassInfrastructure, 1)),
			want:   func(r forecast.Row) bool { return r.Retries == 0 && r.Failed >= 59 },
		},
		"tokens and seconds cost what they cost": {
			stream: stream("acme", 60, ten, func(s *forecast.Stream) {
				s.Kind.InputTokens, s.Kind.InputUSD = forecast.Constant(1000), 2
				s.Kind.OutputTokens, s.Kind.OutputUSD = forecast.Constant(500), 10
			}),
			want: func(r forecast.Row) bool {
				n := float64(r.Succeeded)
				return r.Tokens == 1500*r.Succeeded && math.Abs(r.TokenUSD-n*0.007) < 1e-6 && math.Abs(r.ComputeUSD-n*(0.01+10*0.001)) < 1e-6
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, tenant := agentOf("a"), tenantOf("acme", 1)
			if tc.agent != nil {
				tc.agent(a)
			}
			if tc.tenant != nil {
				tc.tenant(tenant)
			}
			target := targetOf("t", 4, func(t *fleet.Target) { t.Cost = fleet.Cost{PerRunUSD: 0.01, PerRunSecondUSD: 0.001} })
			r := play(t, time.Hour, []fleet.Object{a, tenant, target}, []forecast.Stream{tc.stream})
			if row := of(r.Tenants, "acme"); !tc.want(row) {
				t.Errorf("got %+v", row)
			}
		})
	}
}

func TestStarvationIsTheLongestTimeWithoutAStart(t *testing.T) {
	r := play(t, time.Hour, []fleet.Object{agentOf("a"), targetOf("t", 1)}, []forecast.Stream{
		batch("long", 1, forecast.Constant(seconds(200))), stream("acme", 3600, forecast.Constant(seconds(0.1))),
	})
	got := of(r.Tenants, "acme")
	if d := got.Starved.Std(); d < 198*time.Second || d > 200*time.Second {
		t.Errorf("starved for %s, want 199 s or so", d)
	}
	if got.StarvedFrom == nil || got.StarvedFrom.After(monday.Time().Add(2*time.Second)) {
		t.Errorf("starved from %v, want the first second", got.StarvedFrom)
	}
}

func TestWorkersComeAndGo(t *testing.T) {
	farm := targetOf("farm", 0, func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll })
	r := play(t, time.Hour, []fleet.Object{agentOf("a"), farm}, []forecast.Stream{stream("acme", 3600, forecast.Constant(seconds(1)))},
		func(o *forecast.Options) {
			o.Workers = []forecast.Workers{{Target: "farm", Agents: []string{"a"}, Slots: 2, Count: 3, From: 15 * time.Minute, Until: 45 * time.Minute}}
			o.Points = 4
		})
	if diff := cmp.Diff([]float64{0, 3, 3, 0}, r.Series.Agents[0].Workers); diff != "" {
		t.Errorf("workers by quarter of an hour (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{0, 6, 6, 0}, r.Targets[0].Size); diff != "" {
		t.Errorf("slots by quarter of an hour (-want +got):\n%s", diff)
	}
	if got := r.Total.Waiting; got < 895 || got > 905 {
		t.Errorf("%d runs wait at the end, want those of the last quarter", got)
	}
	if r.Series.Running[3] > 0.01 || r.Series.Running[0] > 0 {
		t.Errorf("runs in progress while there was no worker: %v", r.Series.Running)
	}
}

// What does not fit the memory of the queue waits outside, and comes in its turn.
func TestAFullQueueLosesNothing(t *testing.T) {
	objects := []fleet.Object{agentOf("a"), targetOf("t", 4)}
	streams := []forecast.Stream{batch("acme", 500, forecast.Constant(seconds(1)))}
	r := play(t, time.Hour, objects, streams, func(o *forecast.Options) { o.MaxQueue = 10 })
	if r.Total.Succeeded != 500 || r.Total.Wait.Max.Std() != 124*time.Second {
		t.Errorf("%d succeeded, the last one after %s; want 500 and 2m4s", r.Total.Succeeded, r.Total.Wait.Max)
	}
}

func TestARunOfSeveralSlotsIsNotStarved(t *testing.T) {
	big := agentOf("big", func(a *fleet.Agent) { a.Needs.Slots = 4 })
	r := play(t, time.Hour, []fleet.Object{agentOf("a"), big, targetOf("t", 4)}, []forecast.Stream{
		stream("acme", 3600, forecast.Uniform(seconds(2), seconds(8))),
		{Kind: &forecast.Kind{Tenant: "acme", Agent: "big", Duration: forecast.Constant(seconds(5))}, PerHour: 6, Even: true},
	})
	for _, row := range r.Agents {
		if row.Agent == "big" && (row.Succeeded < 4 || row.Wait.Max > forecast.Span(10*time.Minute)) {
			t.Errorf("%d of %d large runs ended, the longest wait was %s", row.Succeeded, row.Arrived, row.Wait.Max)
		}
	}
}

func TestTheSameArrivalsMeetEveryFleet(t *testing.T) {
	streams := busyStreams()
	narrow := append(busyFleet()[:4:4], targetOf("t1", 2), targetOf("farm", 0, func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll; t.Accelerator = "l4" }))
	a, b := play(t, time.Hour, busyFleet(), streams), play(t, time.Hour, narrow, streams)
	for i := range a.Pairs {
		if a.Pairs[i].Arrived != b.Pairs[i].Arrived {
			t.Errorf("%s: %d runs arrived at one fleet, %d at the other", a.Pairs[i].Name(), a.Pairs[i].Arrived, b.Pairs[i].Arrived)
		}
	}
	if a.Total.Wait.Mean >= b.Total.Wait.Mean {
		t.Errorf("mean wait %s on many slots, %s on few", a.Total.Wait.Mean, b.Total.Wait.Mean)
	}
}

// What a pass leaves out, because it can tell that it would be refused, changes nothing.
func TestAPassThatLooksAtFewDecidesAsAWalk(t *testing.T) {
	var quotas []forecast.Stream
	limited := []fleet.Object{agentOf("a"), agentOf("b", func(a *fleet.Agent) { a.Concurrency.Max = 7 }), targetOf("t", 30), targetOf("u", 9)}
	for i := range 40 {
		name := fmt.Sprintf("tenant-%02d", i)
		limited = append(limited, tenantOf(name, 1+i%3, quota(1+i%2)))
		quotas = append(quotas, stream(name, 60, forecast.Exponential(seconds(70))), stream(name, 20, forecast.Exponential(seconds(20)), func(s *forecast.Stream) {
			s.Kind.Agent, s.Kind.Sessions = "b", []string{"x", "y"}
			s.Kind.Failures = []forecast.Failure{{Class: run.ClassUser, Rate: 0.2}}
		}))
	}
	// Large runs of few priorities come now and then, and the queue empties in between.
	var now []forecast.Stream
	for i, tenant := range []string{"acme", "beta", "gamma"} {
		for k, agent := range []string{"a", "narrow", "turns", "large"} {
			now = append(now, forecast.Stream{
				Kind:    &forecast.Kind{Tenant: tenant, Agent: agent, Priority: new(30 * k), Duration: forecast.Uniform(seconds(1), seconds(7)), Failures: []forecast.Failure{{Class: run.ClassUser, Rate: 0.2}}},
				Batches: []forecast.Batch{{At: time.Duration(i+k) * 7 * time.Second, Every: 4 * time.Minute, Count: 3 + i}},
				PerHour: 20,
			})
		}
	}
	sometimes := []fleet.Object{
		agentOf("a"), agentOf("narrow", func(a *fleet.Agent) { a.Concurrency.PerTenant = 2 }), agentOf("turns", func(a *fleet.Agent) { a.Shape = fleet.Instance }),
		agentOf("large", func(a *fleet.Agent) { a.Needs.Slots = 3 }), targetOf("t", 4), tenantOf("acme", 3), tenantOf("beta", 1, quota(3)),
	}
	for name, tc := range map[string]struct {
		objects []fleet.Object
		streams []forecast.Stream
		window  time.Duration
	}{
		"a bit of everything":     {busyFleet(), busyStreams(), 12 * time.Minute},
		"large runs at times":     {sometimes, now, 5 * time.Hour},
		"limits of every tenant":  {limited, quotas, 20 * time.Minute},
		"a day of many, too many": {append(dayFleet()[:12:12], tenantOf("tenant-01", 1, quota(1))), dayStreams(300_000), 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3) {
				text := make(map[bool]string)
				for _, always := range []bool{true, false} {
					forecast.WalkAlways(always)
					r, err := forecast.Run(tc.objects, forecast.Streams(tc.streams, monday, tc.window, seed), forecast.Options{Start: monday, Window: tc.window})
					if err != nil {
						t.Fatal(err)
					}
					form, err := json.Marshal(r)
					if err != nil {
						t.Fatal(err)
					}
					text[always] = string(form)
				}
				if text[true] != text[false] {
					t.Fatalf("seed %d: two results:\n%.3000s\n%.3000s", seed, text[true], text[false])
				}
			}
		})
	}
}

func TestWhatCannotBePlayedIsRefused(t *testing.T) {
	stop := errors.New("enough")
	objects := []fleet.Object{agentOf("a"), targetOf("t", 1)}
	unknown := stream("acme", 60, forecast.Constant(1))
	unknown.Kind.Agent = "b"
	for name, tc := range map[string]struct {
		streams []forecast.Stream
		options forecast.Options
		want    string
	}{
		"an agent that is not declared": {[]forecast.Stream{unknown}, forecast.Options{Window: time.Hour}, `agent "b", which the fleet does not declare; it declares a`},
		"a window of nothing":           {nil, forecast.Options{}, "a window of 0s"},
		"too many points":               {nil, forecast.Options{Window: time.Hour, Points: 1e6}, "want 1 to 2000"},
		"workers of no target": {
			nil, forecast.Options{Window: time.Hour, Workers: []forecast.Workers{{Target: "x"}}}, `there is no target "x"`,
		},
		"workers that do not come by themselves": {
			nil, forecast.Options{Window: time.Hour, Workers: []forecast.Workers{{Target: "t"}}}, "to which no worker comes by itself",
		},
		"somebody who has seen enough": {
			[]forecast.Stream{stream("acme", 60, forecast.Constant(1))},
			forecast.Options{Window: time.Hour, Progress: func(float64) error { return stop }}, "enough",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.options.Start = monday
			_, err := forecast.Run(objects, forecast.Streams(tc.streams, monday, time.Hour, 1), tc.options)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestStreamsComeAsTheySay(t *testing.T) {
	kind := &forecast.Kind{Tenant: "acme", Agent: "a"}
	day := make([]float64, 24)
	day[9], day[10] = 1, 3
	for name, tc := range map[string]struct {
		stream forecast.Stream
		want   map[int]float64 // by hour
	}{
		"evenly":          {forecast.Stream{PerHour: 100, Even: true, Until: 2 * time.Hour}, map[int]float64{0: 100, 1: 100}},
		"by chance":       {forecast.Stream{PerHour: 10_000, From: 3 * time.Hour, Until: 5 * time.Hour}, map[int]float64{3: 10_000, 4: 10_000}},
		"by hour of day":  {forecast.Stream{PerHour: 5_000, Daily: day}, map[int]float64{9: 5_000, 10: 15_000}},
		"in bursts":       {forecast.Stream{Bursts: []forecast.Burst{{At: 2 * time.Hour, For: 30 * time.Minute, PerHour: 20_000}}}, map[int]float64{2: 10_000}},
		"in batches":      {forecast.Stream{Batches: []forecast.Batch{{At: time.Hour, Every: 10 * time.Hour, Count: 50}}}, map[int]float64{1: 50, 11: 50, 21: 50}},
		"all of together": {forecast.Stream{PerHour: 60, Even: true, Until: time.Hour, Batches: []forecast.Batch{{Count: 40}}}, map[int]float64{0: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.stream.Kind = kind
			source := forecast.Streams([]forecast.Stream{tc.stream}, monday, 24*time.Hour, 7)
			got := make(map[int]float64)
			last, seeds, total := monday, make(map[uint64]bool), 0.0
			for {
				a, more, err := source.Next()
				if err != nil {
					t.Fatal(err)
				}
				if !more {
					break
				}
				if a.At < last || seeds[a.Seed] {
					t.Fatalf("an arrival at %d after one at %d, or with a seed that another had", a.At, last)
				}
				last, seeds[a.Seed] = a.At, true
				got[int((a.At-monday)/3_600_000)]++
				total++
			}
			for hour, want := range tc.want {
				if math.Abs(got[hour]-want) > 4*math.Sqrt(want)*boolFloat(!tc.stream.Even)+1 {
					t.Errorf("%v arrivals in hour %d, want %v", got[hour], hour, want)
				}
				delete(got, hour)
			}
			if len(got) > 0 {
				t.Errorf("arrivals in other hours: %v", got)
			}
			if want := tc.stream.Expected(24 * time.Hour); math.Abs(total-want) > 4*math.Sqrt(want)+1 {
				t.Errorf("%v arrivals, %v were expected", total, want)
			}
		})
	}
}

func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func TestLimits(t *testing.T) {
	r := &forecast.Result{Total: forecast.Row{ComputeUSD: 3}, Tenants: []forecast.Row{
		{Tenant: "acme", Arrived: 200, Shed: 4, Wait: forecast.Waits{P95: forecast.Span(40 * time.Second)}},
		{Tenant: "beta", Arrived: 100, Wait: forecast.Waits{P95: forecast.Span(time.Second)}},
	}}
	for text, want := range map[string][]string{
		"p95=30s":      {"limit p95=30s is broken: acme has 40s"},
		"p95=1m":       nil,
		"beta:p95=30s": nil,
		"acme:shed=1%": {"limit acme:shed=1% is broken: acme has 2.0%"},
		"shed=2":       nil,
		"usd=2.5":      {"limit usd=2.5 is broken: the whole has $3.00"},
	} {
		l, err := forecast.ParseLimit(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		breaches, err := forecast.Check(r, []forecast.Limit{l})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var got []string
		for _, b := range breaches {
			got = append(got, b.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "p95", "p95=", "p95=30", "p94=1s", "shed=-1%", "shed=101%", "usd=x", "usd=NaN", "max=-1s"} {
		if l, err := forecast.ParseLimit(text); err == nil {
			t.Errorf("%q was taken: %+v", text, l)
		}
	}
	l, _ := forecast.ParseLimit("gamma:p95=1s")
	if _, err := forecast.Check(r, []forecast.Limit{l}); err == nil {
		t.Error("a limit of a tenant without runs was taken")
	}
}

func TestSpansAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 3210 * time.Millisecond: "3.2s", 42 * time.Second: "42s", 95 * time.Second: "1m35s",
		14 * time.Minute: "14m", time.Hour: "1h", 130 * time.Minute: "2h10m", 75 * time.Hour: "3d3h",
	} {
		if got := forecast.Span(d).String(); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
