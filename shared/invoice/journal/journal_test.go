package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func keys(t *testing.T, f File) (keys []string) {
	t.Helper()
	all, err := f.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		keys = append(keys, e.Key)
	}
	return keys
}

func TestWhatIsAppendedTwiceStandsThereTwice(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "new", "journal"))
	if _, there, err := f.Find("a"); there || err != nil {
		t.Fatalf("a file that is not there: found %t, error %v", there, err)
	}
	for _, key := range []string{"a", "b", "a"} {
		if err := f.Append(key, map[string]string{"of": key}); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(keys(t, f), ""); got != "aba" {
		t.Errorf("keys %s", got)
	}
	e, there, err := f.Find("b")
	if err != nil || !there || string(e.Entry) != `{"of":"b"}` {
		t.Errorf("found %t %s, error %v", there, e.Entry, err)
	}
}

func TestATornLineHarmsNoOther(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "journal"))
	if err := f.Append("a", 1); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(string(f))
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		if err := os.WriteFile(string(f), append(append([]byte(nil), whole...), whole[:cut]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Append("z", 2); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(keys(t, f), "")
		if want := "az"; got != want && !(cut == len(whole)-1 && got == "aaz") { // without its last byte a line is whole
			t.Errorf("cut at %d: keys %s", cut, got)
		}
	}
}

func TestManyAppendAtTheSameTime(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "journal"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 25 {
				if err := f.Append(fmt.Sprint(i, ".", k), strings.Repeat("x", 500)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	for _, key := range keys(t, f) {
		seen[key] = true
	}
	if len(seen) != 200 {
		t.Errorf("%d of 200 entries", len(seen))
	}
}

func TestWhatCannotBeWrittenSaysThatItIsNot(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		file  File
		entry any
	}{
		"an entry that is too long": {File(filepath.Join(dir, "a")), strings.Repeat("x", MaxEntry)},
		"an entry that is no JSON":  {File(filepath.Join(dir, "a")), func() {}},
		"a folder":                  {File(dir), 1},
	} {
		if err := c.file.Append("k", c.entry); !errors.Is(err, ErrNotWritten) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if got := keys(t, File(filepath.Join(dir, "a"))); got != nil {
		t.Errorf("keys %v", got)
	}
}
