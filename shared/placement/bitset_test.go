package placement

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestABitsetIsAListOfTruths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Bool(), 0, 300).Draw(t, "list")
		s := bitset(nil).empty(len(list))
		for i, member := range list {
			s.set(i, member)
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			if len(list) == 0 || rapid.Bool().Draw(t, "insert") {
				at, member := rapid.IntRange(0, len(list)).Draw(t, "at"), rapid.Bool().Draw(t, "member")
				s = s.insert(at, len(list), member)
				list = slices.Insert(list, at, member)
			} else {
				at := rapid.IntRange(0, len(list)-1).Draw(t, "at")
				s = s.remove(at, len(list))
				list = slices.Delete(list, at, at+1)
			}
		}
		if len(s) != blocks(len(list)) {
			t.Fatalf("%d words for %d nodes", len(s), len(list))
		}
		for i := range len(s) * block {
			if want := i < len(list) && list[i]; s.has(i) != want {
				t.Fatalf("bit %d of %d is %v", i, len(list), !want)
			}
		}
	})
}
