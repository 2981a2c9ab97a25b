// Command control is the control plane as a server: API, decisions and, where it is told so, agents on its own machine.
// It is configured by its environment; see package config.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/identity"
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
	auth, err := conf.Authenticator(log)
	if err != nil {
		return err
	}
	place, err := config.ParseStore(conf.Store)
	if err != nil {
		return err
	}
	// 2. What it needs: its port, then its store.
	listener, err := net.Listen("tcp", conf.Address())
	if err != nil {
		return err
	}
	db, err := place.Open(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	// 3. Serve.
	n, err := node.Start(ctx, node.Options{
		Store: db, Listener: listener, Auth: auth, Local: conf.LocalRuntime(), Ledger: conf.Ledger, Logger: log, RetainMax: conf.Retain(),
		SigningKeys: conf.Keys(), Cloud: cloud(conf), Advertise: conf.Advertise,
	})
	if err != nil {
		return err
	}
	log.Info("serving", "address", listener.Addr().String(), "store", db.Describe(), "auth", conf.AuthKind())
	select {
	case <-ctx.Done():
	case <-n.Failed():
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+5*time.Second)
	defer cancel()
	return n.Close(closeCtx, grace)
}

// cloud is where Cloud Run's attempts are started; nil where this process starts none.
func cloud(conf *config.Server) *node.Cloud {
	project, region, ok := conf.CloudRun()
	if !ok {
		return nil
	}
	return &node.Cloud{
		Project: project, Region: region, URL: conf.URL, Endpoint: conf.RunEndpoint, Tokens: identity.Metadata(identity.Options{}),
	}
}
