// Package bench measures Errand on the machine it runs on: server, worker and client are processes of their own that
// talk through the public API, and the store waits for the disk. Workloads are named as in the documentation.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/placement/crowd"
	"github.com/errand-run/errand/shared/version"
)

// Options of a measurement.
type Options struct {
	Runs   int           // of W1, W1b and W5, and at most as many of the others
	Repeat int           // repetitions; figures are medians with their range
	Only   []string      // workloads; all when empty
	Idle   time.Duration // how long idling is measured
	Rest   int           // runs that W8 has stored
	// Dir is where the data files of the measurement are made and removed; the system's folder for temporary files when
	// empty. Its disk is what is measured.
	Dir string
	// Profile is a folder for CPU profiles of the server, one for each workload and repetition; none when empty.
	Profile string
	// Tell takes a line about what is going on. May be nil.
	Tell func(format string, args ...any)
}

// Limits of Options.
const (
	MaxRuns   = 1_000_000
	MinRest   = 1000
	MaxRest   = 20_000_000
	MaxRepeat = 100
	MinIdle   = 100 * time.Millisecond
	MaxIdle   = time.Hour
)

// Report is what was measured, and on what.
type Report struct {
	Machine   Machine    `json:"machine"`
	Version   string     `json:"version"`
	Go        string     `json:"go"`
	Store     string     `json:"store"` // driver and sync policy
	Repeat    int        `json:"repeat"`
	Workloads []Workload `json:"workloads"`
}

// Workload is one of them with its figures.
type Workload struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Figures []Figure `json:"figures"`
}

// Figure is one number: the median of all repetitions, and their range.
type Figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"`
}

// workload measures one repetition.
type workload struct {
	name string
	what func(o *Options) string
	run  func(ctx context.Context, o *Options, m *measurement) error
}

var workloads = []workload{
	{"idle", func(o *Options) string {
		return fmt.Sprintf("nothing to do for %s, a worker connected", o.Idle)
	}, func(ctx context.Context, o *Options, m *measurement) error { return m.idle(ctx, o.Idle) }},
	{"W1", func(o *Options) string {
		return fmt.Sprintf("%d no-op runs, one submit per call from %d clients, %d slots in one worker", o.Runs, submitters, poolSlots)
	}, func(ctx context.Context, o *Options, m *measurement) error { return m.throughput(ctx, o.Runs, 1) }},
	{"W1b", func(o *Options) string {
		return fmt.Sprintf("%d no-op runs, submitted in batches of %d", o.Runs, batchSize)
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.throughput(ctx, o.Runs, batchSize)
	}},
	{"W2", func(o *Options) string {
		return fmt.Sprintf("idle system, %d runs one at a time", min(o.Runs, oneByOne))
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.latency(ctx, min(o.Runs, oneByOne))
	}},
	{"W3", func(o *Options) string {
		return fmt.Sprintf("%d runs of %d durable steps, %d at a time", min(o.Runs, stepRuns), stepsPerRun, stepSlots)
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.steps(ctx, min(o.Runs, stepRuns))
	}},
	{"W5", func(o *Options) string {
		return fmt.Sprintf("%d runs parked for a signal, after as many plain ones; then all signaled, one a call from %d clients", o.Runs, submitters)
	}, func(ctx context.Context, o *Options, m *measurement) error { return m.parked(ctx, o.Runs) }},
	{"W6", func(o *Options) string {
		return killing(o) + "; the server is killed and started again"
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.killed(ctx, flight(o), serverDies)
	}},
	{"W6w", func(o *Options) string {
		return killing(o) + "; the worker is killed and another one started"
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.killed(ctx, flight(o), workerDies)
	}},
	{"W6l", func(o *Options) string {
		return killing(o) + "; the worker is killed, which the server's local runtime had started"
	}, func(ctx context.Context, o *Options, m *measurement) error {
		return m.killed(ctx, flight(o), localWorkerDies)
	}},
	{"W7", func(o *Options) string {
		return fmt.Sprintf("a decision pass over %d queued runs of %d tenants, %d targets; in this process", queued(o), crowd.Tenants, crowd.Targets)
	}, func(_ context.Context, o *Options, m *measurement) error { return m.decisions(queued(o)) }},
	{"W8", func(o *Options) string {
		return fmt.Sprintf("%d runs stored, half of them finished; %d reads of each kind while W1 goes on", o.Rest, reads(o.Rest))
	}, func(ctx context.Context, o *Options, m *measurement) error { return m.stored(ctx, o.Rest) }},
}

// missing are workloads that need what is not there, and what that is.
var missing = map[string]string{
	"W4": "a run with 1,000 children, joined: it needs child runs, which this version does not have",
}

// CheckName tells what is wrong with the name of a workload.
func CheckName(name string) error {
	switch {
	case slices.Contains(Names(), name):
		return nil
	case missing[name] != "":
		return fmt.Errorf("workload %s is %s", name, missing[name])
	}
	return fmt.Errorf("no workload %.40q: want some of %s", name, strings.Join(Names(), ", "))
}

// Names lists the workloads.
func Names() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

// Run measures. Repetitions go round over all workloads, so that a machine that changes its speed meanwhile changes it
// for all of them.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Tell == nil {
		o.Tell = func(string, ...any) {}
	}
	dir, err := os.MkdirTemp(o.Dir, "errand-bench-*")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	report := &Report{Version: version.Get().Version, Go: version.Get().Go, Repeat: o.Repeat}
	err = report.measure(ctx, &o, dir)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return report, nil
}

func (r *Report) measure(ctx context.Context, o *Options, dir string) error {
	var err error
	if r.Machine, err = probe(ctx, dir); err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(workloads), func(w workload) bool {
		return len(o.Only) > 0 && !slices.Contains(o.Only, w.name)
	})
	for _, w := range chosen {
		r.Workloads = append(r.Workloads, Workload{Name: w.name, What: w.what(o)})
	}
	for n := range o.Repeat {
		for i, w := range chosen {
			o.Tell("%s, %d of %d", w.name, n+1, o.Repeat)
			profile := ""
			if o.Profile != "" {
				profile = filepath.Join(o.Profile, fmt.Sprintf("%s-%d", w.name, n+1)+profileEnding)
			}
			began := time.Now()
			m, err := repetition(ctx, o, w, dir, profile)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if m.store != "" {
				r.Store = m.store
			}
			r.Workloads[i].add(m.figures)
			o.Tell("%s took %s: %s", w.name, time.Since(began).Round(time.Millisecond), m.summary())
		}
	}
	return nil
}

const profileEnding = ".pprof"

// repetition runs a workload once, in a folder of its own.
func repetition(ctx context.Context, o *Options, w workload, parent, profile string) (*measurement, error) {
	dir, err := os.MkdirTemp(parent, "run-*")
	if err != nil {
		return nil, err
	}
	m := &measurement{dir: dir, profile: profile}
	err = w.run(ctx, o, m)
	if stopErr := m.stop(); err == nil {
		err = stopErr
	}
	return m, errors.Join(err, os.RemoveAll(dir))
}

// add merges one repetition.
func (w *Workload) add(figures []Figure) {
	for _, f := range figures {
		i := slices.IndexFunc(w.Figures, func(x Figure) bool { return x.Name == f.Name })
		if i < 0 {
			w.Figures = append(w.Figures, Figure{Name: f.Name, Unit: f.Unit})
			i = len(w.Figures) - 1
		}
		w.Figures[i].take(f.Values...)
	}
}

// take adds values and brings median and range up to date.
func (f *Figure) take(values ...float64) {
	f.Values = append(f.Values, values...)
	sorted := slices.Sorted(slices.Values(f.Values))
	f.Min, f.Max = sorted[0], sorted[len(sorted)-1]
	f.Median = sorted[len(sorted)/2]
	if len(sorted)%2 == 0 {
		f.Median = (sorted[len(sorted)/2-1] + f.Median) / 2
	}
}

// percentile of durations that are sorted.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p))]
}
