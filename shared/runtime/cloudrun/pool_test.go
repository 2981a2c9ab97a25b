package cloudrun

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const aPool = place + "/workerPools/w"

func TestHandOver(t *testing.T) {
	m := new(mail)
	rt, c := begin(t, newFake(), func(o *Options) { o.Bus = m })
	a := assignment("r1", 2, aPool)
	a.Ticket, a.Token, a.Input = "ticket-1", "", nil
	a.Deadline = run.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	start(t, rt, a)
	want := []bus.Message{{Attributes: map[string]string{
		"attempt": "r1.2", "ticket": "ticket-1", "agent": "checker", "url": c.URL(), "expires": "2026-01-02T03:04:05Z",
	}}}
	if diff := cmp.Diff(want, m.sent["pool-cloud"]); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestHandOverThatFails(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		ticket  string
		refused bool
		want    string
	}{
		"a topic that does not exist certainly took nothing":         {bus.ErrNoTopic, "t", true, "create it"},
		"a message over the limits was certainly not taken":          {bus.ErrTooLarge, "t", true, ""},
		"a closed bus takes nothing":                                 {bus.ErrClosed, "t", true, ""},
		"after a time-out nobody knows whether the message was sent": {errors.New("deadline exceeded"), "t", false, "pool-cloud"},
		"without a ticket nobody could claim":                        {nil, "", true, "no ticket"},
	} {
		t.Run(name, func(t *testing.T) {
			rt, _ := begin(t, newFake(), func(o *Options) { o.Bus = &mail{err: tt.err} })
			a := assignment("r1", 1, aPool)
			a.Ticket = tt.ticket
			err := rt.Start(t.Context(), a)
			if err == nil || errors.Is(err, runtime.ErrRefused) != tt.refused || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it refused %v with %q", err, tt.refused, tt.want)
			}
		})
	}
	t.Run("without a bus", func(t *testing.T) {
		rt, _ := begin(t, newFake())
		if err := rt.Start(t.Context(), assignment("r1", 1, aPool)); !errors.Is(err, runtime.ErrRefused) {
			t.Errorf("error %v, want ErrRefused", err)
		}
	})
}

func TestScale(t *testing.T) {
	p := newFake()
	p.pools[aPool] = 1
	rt, _ := begin(t, p)
	target := func(resource string) *fleet.Target {
		return &fleet.Target{Meta: fleet.Meta{Name: "cloud"}, Runtime: fleet.RuntimeCloudRun, Resource: resource}
	}
	if err := rt.Scale(t.Context(), target(aPool), 7); err != nil || p.pools[aPool] != 7 {
		t.Errorf("%v, %d instances, want 7", err, p.pools[aPool])
	}
	if err := rt.Scale(t.Context(), target(aPool), 0); err != nil || p.pools[aPool] != 0 {
		t.Errorf("%v, %d instances, want none", err, p.pools[aPool])
	}
	p.fail["scalePool"] = []error{status.Error(codes.PermissionDenied, "no")}
	for name, tt := range map[string]struct {
		resource string
		n        int
		want     string
	}{
		"more than can be":         {aPool, MaxInstances + 1, "want 0 to 1000"},
		"fewer than none":          {aPool, -1, "want 0 to 1000"},
		"of what is no pool":       {aService, 1, "is no worker pool"},
		"that the platform denies": {aPool, 1, "grant the control plane"},
	} {
		if err := rt.Scale(t.Context(), target(tt.resource), tt.n); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}
