package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/local"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
	"github.com/errand-run/errand/shared/store/memory"
	"github.com/errand-run/errand/shared/store/sqlite"
)

func TestMain(m *testing.M) {
	process.Warden()
	os.Exit(emulator.Main(m))
}

// opener opens one store, again and again.
type opener func(ctx context.Context) (store.Store, error)

func onFile(file string) opener {
	return func(ctx context.Context) (store.Store, error) { return sqlite.Open(ctx, file, sqlite.Options{}) }
}

func openStore(t *testing.T, open opener) store.Store {
	t.Helper()
	s, err := open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const manifests = `apiVersion: errand.dev/v1
kind: Agent
metadata: {name: echo}
spec: {shape: pool, run: {command: [cat]}}
---
apiVersion: errand.dev/v1
kind: Target
metadata: {name: here}
spec: {runtime: local, capacity: {runs: 2}}
`

// TestNode runs a run through a node, and finds it again in the next node on the same store: Close has closed all.
func TestNode(t *testing.T) {
	t.Run("on a file", func(t *testing.T) {
		throughTwoLives(t, onFile(filepath.Join(t.TempDir(), "errand.db")), "errand_store_flushes_total")
	})
	t.Run("on Firestore", func(t *testing.T) {
		o := firestore.Options{Project: "node-test", Endpoint: emulator.Firestore(t)}
		throughTwoLives(t, func(ctx context.Context) (store.Store, error) { return firestore.Open(ctx, o) }, `errand_store_requests_total{method="BatchWrite"}`)
	})
}

func throughTwoLives(t *testing.T, open opener, metric string) {
	t.Helper()
	ledger := filepath.Join(t.TempDir(), "processes")
	ctx := context.Background()
	var id string
	for life := range 2 {
		n, err := Start(ctx, Options{Store: openStore(t, open), Listener: listen(t), Local: true, Ledger: ledger, As: "ada"})
		if err != nil {
			t.Fatal(err)
		}
		c, err := api.NewClient(api.Options{URL: n.URL()})
		if err != nil {
			t.Fatal(err)
		}
		if life == 0 {
			if _, err := c.Apply(ctx, []byte(manifests), api.ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			r, err := c.Invoke(ctx, "echo", api.Submit{}, 30*time.Second)
			if err != nil || r.State != "succeeded" {
				t.Fatalf("invoke: %+v, %v", r, err)
			}
			id = r.ID
		} else if r, err := c.Run(ctx, id, 0); err != nil || r.State != "succeeded" {
			t.Errorf("after a restart the run is %+v, %v", r, err)
		}
		list, err := c.ListEvents(ctx, id, api.Page{})
		if err != nil || list.Items[0].Actor != "ada" {
			t.Errorf("history %+v, %v: want it to begin with ada", list, err)
		}
		resp, err := http.Get(n.URL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		var metrics bytes.Buffer
		_, _ = metrics.ReadFrom(resp.Body)
		resp.Body.Close()
		if !strings.Contains(metrics.String(), metric) {
			t.Errorf("/metrics has no %s", metric)
		}
		c.Close()
		if err := n.Close(ctx, time.Second); err != nil {
			t.Errorf("Close: %v", err)
		}
		select {
		case <-n.Failed():
		default:
			t.Error("after Close, Failed is open")
		}
	}
}

func TestWithALoginLocalWorkersGetATokenOfTheirOwn(t *testing.T) {
	auth, err := server.NewTokens([]server.Token{{Name: "eve", SHA256: server.HashToken("eve's"), Role: server.Viewer}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	n, err := Start(ctx, Options{Store: openStore(t, onFile(filepath.Join(t.TempDir(), "x.db"))), Listener: listen(t), Auth: auth, Local: true})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(ctx, 0)
	lease := func(token string) error {
		c, err := api.NewClient(api.Options{URL: n.URL(), Token: token})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Lease(ctx, api.LeaseRequest{Worker: "w", Agents: []string{"echo"}, Max: 1})
		return err
	}
	if err := lease(n.workerToken); err != nil {
		t.Errorf("a local worker is refused: %v", err)
	}
	if err := lease("eve's"); !api.HasCode(err, api.CodeForbidden) {
		t.Errorf("a viewer asks for leases: %v, want forbidden", err)
	}
	if err := lease(""); !api.HasCode(err, api.CodeUnauthorized) {
		t.Errorf("nobody asks for leases: %v, want unauthorized", err)
	}
}

func TestAStartThatFailsClosesWhatItWasGiven(t *testing.T) {
	file := filepath.Join(t.TempDir(), "errand.db")
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	_, err := Start(context.Background(), Options{
		Store: openStore(t, onFile(file)), Listener: l, Local: true, Ledger: filepath.Join(blocked, "processes"), Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), "ledger") {
		t.Fatalf("Start with an impossible ledger: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
	if err := openStore(t, onFile(file)).Close(); err != nil {
		t.Errorf("the store was not closed: %v", err)
	}
}

func TestLoopbackURL(t *testing.T) {
	tests := map[string]string{
		"127.0.0.1:80": "http://127.0.0.1:80", "0.0.0.0:80": "http://127.0.0.1:80", "[::]:80": "http://127.0.0.1:80", "[::1]:80": "http://[::1]:80",
	}
	for addr, want := range tests {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := loopbackURL(a); got != want {
			t.Errorf("loopbackURL(%s) = %s, want %s", addr, got, want)
		}
	}
}

func TestANodeTellsOutsidersWhatHappens(t *testing.T) {
	broker := local.NewBroker(local.Options{})
	outside := broker.Open()
	defer outside.Close()
	n, err := Start(t.Context(), Options{Store: memory.Open(), Listener: listen(t), Bus: broker.Open(), Events: "cell-1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Plane().Apply(t.Context(), []fleet.Object{&fleet.Agent{Meta: fleet.Meta{Name: "echo"}, Shape: fleet.Pool}}, control.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	out := n.Plane().Submit(t.Context(), []control.Submission{{Agent: "echo"}})[0]
	if out.Err != nil {
		t.Fatal(out.Err)
	}
	if _, err := n.Plane().Cancel(t.Context(), out.Run.ID, control.CancelRequest{}); err != nil {
		t.Fatal(err)
	}
	// What was written before the node closes is told.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx, time.Second); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 10)
	listening, stop := context.WithCancel(ctx)
	defer stop()
	err = outside.Receive(listening, bus.Events, bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
		if got <- d.Attributes["ce-type"]; d.Attributes["ce-type"] == "dev.errand.run.canceled" {
			stop()
		}
		return nil
	}})
	if err != nil || ctx.Err() != nil {
		t.Fatalf("told were %d events, and no end: %v", len(got), err)
	}
}
