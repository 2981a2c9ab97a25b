package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
)

const anything = `
apiVersion: errand.dev/v1
kind: Target
metadata: {name: pool}
spec: {runtime: poll, shapes: [pool], capacity: {runs: 4}}
---
apiVersion: errand.dev/v1
kind: Agent
metadata: {name: echo}
spec: {shape: pool}
`

// text is a JSON string of so many bytes that no two parts of are alike.
func text(size int) json.RawMessage {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; b.Len() < size-1; i++ {
		fmt.Fprintf(&b, "%x,", i*i)
	}
	return json.RawMessage(b.String()[:size-1] + `"`)
}

// TestInputsAndOutputsOfEverySizeAreKeptEqualOrRefused goes through the doors to Google's emulator of Firestore and back.
func TestInputsAndOutputsOfEverySizeAreKeptEqualOrRefused(t *testing.T) { // case F15
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// 1. A control plane on Firestore, a server, a client.
	database, err := firestore.Open(ctx, firestore.Options{Project: "sizes", Endpoint: emulator.Firestore(t)})
	check("open", err)
	defer database.Close()
	plane, err := control.New(control.Config{Store: database})
	check("plane", err)
	check("start", plane.Start(ctx))
	s, err := server.New(server.Options{Plane: plane, Loopback: true})
	check("server", err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check("listen", err)
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l, 5*time.Second) }()
	client, err := api.NewClient(api.Options{URL: l.Addr().String()})
	check("client", err)
	defer func() {
		client.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := plane.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	_, err = client.Apply(ctx, []byte(anything), api.ApplyOptions{})
	check("apply", err)
	take := func() []api.Lease {
		t.Helper()
		got, err := client.Lease(ctx, api.LeaseRequest{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Max: 1, Slots: 1, Wait: api.Duration(20 * time.Second)})
		check("lease", err)
		return got.Leases
	}
	for _, test := range []struct {
		name string
		size int
		kept bool
	}{
		{"99 KB", 99_000, true},
		{"101 KB", 101_000, true},
		{"one byte less than 1 MiB", 1<<20 - 1, true},
		{"one byte more than 1 MiB", 1<<20 + 1, true},
		{"the limit", api.MaxPayload, true},
		{"one byte more than the limit", api.MaxPayload + 1, false},
		{"30 MiB", 30 << 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			body := text(test.size)
			sent, _, err := client.Submit(ctx, api.Submit{Agent: "echo", Input: body, Key: test.name})
			if !test.kept {
				if !api.HasCode(err, api.CodeTooLarge) {
					t.Fatalf("got %v, want a refusal for its size", err)
				}
				for r, err := range client.Runs(ctx, api.RunFilter{Agent: "echo"}) {
					if check("list", err); r.Key == test.name {
						t.Errorf("run %s is there all the same", r.ID)
					}
				}
				return
			}
			check("submit", err)
			leases := take()
			if len(leases) != 1 || leases[0].Run != sent.ID || string(leases[0].Input) != string(body) {
				t.Fatalf("%d leases, want that of run %s with its input", len(leases), sent.ID)
			}
			_, err = client.Report(ctx, api.Report{Type: api.ReportComplete, Attempt: leases[0].Attempt, Token: leases[0].Token, Output: body})
			check("complete", err)
			got, err := client.WaitRun(ctx, sent.ID)
			if check("wait", err); got.State != "succeeded" || string(got.Input) != string(body) || string(got.Output) != string(body) {
				t.Errorf("run %s is %s with %d and %d bytes; want succeeded, both equal to the %d bytes sent", got.ID, got.State, len(got.Input), len(got.Output), len(body))
			}
		})
	}
	t.Run("a result over the limit is refused with the limit, and its attempt can still fail", func(t *testing.T) {
		sent, _, err := client.Submit(ctx, api.Submit{Agent: "echo"})
		check("submit", err)
		lease := take()[0]
		report := api.Report{Type: api.ReportComplete, Attempt: lease.Attempt, Token: lease.Token, Output: text(api.MaxPayload + 1)}
		if _, err := client.Report(ctx, report); !api.HasCode(err, api.CodeTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(api.MaxPayload)) {
			t.Fatalf("got %v, want a refusal with the limit", err)
		}
		report.Type, report.Output = api.ReportFail, nil
		report.Class, report.Code, report.Message, report.Retryable = "user", "ResultTooLarge", "too much", new(bool)
		_, err = client.Report(ctx, report)
		check("fail", err)
		got, err := client.WaitRun(ctx, sent.ID)
		if check("wait", err); got.State != "failed" || got.Attempts[0].Code != "ResultTooLarge" {
			t.Errorf("run %+v", got)
		}
	})
	t.Run("an input that is gone fails its run with that reason", func(t *testing.T) {
		sent, _, err := client.Submit(ctx, api.Submit{Agent: "echo", Input: text(101_000)})
		check("submit", err)
		err = database.Commit(ctx, []store.Unit{{Token: "loss", Writes: []store.Write{{
			Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindPayload, ID: sent.ID + "/in"},
		}}}})[0]
		check("lose", err)
		asking, enough := context.WithCancel(ctx)
		leased := make(chan []api.Lease, 1)
		go func() {
			got, err := client.Lease(asking, api.LeaseRequest{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Max: 1, Slots: 1, Wait: api.Duration(20 * time.Second)})
			if err != nil {
				got = &api.LeaseResponse{}
			}
			leased <- got.Leases
		}()
		got, err := client.WaitRun(ctx, sent.ID)
		check("wait", err)
		enough()
		if got := <-leased; len(got) != 0 {
			t.Fatalf("it is handed out: %+v", got)
		}
		if got.State != "failed" || got.Reason != "StartFailed" || got.Attempt != 1 || !strings.Contains(got.Message, "101000 bytes") || !strings.Contains(got.Message, "gone from the store") {
			t.Errorf("run %s is %s: %s in attempt %d: %s", got.ID, got.State, got.Reason, got.Attempt, got.Message)
		}
		if _, err := client.Retry(ctx, sent.ID, api.Retry{}); !api.HasCode(err, api.CodeState) {
			t.Errorf("a retry without its input: %v", err)
		}
	})
}
