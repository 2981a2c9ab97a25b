package cloudbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/server"
)

// functionRoles are the functions of the box, and what the control plane lets each do.
var functionRoles = map[string]server.Role{"tick": server.Edge, "deadletter": server.Edge}

// tickEvery is the grain of the schedule that calls tick.
const tickEvery = time.Minute

// startFunctions deploys the functions as services, and what calls them: a schedule, and a push subscription. Where their
// program is not given, the schedule calls the control plane.
func (b *Box) startFunctions(ctx context.Context) error {
	if len(b.o.Programs["functions"]) == 0 {
		client, err := b.Client()
		if err != nil {
			return err
		}
		b.onClose(func() error { client.Close(); return nil })
		b.schedule(func(ctx context.Context) error {
			_, err := client.Tick(ctx)
			return err
		})
		return nil
	}
	client, err := run.NewServicesClient(ctx, b.clientOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	addresses := make(map[string]string)
	for name := range functionRoles {
		s := &runpb.Service{Name: parent + "/services/" + name, Template: &runpb.RevisionTemplate{
			ServiceAccount: account(name), Scaling: &runpb.RevisionScaling{MaxInstanceCount: 1},
			Containers: []*runpb.Container{{Image: "command/functions", Env: vars(map[string]string{
				"FUNCTION_TARGET": name, "ERRAND_URL": b.URL(), "ERRAND_AUDIENCE": b.URL(),
			})}},
		}}
		if err := b.twin.Apply(ctx, s); err != nil {
			return fmt.Errorf("deploy function %s: %w", name, err)
		}
		// The emulator of Pub/Sub pushes without an identity, and so does the box's schedule.
		_, err = client.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: parent + "/services/" + name, Policy: &iampb.Policy{
			Bindings: []*iampb.Binding{{Role: "roles/run.invoker", Members: []string{"allUsers"}}},
		}})
		if err != nil {
			return fmt.Errorf("let function %s be called: %w", name, err)
		}
		addresses[name] = s.Uri
	}
	if err := b.push(ctx, bus.DeadLetters, addresses["deadletter"]); err != nil {
		return err
	}
	b.schedule(func(ctx context.Context) error { return tick(ctx, addresses["tick"]) })
	return nil
}

// push lets the emulator post a topic's messages to an address. Its REST interface is that of Pub/Sub.
func (b *Box) push(ctx context.Context, topic bus.Topic, address string) error {
	name := "projects/" + project + "/subscriptions/errand-" + string(topic) + "-push"
	body, err := json.Marshal(map[string]any{
		"topic":      "projects/" + project + "/topics/errand-" + string(topic),
		"pushConfig": map[string]any{"pushEndpoint": address}, "ackDeadlineSeconds": 10,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+b.messages.Addr+"/v1/"+name, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("subscribe %s: status %d: %s", name, resp.StatusCode, text)
	}
	return nil
}

// schedule ticks as Scheduler does, until the box closes.
func (b *Box) schedule(tick func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(tickEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := tick(ctx); err != nil && !errors.Is(err, context.Canceled) {
				b.log.Warn("tick", "error", err)
			}
		}
	}()
	b.onClose(func() error {
		cancel()
		<-done
		return nil
	})
}

// tick calls a tick function once.
func tick(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
