package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func stream(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, text)
	w.(http.Flusher).Flush()
}

func event(seq int) string {
	return fmt.Sprintf("id: %d\nevent: started\ndata: {\"seq\":%d,\ndata: \"type\":\"started\"}\n\n", seq, seq)
}

func TestFollowResumesWhereTheStreamBrokeOff(t *testing.T) {
	c, s := testClient(t, Options{}, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1:
			stream(w, ": hello\n\n"+event(4)+event(5)+"id: 6\ndata: {\"seq\":") // cut in the middle
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			stream(w, "retry: 10\r\n\r\n"+strings.ReplaceAll(event(6), "\n", "\r\n"))
		case 4:
			stream(w, event(7)+"event: end\ndata: {}\n\n"+event(8))
		}
	})
	var got []int64
	for e, err := range c.FollowEvents(t.Context(), "r1", 3) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Seq)
	}
	if diff := cmp.Diff([]int64{4, 5, 6, 7}, got); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"GET /v1/runs/r1/events Last-Event-ID=3", "GET /v1/runs/r1/events Last-Event-ID=5",
		"GET /v1/runs/r1/events Last-Event-ID=5", "GET /v1/runs/r1/events Last-Event-ID=6",
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Error(diff)
	}
}

func TestFollowEnds(t *testing.T) {
	tests := map[string]struct {
		answer  func(w http.ResponseWriter)
		want    int
		wantErr string
	}{
		"with 204: nothing follows":   {answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }},
		"at an end without data":      {answer: func(w http.ResponseWriter) { stream(w, event(1)+"event: end\n\n") }, want: 1},
		"with a problem":              {answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, wantErr: "Not Found"},
		"at what is no stream":        {answer: func(w http.ResponseWriter) { fmt.Fprint(w, "{}") }, wantErr: "want text/event-stream"},
		"at a message that is broken": {answer: func(w http.ResponseWriter) { stream(w, "data: {\n\n") }, wantErr: "message of the stream"},
		"at a message without bounds": {answer: func(w http.ResponseWriter) { stream(w, "data: "+strings.Repeat("x", maxStreamMessage+10)+"\n\n") }, wantErr: "longer than"},
		"at lines without bounds": {answer: func(w http.ResponseWriter) {
			stream(w, strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 5)+"\n")
		}, wantErr: "longer than"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := testClient(t, Options{}, func(_ int, w http.ResponseWriter, _ *http.Request) { tt.answer(w) })
			n, failure := 0, ""
			for _, err := range c.FollowEvents(t.Context(), "r1", 0) {
				if err != nil {
					failure = err.Error()
					continue
				}
				n++
			}
			if n != tt.want || !strings.Contains(failure, tt.wantErr) || (tt.wantErr == "") != (failure == "") {
				t.Errorf("%d events, error %q; want %d, %q", n, failure, tt.want, tt.wantErr)
			}
		})
	}
}

func TestFollowEndsWhenTheReceiverOrItsContextDoes(t *testing.T) {
	c, _ := testClient(t, Options{}, func(_ int, w http.ResponseWriter, r *http.Request) {
		stream(w, event(1)+event(2))
		<-r.Context().Done()
	})
	for range c.FollowEvents(t.Context(), "r1", 0) {
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range c.FollowEvents(ctx, "r1", 0) {
		last = err
		cancel()
	}
	if last == nil || !strings.Contains(last.Error(), "canceled") {
		t.Errorf("%v", last)
	}
}

func TestFollowLogs(t *testing.T) {
	c, s := testClient(t, Options{}, func(_ int, w http.ResponseWriter, _ *http.Request) {
		stream(w, "id: x\ndata: {\"text\":\"one\"}\n\nevent: end\ndata: {}\n\n")
	})
	for line, err := range c.FollowLogs(t.Context(), "r1") {
		if err != nil || line.Text != "one" {
			t.Errorf("%+v, %v", line, err)
		}
	}
	if len(s.seen) != 1 || s.seen[0] != "GET /v1/runs/r1/logs" {
		t.Errorf("%q", s.seen)
	}
}
