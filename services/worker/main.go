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
	"syscall"

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
	if err := settings.Serve(ctx, log); err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		os.Exit(1)
	}
}
