// Worker takes the runs that a bus hands to the pool of a target, and executes them by a program or by the agent's
// container beside it. It is a pool's second container, or the entrypoint of an image that holds any program:
//
//	ERRAND_URL=https://… ERRAND_BUS=pubsub:PROJECT ERRAND_TARGET=gpu ERRAND_AGENT=embed worker -- python3 embed.py
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/errand-run/errand/shared/bus/pubsub"
	"github.com/errand-run/errand/shared/host"
	"github.com/errand-run/errand/shared/runtime/process"
)

func main() {
	process.Warden()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	settings, err := host.ReadSettings(os.Getenv, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "worker: environment:\n%v\n", err)
		os.Exit(2)
	}
	if err := serve(ctx, settings, log); err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		os.Exit(1)
	}
}

// serve runs until the context ends.
func serve(ctx context.Context, settings *host.Settings, log *slog.Logger) error {
	place, ok := strings.CutPrefix(settings.Bus, "pubsub:")
	if !ok {
		return fmt.Errorf("ERRAND_BUS=%.100q: want pubsub:PROJECT, or pubsub:PROJECT/PREFIX", settings.Bus)
	}
	options, err := pubsub.Parse(place)
	if err != nil {
		return fmt.Errorf("ERRAND_BUS=%.100q: %w", settings.Bus, err)
	}
	options.Log = log
	b, err := pubsub.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what it still held comes again
	return settings.Run(ctx, b, log)
}
