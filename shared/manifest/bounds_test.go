package manifest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// endless yields the text over and over, up to a size, without holding it.
func endless(text string, size int64) io.Reader { return io.LimitReader(&repeater{text: text}, size) }

type repeater struct {
	text string
	at   int
}

func (r *repeater) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
	}
	return len(p), nil
}

func laughs() string {
	var b strings.Builder
	b.WriteString(agent("  input:\n    schema:\n      a0: &a0 {lol: lol}\n"))
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "      a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	return b.String()
}

func stairs(levels int) string {
	var b strings.Builder
	for i := range levels {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	return b.String()
}

// Input of any kind costs a bounded amount of memory, and so of time: what is
// asserted is the memory that was allocated in all, freed or not.
func TestHostileInputIsRefusedWithinBounds(t *testing.T) {
	const mib = 1 << 20
	tests := map[string]struct {
		input io.Reader
		want  string // the beginning of the error
		most  uint64 // bytes
	}{
		"a file of 100 MB": {
			endless("a: 1\n", 100_000_000), "m: larger than 8 MiB, the limit of a file; split it", 64 * mib,
		},
		"a document of more than 1 MiB": {
			endless("# no end\n", 2*mib), "m:1:1: the document is larger than 1 MiB, the limit of a document; split it", 16 * mib,
		},
		"a billion laughs": {
			strings.NewReader(laughs()), "m:8:11: spec.input.schema.a10[0][0]", 96 * mib,
		},
		"a billion merges": {
			strings.NewReader(agent("  budget: &b {<<: [" + strings.Repeat("*b, ", 50) + "]}\n")), "m:6:19: spec.budget: nested more than 64 levels deep, the limit; flatten it", 64 * mib,
		},
		"an alias of itself": {
			strings.NewReader(agent("  input: {schema: &s [*s]}\n")), "m:6:19: spec.input.schema[0][0]", mib,
		},
		"10,000 levels of brackets": {
			strings.NewReader(strings.Repeat("[", 10_000)), "m:1:65: nested more than 64 levels deep, the limit; flatten it", mib,
		},
		"10,000 levels of braces": {
			strings.NewReader(strings.Repeat("{a: ", 10_000)), "m:1:", mib,
		},
		"10,000 levels of dashes": {
			strings.NewReader(strings.Repeat("- ", 10_000)), "m:1:1", mib,
		},
		"10,000 levels of keys": {
			strings.NewReader(strings.Repeat("? ", 10_000)), "m:1:1", mib,
		},
		"1,000 levels of indentation": {
			strings.NewReader(stairs(1_000)), "m:65:66: nested more than 64 levels deep", 4 * mib,
		},
		"levels that only the reader counts": {
			strings.NewReader(agent("  input: {schema: " + strings.Repeat("[", 63) + strings.Repeat("]", 63) + "}\n")), "m:6:81: spec.input.schema[0]", mib,
		},
		"more elements than a set may have": {
			endless("-\n", mib), "m:1:1: more than 250000 elements in one set; apply it in several", 16 * mib,
		},
		"as many elements as a set may have": {
			endless("-\n", 2*(MaxElements/2-1)), "m:1:1: a list where an object is needed", 96 * mib,
		},
		"more documents than a set may have": {
			endless("---\na\n", 6*(MaxDocuments+1)), "m:2:1: a text (\"a\") where an object is needed", 64 * mib,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			set, err := Parse([]File{{Name: "m", Data: tt.input}}, Options{})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("taken, with %d objects", len(set.Objects))
			}
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got error %.300q, want it to begin with %q", err.Error(), tt.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > tt.most {
				t.Errorf("%d KiB were allocated, want at most %d", got>>10, tt.most>>10)
			}
		})
	}
}

func TestALargeFileIsNotReadToItsEnd(t *testing.T) {
	name := filepath.Join(t.TempDir(), "large.yaml")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(100_000_000); err != nil { // sparse: it takes no room
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Load([]string{name})
	runtime.ReadMemStats(&after)
	if want := name + ": larger than 8 MiB, the limit of a file; split it"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Errorf("%d KiB were allocated, want at most 64 MiB", got>>10)
	}
}

func TestTooManyFiles(t *testing.T) {
	var files []File
	for range MaxFiles + 2 {
		files = append(files, File{Name: "m", Data: strings.NewReader("")})
	}
	_, err := Parse(files, Options{})
	if want := "m: more than 1000 files in one set; apply them in several"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}
