package cloudbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
)

// envBook tells the test binary that it is an agent, and where the outside ledger is.
const envBook = "BOX_BOOK"

// book is a ledger outside of the product. It enters whatever it is told, however often: only a receipt keeps a line from
// being there twice.
type book struct {
	server *httptest.Server
	mu     sync.Mutex
	lines  map[string]int
	calls  int
}

func newBook(t *testing.T) *book {
	b := &book{lines: make(map[string]int)}
	b.server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.server.Close)
	return b
}

func (b *book) url() string { return b.server.URL }

func (b *book) count(line string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines[line]
}

func (b *book) serve(w http.ResponseWriter, r *http.Request) {
	line := r.URL.Query().Get("line")
	if r.Method == http.MethodGet {
		fmt.Fprint(w, b.count(line))
		return
	}
	b.mu.Lock()
	b.lines[line]++
	b.calls++
	lose := b.calls%7 == 0
	b.mu.Unlock()
	if lose { // it is entered, and the caller does not know
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// errand is what a courier is asked to do.
type errand struct {
	Line string `json:"line"`
	Ms   int    `json:"ms"`
}

// carry is the courier's handler: it enters a line once.
func carry(at string) agent.Handler[errand, string] {
	return func(ctx context.Context, r *agent.Run, in errand) (string, error) {
		if _, err := agent.Step(ctx, r, "prepare", func(context.Context) (int, error) { return len(in.Line), nil }); err != nil {
			return "", err
		}
		if err := rest(ctx, in.Ms/2); err != nil {
			return "", err
		}
		line, err := agent.Once(ctx, r, "enter", agent.Effect[string]{
			Request: in.Line, Timeout: 3 * time.Second, OnUnknown: agent.Reconcile,
			Do: func(ctx context.Context, _ string) (string, error) {
				_, err := ask(ctx, http.MethodPost, at, in.Line)
				return in.Line, err
			},
			Reconcile: func(ctx context.Context, _ string) (string, bool, error) {
				n, err := ask(ctx, http.MethodGet, at, in.Line)
				return in.Line, n > 0, err
			},
		})
		if err != nil {
			return "", err
		}
		return line, rest(ctx, in.Ms/2)
	}
}

func ask(ctx context.Context, method, at, line string) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, at+"/?line="+url.QueryEscape(line), http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("the ledger answers %d", resp.StatusCode)
	case method == http.MethodGet:
		err = json.Unmarshal(body, &n)
	}
	return n, err
}

func rest(ctx context.Context, ms int) error {
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// duplicate publishes every message of some topics a second time, as Pub/Sub may deliver it, until stop is called, which
// tells how many.
func duplicate(t *testing.T, at, project string, topics ...string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	call := func(method, path string, body, into any) error {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://"+at+"/v1/projects/"+project+"/"+path, bytes.NewReader(text))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s %s: status %d: %.300s", method, path, resp.StatusCode, answer)
		}
		if err == nil && into != nil {
			err = json.Unmarshal(answer, into)
		}
		return err
	}
	type message struct {
		Data       []byte            `json:"data,omitempty"`
		Attributes map[string]string `json:"attributes,omitempty"`
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	count := 0
	for _, topic := range topics {
		name := "errand-" + topic + "-again"
		err := call(http.MethodPut, "subscriptions/"+name, map[string]any{"topic": "projects/" + project + "/topics/errand-" + topic, "ackDeadlineSeconds": 60}, nil)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			ours := make(map[string]int) // copies that come by here once more
			for ctx.Err() == nil {
				var pulled struct {
					ReceivedMessages []struct {
						AckID   string  `json:"ackId"`
						Message message `json:"message"`
					} `json:"receivedMessages"`
				}
				if err := call(http.MethodPost, "subscriptions/"+name+":pull", map[string]any{"maxMessages": 100}, &pulled); err != nil {
					continue // none came within the emulator's time
				}
				var acks []string
				var copies []message
				for _, r := range pulled.ReceivedMessages {
					acks = append(acks, r.AckID)
					text, _ := json.Marshal(r.Message)
					if ours[string(text)] > 0 {
						ours[string(text)]--
						continue
					}
					ours[string(text)]++
					copies = append(copies, r.Message)
				}
				if len(acks) == 0 {
					continue
				}
				if err := call(http.MethodPost, "subscriptions/"+name+":acknowledge", map[string]any{"ackIds": acks}, nil); err != nil && ctx.Err() == nil {
					t.Errorf("acknowledge what is published again: %v", err)
				}
				if len(copies) == 0 {
					continue
				}
				if err := call(http.MethodPost, "topics/errand-"+topic+":publish", map[string]any{"messages": copies}, nil); err != nil && ctx.Err() == nil {
					t.Errorf("publish again: %v", err)
				}
				mu.Lock()
				count += len(copies)
				mu.Unlock()
			}
		})
	}
	return func() int {
		cancel()
		wg.Wait()
		return count
	}
}
