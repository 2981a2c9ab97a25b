package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	r, w := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- serve(ctx, slog.New(slog.NewJSONHandler(w, nil)))
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
	err := serve(context.Background(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "PORT") || !strings.Contains(err.Error(), "want firestore:PROJECT/DATABASE") {
		t.Errorf("serve: %v", err)
	}
}
