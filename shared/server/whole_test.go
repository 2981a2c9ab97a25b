package server_test

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store/memory"
)

const manifests = `
apiVersion: errand.dev/v1
kind: Target
metadata: {name: pool}
spec: {runtime: poll, shapes: [pool], capacity: {runs: 4}}
---
apiVersion: errand.dev/v1
kind: Agent
metadata: {name: echo}
spec:
  shape: pool
  input: {schema: {type: object, required: [x]}}
  permissions: {effects: ["mail:*"]}
`

// TestAWholeRunOverHTTP drives a real control plane through the doors with the client of the interface.
func TestAWholeRunOverHTTP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// 1. A control plane, a server, a client.
	plane, err := control.New(control.Config{Store: memory.Open()})
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{Plane: plane, Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l, 5*time.Second) }()
	client, err := api.NewClient(api.Options{URL: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
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
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// 2. Declare, submit, and wait while a worker executes.
	_, err = client.Apply(ctx, []byte(manifests), api.ApplyOptions{})
	check("apply", err)
	if _, _, err := client.Submit(ctx, api.Submit{Agent: "echo", Input: json.RawMessage(`{"y":1}`)}); !api.HasCode(err, api.CodeInvalid) {
		t.Errorf("input against the schema: %v", err)
	}
	sent, _, err := client.Submit(ctx, api.Submit{Agent: "echo", Input: json.RawMessage(`{"x":1}`), Key: "k"})
	check("submit", err)
	leases, err := client.Lease(ctx, api.LeaseRequest{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Max: 2, Slots: 2, Wait: api.Duration(20 * time.Second)})
	check("lease", err)
	if len(leases.Leases) != 1 || leases.Leases[0].Run != sent.ID || string(leases.Leases[0].Input) != `{"x":1}` {
		t.Fatalf("leases %+v", leases)
	}
	lease := leases.Leases[0]
	report := func(r api.Report) {
		t.Helper()
		r.Attempt, r.Token = lease.Attempt, lease.Token
		_, err := client.Report(ctx, r)
		check(r.Type, err)
	}
	report(api.Report{Type: api.ReportStart})
	report(api.Report{Type: api.ReportStep, Step: &api.Step{Name: "parse:1", Seq: 1, Result: json.RawMessage(`3`)}})
	report(api.Report{Type: api.ReportLogs, Logs: []api.LogLine{{Text: "hello"}}})
	effect, err := client.BeginReceipt(ctx, lease.Attempt, lease.Token, "mail:a/b", api.ReceiptBegin{RequestHash: "h", Nonce: "n"})
	check("begin effect", err)
	if effect.Answer != api.EffectProceed {
		t.Fatalf("effect %+v", effect)
	}
	_, err = client.CommitReceipt(ctx, lease.Attempt, lease.Token, "mail:a/b", api.ReceiptCommit{Result: json.RawMessage(`{"id":1}`)})
	check("commit effect", err)
	if _, err := client.BeginReceipt(ctx, lease.Attempt, lease.Token, "pay:x", api.ReceiptBegin{RequestHash: "h", Nonce: "n"}); !api.HasCode(err, api.CodeForbidden) {
		t.Errorf("an effect beyond the permissions: %v", err)
	}
	report(api.Report{Type: api.ReportComplete, Output: json.RawMessage(`{"done":true}`), Usage: &api.Usage{InputTokens: 5}})
	// 3. What there is to read of it.
	got, err := client.WaitRun(ctx, sent.ID)
	check("wait", err)
	if got.State != "succeeded" || string(got.Output) != `{"done":true}` || got.Cost.Tokens != 5 || got.Placement.Target != "pool" {
		t.Errorf("run %+v", got)
	}
	var last api.Event
	for e, err := range client.FollowEvents(ctx, sent.ID, 0) {
		check("events", err)
		last = e
	}
	if last.Type != "succeeded" {
		t.Errorf("last event %+v", last)
	}
	lines := 0
	for _, err := range client.FollowLogs(ctx, sent.ID) {
		check("logs", err)
		lines++
	}
	receipts, err := client.Receipts(ctx, sent.ID)
	check("receipts", err)
	if lines != 1 || len(receipts.Items) != 1 || receipts.Items[0].State != "done" {
		t.Errorf("%d lines, receipts %+v", lines, receipts.Items)
	}
	if _, err := client.Report(ctx, api.Report{Type: api.ReportComplete, Attempt: lease.Attempt, Token: lease.Token, Output: json.RawMessage(`2`)}); !api.HasCode(err, api.CodeFenced) && err != nil {
		t.Errorf("a second completion: %v", err)
	}
	for what, read := range map[string]func() error{
		"audit":     func() error { _, err := client.Audit(ctx, sent.ID, api.Page{}); return err },
		"placement": func() error { _, err := client.Placement(ctx, sent.ID, "pool"); return err },
		"tree":      func() error { _, err := client.Tree(ctx, sent.ID); return err },
		"attempts":  func() error { _, err := client.Attempts(ctx, sent.ID); return err },
		"stats":     func() error { _, err := client.Stats(ctx, api.StatsFilter{Window: time.Minute}); return err },
		"agent":     func() error { _, err := client.Object(ctx, api.Agents, "echo"); return err },
		"unknown":   func() error { _, err := client.ListReceipts(ctx, api.ReceiptsUnknown, api.Page{}); return err },
		"list": func() error {
			_, err := client.ListRuns(ctx, api.RunFilter{State: []string{"succeeded"}, Labels: map[string]string{}}, api.Page{Limit: 5})
			return err
		},
	} {
		check(what, read())
	}
}
