package config

import (
	"context"
	"log/slog"
	"time"

	"github.com/errand-run/errand/shared/node"
)

// grace is for attempts on this machine; platforms kill ten seconds after SIGTERM.
const grace = 6 * time.Second

// Serve is a control process: it runs what the environment says until the context ends or serving fails, and then hands
// back the attempts of this machine within eleven seconds.
func Serve(ctx context.Context, lookup func(string) (string, bool), log *slog.Logger) error {
	// 1. What this process is told.
	conf, err := Load(ctx, lookup)
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
