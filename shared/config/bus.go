package config

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/pubsub"
)

// OpenBus opens what Bus names; nil for local: a process that is alone tells itself.
func (s *Server) OpenBus(ctx context.Context, log *slog.Logger) (bus.Bus, error) {
	o, err := parseBus(s.Bus)
	if err != nil {
		return nil, fmt.Errorf("ERRAND_BUS=%.100q: %w", s.Bus, err)
	}
	if o == nil {
		return nil, nil
	}
	o.Log = log
	b, err := pubsub.Open(ctx, *o)
	if err != nil {
		return nil, err // no bus that is not nil and holds none
	}
	return b, nil
}

// parseBus reads the form of ERRAND_BUS; nil for local.
func parseBus(text string) (*pubsub.Options, error) {
	place, ok := strings.CutPrefix(text, "pubsub:")
	if !ok {
		return nil, oneOf(text, "local", "pubsub:PROJECT", "pubsub:PROJECT/PREFIX")
	}
	o, err := pubsub.Parse(place)
	if err != nil {
		return nil, err
	}
	return &o, nil
}
