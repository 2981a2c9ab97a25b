package node

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/errand-run/errand/shared/bus/events"
	"github.com/errand-run/errand/shared/control"
)

// outbound tells outsiders what this node writes of runs: every event is told by the process that wrote it.
type outbound struct {
	sender *events.Sender
	cancel context.CancelFunc
	done   chan struct{}
}

// watchBuffer is how far it may lag behind before it is cut off.
const watchBuffer = 8192

// tellOutsiders starts it where the options name a cell; nil otherwise.
func tellOutsiders(o *Options, plane *control.Plane) (*outbound, error) {
	if o.Events == "" {
		return nil, nil
	}
	if o.Bus == nil {
		return nil, fmt.Errorf("tell events of cell %s: there is no bus to tell them on", o.Events)
	}
	sender, err := events.NewSender(events.Options{Bus: o.Bus, Cell: o.Events, Log: o.Logger})
	if err != nil {
		return nil, err
	}
	x := &outbound{sender: sender, done: make(chan struct{})}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(context.Background())
	changes, end := plane.Watch(ctx, watchBuffer)
	go func() {
		defer close(x.done)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			sender.Run(ctx)
		}()
		for {
			x.follow(ctx, changes)
			end()
			if ctx.Err() != nil || plane.Stopped() {
				break
			}
			o.Logger.Warn("events of runs were lost: more happened than could be told", slog.String("cell", o.Events))
			changes, end = plane.Watch(ctx, watchBuffer)
		}
		<-sent
	}()
	return x, nil
}

// follow sends until the context ends or the watch is cut.
func (x *outbound) follow(ctx context.Context, changes <-chan control.Change) {
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-changes:
			if !ok {
				return
			}
			if c.Run != nil && len(c.Events) > 0 {
				x.sender.Send(c.Run, c.Events)
			}
		}
	}
}

// close tells what waits, within the sender's bound.
func (x *outbound) close() {
	if x == nil {
		return
	}
	x.cancel()
	<-x.done
}
