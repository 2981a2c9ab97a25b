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

	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/runtime/process"
)

func main() {
	process.Warden()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := config.Serve(ctx, os.LookupEnv, log); err != nil {
		fmt.Fprintf(os.Stderr, "control: %v\n", err)
		os.Exit(1)
	}
}
