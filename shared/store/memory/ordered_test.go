package memory

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A set of many chunks holds what a sorted slice holds, from any bound in either direction.
func TestOrderedIsASortedSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o ordered
		var plain []string
		// Runs of inserts and removes from a small space, long enough that chunks split and empty.
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			step := rapid.SampledFrom([]int{1, 3, 7, 101}).Draw(t, "step")
			from := rapid.IntRange(0, 999).Draw(t, "from")
			insert := rapid.IntRange(0, 2).Draw(t, "insert") > 0
			for n := range rapid.IntRange(1, 900).Draw(t, "count") {
				k := fmt.Sprintf("%03d", (from+n*step)%1000)
				i, found := slices.BinarySearch(plain, k)
				switch {
				case insert && !found:
					o.insert(k, &entry{keys: [indexes]string{k}})
					plain = slices.Insert(plain, i, k)
				case !insert && found:
					o.remove(k)
					plain = slices.Delete(plain, i, i+1)
				}
			}
			lo, hi := rapid.StringMatching(`[0-9]{0,3}`).Draw(t, "lo"), rapid.StringMatching(`[0-9]{0,3}~?`).Draw(t, "hi")
			var want, rising, falling []string
			for _, k := range plain {
				if lo <= k && k < hi {
					want = append(want, k)
				}
			}
			for e := range o.rising(lo, hi) {
				rising = append(rising, e.keys[0])
			}
			for e := range o.falling(lo, hi) {
				falling = append(falling, e.keys[0])
			}
			slices.Reverse(falling)
			if d := cmp.Diff(want, rising); d != "" {
				t.Fatalf("rising %q to %q (-want +got):\n%s", lo, hi, d)
			}
			if d := cmp.Diff(want, falling); d != "" {
				t.Fatalf("falling %q to %q (-want +got):\n%s", lo, hi, d)
			}
			for _, c := range o.chunks {
				if len(c) == 0 || len(c) > chunkSize {
					t.Fatalf("a chunk of %d items", len(c))
				}
			}
		}
	})
}
