package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/node"
)

// Open opens what the configuration names, the port first, and gives the options of a node over it, which closes them.
// When it fails nothing stays open.
func (s *Server) Open(ctx context.Context, log *slog.Logger) (_ node.Options, err error) {
	o := node.Options{
		Local: s.LocalRuntime(), Ledger: s.Ledger, RetainMax: s.Retain(), SigningKeys: s.Keys(), Cloud: s.cloud(), Advertise: s.Advertise, Events: s.Events, Logger: log,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(&o))
		}
	}()
	// 1. Who may ask, and where.
	if o.Auth, err = s.Authenticator(log); err != nil {
		return o, err
	}
	if o.Listener, err = net.Listen("tcp", s.Address()); err != nil {
		return o, fmt.Errorf("listen: %w", err)
	}
	if s.Metrics != "" {
		if o.Metrics, err = net.Listen("tcp", s.Metrics); err != nil {
			return o, fmt.Errorf("listen for ERRAND_METRICS: %w", err)
		}
	}
	// 2. Where runs are kept.
	place, err := ParseStore(s.Store)
	if err != nil {
		return o, err
	}
	if o.Store, err = place.Open(ctx); err != nil {
		return o, err
	}
	// 3. How other processes hear of them.
	o.Bus, err = s.OpenBus(ctx, log)
	return o, err
}

func closeAll(o *node.Options) error {
	var faults []error
	if o.Listener != nil {
		faults = append(faults, o.Listener.Close())
	}
	if o.Metrics != nil {
		faults = append(faults, o.Metrics.Close())
	}
	if o.Store != nil {
		faults = append(faults, o.Store.Close())
	}
	if o.Bus != nil {
		faults = append(faults, o.Bus.Close())
	}
	return errors.Join(faults...)
}

// cloud is where attempts are started on Cloud Run; nil where they are not.
func (s *Server) cloud() *node.Cloud {
	for _, r := range s.Runtime {
		if project, region, err := parseCloud(r); err == nil {
			return &node.Cloud{Project: project, Region: region, URL: s.URL, Endpoint: s.RunEndpoint, Tokens: identity.Metadata(identity.Options{})}
		}
	}
	return nil
}
