package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func TestRunWatchShowsEachChangeOnce(t *testing.T) {
	var out bytes.Buffer
	w := newRunWatch(&app{out: &out, format: render.Name, now: time.Now})
	r := func(id, etag, state string) api.Run { return api.Run{ID: id, Etag: etag, State: state} }
	steps := []struct {
		what      string
		page      []api.Run
		want      string
		wantOlder int
	}{
		{"the first page, oldest first", []api.Run{r("c", "1", "running"), r("b", "1", "running"), r("a", "1", "failed")}, "a b c", 0},
		{"nothing new", []api.Run{r("c", "1", "running"), r("b", "1", "running"), r("a", "1", "failed")}, "", 0},
		{"a change and a newcomer; one that goes on and one that is over leave", []api.Run{r("d", "1", "queued"), r("c", "2", "failed")}, "c d", 1},
		{"one comes back unchanged", []api.Run{r("d", "1", "queued"), r("c", "2", "failed"), r("b", "1", "running")}, "", 0},
	}
	for _, s := range steps {
		out.Reset()
		if err := w.show(s.page); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.want, strings.Join(strings.Fields(out.String()), " ")); diff != "" {
			t.Errorf("%s:\n%s", s.what, diff)
		}
		if len(w.older) != s.wantOlder {
			t.Errorf("%s: %d older runs, want %d", s.what, len(w.older), s.wantOlder)
		}
	}
}
