package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// sse reads an event stream.
type sse struct {
	t    *testing.T
	resp *http.Response
	r    *bufio.Reader
}

type sseMessage struct{ id, event, data string }

func (s *site) stream(path string, headers ...string) *sse {
	s.t.Helper()
	resp := s.open("GET", path, "", append([]string{"Accept", "text/event-stream"}, headers...)...)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("status %d as %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return &sse{s.t, resp, bufio.NewReader(resp.Body)}
}

// next is the next message; comments is how many comments came before it.
func (s *sse) next() (m sseMessage, comments int) {
	s.t.Helper()
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			s.t.Fatalf("stream broke off: %v", err)
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case line == "\n" && m != (sseMessage{}):
			return m, comments
		case strings.HasPrefix(line, ":"):
			comments++
		case name == "id":
			m.id = value
		case name == "event":
			m.event = value
		case name == "data":
			m.data = value
		}
	}
}

func (s *sse) event() string {
	s.t.Helper()
	m, _ := s.next()
	if m.event != "" {
		return m.event
	}
	var e api.Event
	if err := json.Unmarshal([]byte(m.data), &e); err != nil {
		s.t.Fatal(err)
	}
	if m.id != fmt.Sprint(e.Seq) {
		s.t.Errorf("id %s of event %d", m.id, e.Seq)
	}
	return fmt.Sprintf("%d %s %s", e.Seq, e.Type, e.State)
}

func (s *sse) wants(events ...string) {
	s.t.Helper()
	for _, want := range events {
		if got := s.event(); got != want {
			s.t.Fatalf("event %q, want %q", got, want)
		}
	}
}

func TestEventsOfARun(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	t.Run("live until the run is over, and then the end", func(t *testing.T) {
		str := s.stream("/v1/runs/a/events")
		str.wants("1 submitted queued")
		s.plane.move("a", assigned)
		str.wants("2 assigned assigned")
		s.plane.move("a", started, succeeded)
		str.wants("3 started running", "4 succeeded succeeded", "end")
		if _, err := str.r.ReadByte(); err == nil {
			t.Error("something follows the end")
		}
	})
	t.Run("resumed after the last event seen", func(t *testing.T) {
		s.stream("/v1/runs/a/events", "Last-Event-ID", "2").wants("3 started running", "4 succeeded succeeded", "end")
	})
	t.Run("not reopened for ever when all is seen", func(t *testing.T) {
		if r := s.do("GET", "/v1/runs/a/events", "", "Accept", "text/event-stream", "Last-Event-ID", "4"); r.StatusCode != 204 {
			t.Errorf("status %d", r.StatusCode)
		}
	})
	t.Run("as a list, in pages", func(t *testing.T) {
		one := into[api.List[api.Event]](t, s.do("GET", "/v1/runs/a/events?limit=3", ""))
		if len(one.Items) != 3 || one.NextPageToken != "3" || one.Items[0].Actor != "test" {
			t.Fatalf("page %+v", one)
		}
		two := into[api.List[api.Event]](t, s.do("GET", "/v1/runs/a/events?limit=3&pageToken=3", ""))
		if len(two.Items) != 1 || two.NextPageToken != "" || two.Items[0].Seq != 4 {
			t.Errorf("page %+v", two)
		}
	})
	t.Run("a list that ends with the page has no next one", func(t *testing.T) {
		if l := into[api.List[api.Event]](t, s.do("GET", "/v1/runs/a/events?limit=4", "")); l.NextPageToken != "" {
			t.Errorf("token %q", l.NextPageToken)
		}
	})
}

func TestAQuietStreamShowsThatItLives(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	str := s.stream("/v1/runs/a/events")
	str.wants("1 submitted queued")
	for range 2 {
		if line, err := str.r.ReadString('\n'); err != nil || (line != ": \n" && line != "\n") {
			t.Fatalf("%q, %v", line, err)
		}
	}
}

func TestAStreamFindsWhatAWatchMissed(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	str := s.stream("/v1/runs/a/events")
	str.wants("1 submitted queued")
	all := s.stream("/v1/events")
	s.plane.cutWatchers()
	s.plane.finish("a") // nobody watches
	str.wants("2 assigned assigned", "3 started running", "4 succeeded succeeded", "end")
	if m, _ := all.next(); m.event != "lost" {
		t.Errorf("message %+v, want lost", m)
	}
}

func TestStreamsEndWithTheClientAndWithTheServer(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	str := s.stream("/v1/runs/a/events")
	str.wants("1 submitted queued")
	str.resp.Body.Close()
	outside.Eventually(t, outside.Patience, "the place of a client that left is free", func() bool { return s.streams.now.Load() == 0 })
	str = s.stream("/v1/runs/a/events")
	str.wants("1 submitted queued")
	s.Server.Close()
	if _, err := str.r.ReadString('e'); err == nil {
		t.Error("the stream goes on, or has an end although the run has none")
	}
}

func TestStreamsAreBounded(t *testing.T) {
	s := newSite(t, func(o *Options) { o.MaxStreams = 1 })
	s.plane.add("a", "default")
	s.stream("/v1/runs/a/events").wants("1 submitted queued")
	s.refuses("the second", bad{"GET", "/v1/runs/a/events", "", []string{"Accept", "text/event-stream"}, 503, api.CodeUnavailable, "1 streams are open", ""})
	s.refuses("of all runs", bad{"GET", "/v1/events", "", nil, 503, api.CodeUnavailable, "the limit", ""})
	s.refuses("of logs", bad{"GET", "/v1/runs/a/logs?follow=true", "", nil, 503, api.CodeUnavailable, "the limit", ""})
}

func TestTheStreamOfAllRunsShowsWhatOneMaySee(t *testing.T) {
	s := newGuarded(t)
	s.token = "submitter"
	str := s.stream("/v1/events")
	outside.Eventually(t, outside.Patience, "the server watches", func() bool {
		s.plane.mu.Lock()
		defer s.plane.mu.Unlock()
		return len(s.plane.watchers) == 1
	})
	s.plane.finish("runother")
	s.plane.finish("runacme")
	for {
		m, _ := str.next()
		var r api.Run
		if err := json.Unmarshal([]byte(m.data), &r); err != nil || m.event != "run" {
			t.Fatalf("message %+v: %v", m, err)
		}
		if r.Tenant != "acme" || r.Input != nil || r.Output != nil {
			t.Fatalf("run %+v", r)
		}
		if r.State == "succeeded" {
			return
		}
	}
}

func TestLogs(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	s.plane.log("a", "one")
	s.plane.log("a", "two\n\ndata: forged")
	t.Run("as a list, in pages", func(t *testing.T) {
		l := into[api.List[api.LogLine]](t, s.do("GET", "/v1/runs/a/logs?limit=1", ""))
		if len(l.Items) != 1 || l.Items[0].Text != "one" || l.NextPageToken != "1" {
			t.Errorf("page %+v", l)
		}
	})
	t.Run("as a stream that cannot be forged, until the run is over", func(t *testing.T) {
		str := s.stream("/v1/runs/a/logs")
		var got []string
		line := func() {
			t.Helper()
			m, _ := str.next()
			var l api.LogLine
			if m.event == "end" {
				got = append(got, "end")
				return
			}
			if err := json.Unmarshal([]byte(m.data), &l); err != nil {
				t.Fatal(err)
			}
			got = append(got, m.id+" "+l.Text)
		}
		line()
		line()
		s.plane.log("a", "three")
		line()
		s.plane.log("a", "four")
		s.plane.finish("a")
		line()
		line()
		if diff := cmp.Diff([]string{" one", "2 two\n\ndata: forged", "3 three", "4 four", "end"}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("resumed after the last line seen", func(t *testing.T) {
		str := s.stream("/v1/runs/a/logs", "Last-Event-ID", "3")
		if m, _ := str.next(); !strings.Contains(m.data, "four") {
			t.Errorf("message %+v", m)
		}
	})
	t.Run("a line of JSON each", func(t *testing.T) {
		r := s.do("GET", "/v1/runs/a/logs?follow=true", "")
		if lines := strings.Split(strings.TrimSpace(string(r.body)), "\n"); len(lines) != 4 || r.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%q", r.body)
		}
	})
	s.refuses("from a position that is none", bad{"GET", "/v1/runs/a/logs?follow=true&pageToken=x", "", nil, 400, api.CodeInvalid, "position", ""})
}

func TestInvocationAsAStream(t *testing.T) {
	s := newSite(t)
	resp := s.open("POST", "/v1/agents/echo:invoke", `{"input":1}`, "Accept", "text/event-stream")
	defer resp.Body.Close()
	str := &sse{t, resp, bufio.NewReader(resp.Body)}
	str.wants("1 submitted queued")
	s.plane.finish("run1")
	str.wants("2 assigned assigned", "3 started running", "4 succeeded succeeded")
	m, _ := str.next()
	var r api.Run
	if err := json.Unmarshal([]byte(m.data), &r); err != nil || m.event != "run" || string(r.Output) != `{"ok":true}` {
		t.Errorf("message %+v: %v", m, err)
	}
	str.wants("end")
}

func TestWaitsAndStreamsOutliveTheTimeOfOtherAnswers(t *testing.T) {
	// The connection's own deadlines are those of ordinary answers; who waits on purpose sets others.
	s := newSite(t)
	s.plane.add("a", "default")
	hs := &http.Server{Handler: s.Server, ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond}
	l := listen(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	t.Cleanup(func() {
		s.Server.Close()
		hs.Close()
		<-served
	})
	s.url = "http://" + l.Addr().String()
	if r := s.do("GET", "/v1/runs/a?wait=150ms", ""); r.StatusCode != 200 {
		t.Errorf("a wait got %d", r.StatusCode)
	}
	if r := s.do("POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1,"wait":"150ms"}`); r.StatusCode != 200 {
		t.Errorf("a lease got %d", r.StatusCode)
	}
	str := s.stream("/v1/runs/a/events")
	str.wants("1 submitted queued")
	begun := time.Now()
	for time.Since(begun) < 150*time.Millisecond {
		if _, err := str.r.ReadString('\n'); err != nil {
			t.Fatalf("cut off after %s: %v", time.Since(begun), err)
		}
	}
	s.plane.finish("a")
	str.wants("2 assigned assigned", "3 started running", "4 succeeded succeeded", "end")
}
