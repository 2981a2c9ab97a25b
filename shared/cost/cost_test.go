//go:build !race

package cost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Environment of these tests.
const (
	// envWalk makes this binary walk a path and end: "INDEX COUNT".
	envWalk = "ERRAND_COST_WALK"
)

// What may be added to the recorded figures. Allocations are the same each time, but for timers of the Go runtime and
// for growing tables; instructions vary with the seeds of maps and with the processor.
const (
	allocationTolerance  = 0.10
	instructionTolerance = 0.05
)

const again = "if that is what you want, record it anew: make cost RECORD=1"

func TestMain(m *testing.M) {
	if text := os.Getenv(envWalk); text != "" {
		if err := walkAlone(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// walkAlone is all that a counted process does.
func walkAlone(text string) error {
	var i, n int
	if _, err := fmt.Sscanf(text, "%d %d", &i, &n); err != nil || i < 0 || i >= len(paths) {
		return fmt.Errorf("%s=%q: want an index and a count", envWalk, text)
	}
	dir, err := os.MkdirTemp("", "errand-cost-*")
	if err != nil {
		return err
	}
	walk, err := paths[i].open(dir)
	if err == nil {
		err = walk(n)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// TestCost counts, and compares with what was recorded.
func TestCost(t *testing.T) {
	record := os.Getenv(envCost) == "record"
	count := counter(t)
	book, err := readBook(bookFile)
	if err != nil && !record {
		t.Fatal(err)
	}
	now := newBook()
	for i := range paths {
		p := &paths[i]
		t.Run(p.name, func(t *testing.T) {
			var f figures
			f.allocations, f.bytes = allocations(t, p)
			if count != nil {
				f.instructions = count(t, i)
			}
			t.Logf("%.0f instructions, %.1f allocations, %.0f bytes", f.instructions, f.allocations, f.bytes)
			now.figures[p.name] = f
			if record {
				if count == nil {
					f.instructions = book.figures[p.name].instructions
					now.figures[p.name] = f
				}
				return
			}
			dearer, cheaper := book.compare(p.name, f)
			for _, what := range dearer {
				t.Error(what)
			}
			for _, what := range cheaper {
				t.Log(what)
			}
		})
	}
	if record && !t.Failed() {
		if err := now.write(bookFile); err != nil {
			t.Fatal(err)
		}
	}
}

// compare tells what has become dearer than it was, and what cheaper.
func (b *book) compare(name string, now figures) (dearer, cheaper []string) {
	then, ok := b.figures[name]
	if !ok {
		return []string{fmt.Sprintf("%s has no figures for it: make cost RECORD=1", bookFile)}, nil
	}
	check := func(what string, now, then, tolerance float64) {
		switch {
		case now > then*(1+tolerance):
			dearer = append(dearer, fmt.Sprintf("%.1f %s each, recorded were %.1f (%+.1f%%): make it cheaper, or %s", now, what, then, 100*(now/then-1), again))
		case now < then*(1-tolerance):
			cheaper = append(cheaper, fmt.Sprintf("%.1f %s each, recorded were %.1f (%+.1f%%): to keep that, make cost RECORD=1", now, what, then, 100*(now/then-1)))
		}
	}
	check("allocations", now.allocations, then.allocations, allocationTolerance)
	if now.instructions > 0 && b.arch == runtime.GOARCH {
		check("instructions", now.instructions, then.instructions, instructionTolerance)
	}
	return dearer, cheaper
}

func TestWhatIsDearerIsTold(t *testing.T) {
	b := newBook()
	for i := range paths {
		b.figures[paths[i].name] = figures{instructions: 1000, allocations: 10, bytes: 500}
	}
	file := filepath.Join(t.TempDir(), "cost.tsv")
	if err := b.write(file); err != nil {
		t.Fatal(err)
	}
	read, err := readBook(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, read, cmp.AllowUnexported(book{}, figures{})); diff != "" {
		t.Errorf("written and read (- written, + read):\n%s", diff)
	}
	other := newBook()
	other.arch, other.figures = "pdp11", b.figures
	tests := map[string]struct {
		book            *book
		now             figures
		dearer, cheaper int
	}{
		"the same":                                 {b, figures{1000, 10, 500}, 0, 0},
		"within tolerance":                         {b, figures{1049, 10.9, 900}, 0, 0},
		"more allocations":                         {b, figures{1000, 11.1, 500}, 1, 0},
		"more instructions":                        {b, figures{1051, 10, 500}, 1, 0},
		"more of both":                             {b, figures{2000, 20, 500}, 2, 0},
		"fewer of both":                            {b, figures{900, 8, 500}, 0, 2},
		"instructions were not counted":            {b, figures{0, 10, 500}, 0, 0},
		"instructions were counted elsewhere":      {other, figures{2000, 10, 500}, 0, 0},
		"nothing is recorded, so nothing is known": {newBook(), figures{1000, 10, 500}, 1, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dearer, cheaper := tt.book.compare(paths[0].name, tt.now)
			if len(dearer) != tt.dearer || len(cheaper) != tt.cheaper {
				t.Errorf("dearer %q, cheaper %q: want %d and %d", dearer, cheaper, tt.dearer, tt.cheaper)
			}
		})
	}
}

// allocations counts what one walk allocates.
func allocations(t *testing.T, p *path) (count, bytes float64) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	walk, err := p.open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	if err := walk(p.n); err != nil { // pools are filled
		t.Fatal(err)
	}
	runtime.ReadMemStats(&before)
	if err := walk(p.n); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	n := float64(p.n)
	return float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n
}

// counter is how instructions are counted; nil when they are not to be, or cannot be here.
func counter(t *testing.T) func(t *testing.T, i int) float64 {
	if os.Getenv(envCost) == "" {
		return nil
	}
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		t.Log("valgrind is not installed: instructions are not counted")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, i int) float64 {
		n := paths[i].n
		var once, twice int64
		var faults [2]error
		var both sync.WaitGroup
		both.Go(func() { once, faults[0] = callgrind(t.Context(), valgrind, self, i, n) })
		both.Go(func() { twice, faults[1] = callgrind(t.Context(), valgrind, self, i, 2*n) })
		both.Wait()
		if err := errors.Join(faults[:]...); err != nil {
			t.Fatal(err)
		}
		return float64(twice-once) / float64(n) // starting up is in both
	}
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// callgrind counts the instructions of a process that walks a path n times. It does so on one thread and without
// garbage collection, whose turns would not be the same each time: what that costs, allocations tell.
func callgrind(ctx context.Context, valgrind, self string, i, n int) (int64, error) {
	cmd := exec.CommandContext(ctx, valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", envWalk, i, n), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	m := collected.FindSubmatch(out)
	if err == nil && m == nil {
		err = errors.New("it has counted nothing")
	}
	if err != nil {
		return 0, fmt.Errorf("callgrind: %w\n%s", err, out)
	}
	return strconv.ParseInt(string(m[1]), 10, 64)
}

// bookFile has the recorded figures.
var bookFile = filepath.Join("..", "..", "docs", "cost.tsv")

// figures are those of one walk.
type figures struct{ instructions, allocations, bytes float64 }

// book is what was recorded.
type book struct {
	arch    string
	figures map[string]figures
}

func newBook() *book { return &book{runtime.GOARCH, make(map[string]figures)} }

const bookHead = "# What each takes once, as `make cost RECORD=1` counted it last.\n"

func (b *book) write(file string) error {
	var s strings.Builder
	s.WriteString(bookHead)
	fmt.Fprintf(&s, "# %s %s\n", runtime.Version(), b.arch)
	s.WriteString("path\tinstructions\tallocations\tbytes allocated\n")
	for i := range paths {
		f := b.figures[paths[i].name]
		fmt.Fprintf(&s, "%s\t%.0f\t%.1f\t%.0f\n", paths[i].name, f.instructions, f.allocations, f.bytes)
	}
	return os.WriteFile(file, []byte(s.String()), 0o644)
}

func readBook(file string) (*book, error) {
	b := newBook()
	text, err := os.ReadFile(file)
	if err != nil {
		return b, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if i == 1 {
			b.arch = line[strings.LastIndex(line, " ")+1:]
		}
		if i < 3 {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 4 {
			return b, fmt.Errorf("%s:%d: %d columns, want 4", file, i+1, len(cells))
		}
		var f figures
		for k, to := range []*float64{&f.instructions, &f.allocations, &f.bytes} {
			if *to, err = strconv.ParseFloat(cells[k+1], 64); err != nil {
				return b, fmt.Errorf("%s:%d: column %d: %w", file, i+1, k+2, err)
			}
		}
		b.figures[cells[0]] = f
	}
	return b, nil
}
