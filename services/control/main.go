// Command control is the control plane as a server: API, decisions and, where it is told so, agents on its own machine.
// It is configured by its environment; see package config.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/node"
	"github.com/errand-run/errand/shared/runtime/process"
)

// grace is for attempts on this machine; platforms kill ten seconds after SIGTERM.
const grace = 6 * time.Second

func main() {
	process.Warden()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := serve(ctx, log); err != nil {
		fmt.Fprintf(os.Stderr, "control: %v\n", err)
		os.Exit(1)
	}
}

// serve runs until the context ends.
func serve(ctx context.Context, log *slog.Logger) error {
	// 1. What this process is told.
	conf, err := config.Load(ctx, os.LookupEnv)
	if err != nil {
		return err
	}
	// 2. What it names, and the node over it.
	options, err := conf.Open(ctx, log)
	if err != nil {
		return err
	}
	n, err := node.Start(ctx, options)
	if err != nil {
		return err
	}
	log.Info("serving", "address", options.Listener.Addr().String(), "store", options.Store.Describe(), "auth", conf.AuthKind())
	// 3. Serve.
	select {
	case <-ctx.Done():
	case <-n.Failed():
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+5*time.Second)
	defer cancel()
	return n.Close(closeCtx, grace)
}
