package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/runtime/process"
)

func TestMain(m *testing.M) {
	process.Warden()
	os.Exit(m.Run())
}

func TestServeAnswersAndEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PORT", "0")
	t.Setenv("ERRAND_STORE", "sqlite:"+filepath.Join(dir, "errand.db"))
	t.Setenv("ERRAND_LEDGER", filepath.Join(dir, "processes"))
	metrics := freeAddress(t)
	t.Setenv("ERRAND_METRICS", metrics)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	r, w := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- config.Serve(ctx, os.LookupEnv, slog.New(slog.NewJSONHandler(w, nil)))
		w.Close()
	}()
	lines := json.NewDecoder(r)
	var line struct{ Msg, Address string }
	for line.Msg != "serving" {
		if err := lines.Decode(&line); err != nil {
			t.Fatalf("%v; serve: %v", err, <-served)
		}
	}
	go io.Copy(io.Discard, r)
	resp, err := http.Get("http://" + line.Address + "/health/ready")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("ready: %s", resp.Status)
	}
	figures, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(figures.Body)
	figures.Body.Close()
	if err != nil || !strings.Contains(string(text), "errand_queue_oldest_seconds") {
		t.Errorf("metrics beside the door: %s, %v", figures.Status, err)
	}
	stop()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("serve does not end")
	}
}

func TestServeTellsEveryFaultOfItsEnvironment(t *testing.T) {
	t.Setenv("PORT", "x")
	t.Setenv("ERRAND_STORE", "firestore:p")
	err := config.Serve(context.Background(), os.LookupEnv, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "PORT") || !strings.Contains(err.Error(), "want firestore:PROJECT/DATABASE") {
		t.Errorf("serve: %v", err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
