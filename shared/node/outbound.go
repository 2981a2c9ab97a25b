package node

import (
	"context"
	"fmt"

	"github.com/errand-run/errand/shared/bus/events"
	"github.com/errand-run/errand/shared/control"
)

// outbound tells outsiders what this node writes of runs: every event is told by the process that wrote it.
type outbound struct {
	plane    *control.Plane
	giveUp   context.CancelFunc // ends the watch with what it still holds
	followed chan struct{}      // closed when the watch is over
	finish   context.CancelFunc // lets the sender tell what waits, and end
	sent     chan struct{}      // closed when it has
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
	x := &outbound{plane: plane, followed: make(chan struct{}), sent: make(chan struct{})}
	following, giveUp := context.WithCancel(context.Background())
	sending, finish := context.WithCancel(context.Background())
	x.giveUp, x.finish = giveUp, finish
	changes, end := plane.Watch(following, watchBuffer)
	go func() {
		defer close(x.sent)
		sender.Run(sending)
	}()
	go func() {
		defer close(x.followed)
		for {
			follow(following, changes, sender)
			end()
			if following.Err() != nil || plane.Stopped() {
				return
			}
			o.Logger.Warn("events of runs were lost: more happened than could be told", "cell", o.Events)
			changes, end = plane.Watch(following, watchBuffer)
		}
	}()
	return x, nil
}

// follow sends until the watch is cut or over, and all that it held is sent; or until the context ends.
func follow(ctx context.Context, changes <-chan control.Change, sender *events.Sender) {
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-changes:
			if !ok {
				return
			}
			if c.Run != nil && len(c.Events) > 0 {
				sender.Send(c.Run, c.Events)
			}
		}
	}
}

// close tells what waits, within the sender's bound. The watch of a plane that has stopped is over.
func (x *outbound) close() {
	if x == nil {
		return
	}
	if !x.plane.Stopped() {
		x.giveUp()
	}
	<-x.followed
	x.giveUp()
	x.finish()
	<-x.sent
}
