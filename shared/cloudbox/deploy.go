package cloudbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/fleet"
)

// How a workload is made of an agent: what terraform does for a real project.
const (
	poolInstances = 2
	maxInstances  = 2
	jobSlots      = 10 // executions of one job at a time
	jobTimeout    = time.Hour
)

// image is the command that an image of the box stands for: KIND/NAME, where a pool's image is the worker that starts
// the agent's program for each run, and any other the program itself.
func (b *Box) image(name string) ([]string, error) {
	kind, name, _ := strings.Cut(name, "/")
	if command := b.o.Programs[name]; kind == "command" && len(command) > 0 {
		return command, nil
	}
	for _, a := range b.agents() {
		if a.Name() != name {
			continue
		}
		command, err := commandOf(a)
		if err == nil && kind == "pool" {
			command = slices.Concat(b.o.Programs["worker"], []string{"--"}, command)
		}
		return command, err
	}
	return nil, fmt.Errorf("no image %s/%s", kind, name)
}

// commandOf is an agent's command as it is started from anywhere.
func commandOf(a *fleet.Agent) ([]string, error) {
	if len(a.Run.Command) == 0 {
		return nil, fmt.Errorf("agent %s has no run.command, which its container would start", a.Name())
	}
	command := append([]string(nil), a.Run.Command...)
	if strings.Contains(command[0], "/") && !filepath.IsAbs(command[0]) {
		path, err := filepath.Abs(filepath.Join(a.Run.Dir, command[0]))
		if err != nil {
			return nil, fmt.Errorf("command of agent %s: %w", a.Name(), err)
		}
		command[0] = path
	}
	return command, nil
}

// build makes an agent's program.
func build(ctx context.Context, a *fleet.Agent) error {
	if len(a.Run.Build) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, a.Run.Build[0], a.Run.Build[1:]...)
	cmd.Dir, cmd.Env = a.Run.Dir, os.Environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build agent %s: %w\n%s", a.Name(), err, out)
	}
	return nil
}

// resource is the name of an agent's workload on Cloud Run.
func resource(a *fleet.Agent) string {
	collection := map[fleet.Shape]string{fleet.Service: "services", fleet.Instance: "instances", fleet.Pool: "workerPools", fleet.Job: "jobs"}[a.Shape]
	return parent + "/" + collection + "/" + a.Name()
}

const parent = "projects/" + project + "/locations/" + region

// target is where an agent's runs go.
func (b *Box) target(a *fleet.Agent) *fleet.Target {
	slots := max(a.Run.Slots, 1)
	runs := map[fleet.Shape]int{fleet.Service: slots * maxInstances, fleet.Instance: slots, fleet.Pool: slots * poolInstances, fleet.Job: jobSlots}[a.Shape]
	return &fleet.Target{
		Meta: fleet.Meta{Name: a.Name()}, Runtime: fleet.RuntimeCloudRun, Shapes: []fleet.Shape{a.Shape}, Resource: resource(a), Region: region,
		Identity: account(a.Name()), Capacity: fleet.Capacity{Runs: runs},
	}
}

// deploy makes a workload for every agent.
func (b *Box) deploy(ctx context.Context) error {
	var faults []error
	for _, a := range b.agents() {
		a.Identity = account(a.Name())
		if err := build(ctx, a); err != nil {
			return err
		}
		if err := b.deployOne(ctx, a); err != nil {
			faults = append(faults, fmt.Errorf("deploy agent %s as %s: %w", a.Name(), a.Shape, err))
		}
	}
	return errors.Join(faults...)
}

func (b *Box) clientOptions() []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(b.twin.Endpoint()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

func (b *Box) deployOne(ctx context.Context, a *fleet.Agent) error {
	email := account(a.Name())
	env := map[string]string{
		"ERRAND_URL": b.URL(), "ERRAND_AUDIENCE": b.URL(), "ERRAND_AGENT": a.Name(), "ERRAND_SLOTS": strconv.Itoa(max(a.Run.Slots, 1)),
	}
	for k, v := range a.Run.Env {
		env[k] = v
	}
	dir, err := filepath.Abs(a.Run.Dir)
	if err != nil {
		return err
	}
	container := []*runpb.Container{{Image: "agent/" + a.Name(), WorkingDir: dir}}
	var workload proto.Message
	switch a.Shape {
	case fleet.Service:
		env["ERRAND_PROTOCOL"] = "http"
		workload = &runpb.Service{Name: resource(a), Template: &runpb.RevisionTemplate{
			ServiceAccount: email, MaxInstanceRequestConcurrency: int32(max(a.Run.Slots, 1)),
			Scaling: &runpb.RevisionScaling{MaxInstanceCount: maxInstances}, Containers: container,
		}}
	case fleet.Instance:
		env["ERRAND_PROTOCOL"] = "http"
		workload = &runpb.Instance{Name: resource(a), ServiceAccount: email, Containers: container}
	case fleet.Pool:
		env["ERRAND_TARGET"], env["ERRAND_BUS"] = a.Name(), "pubsub:"+project
		container[0].Image = "pool/" + a.Name()
		count := int32(poolInstances)
		workload = &runpb.WorkerPool{
			Name: resource(a), Scaling: &runpb.WorkerPoolScaling{ManualInstanceCount: &count},
			Template: &runpb.WorkerPoolRevisionTemplate{ServiceAccount: email, Containers: container},
		}
	default:
		workload = &runpb.Job{Name: resource(a), Template: &runpb.ExecutionTemplate{TaskCount: 1, Template: &runpb.TaskTemplate{
			ServiceAccount: email, Timeout: durationpb.New(jobTimeout), Retries: &runpb.TaskTemplate_MaxRetries{MaxRetries: 0}, Containers: container,
		}}}
	}
	container[0].Env = vars(env)
	if err := b.twin.Apply(ctx, workload); err != nil {
		return err
	}
	switch w := workload.(type) {
	case *runpb.Service:
		b.addresses = append(b.addresses, Address{a.Name(), a.Shape, w.GetUri()})
	case *runpb.Instance:
		b.addresses = append(b.addresses, Address{a.Name(), a.Shape, w.GetUrls()[0]})
	}
	return nil
}

// Address is where a service or an instance takes requests, from callers with an identity token.
type Address struct {
	Agent string
	Shape fleet.Shape
	URL   string
}

// Addresses are those of the services and instances of the fleet, in its order.
func (b *Box) Addresses() []Address { return slices.Clone(b.addresses) }

// Place is where the box's workloads are in Cloud Run, as gcloud is told it.
func Place() (projectID, regionID string) { return project, region }

func vars(env map[string]string) []*runpb.EnvVar {
	var out []*runpb.EnvVar
	for k, v := range env {
		out = append(out, &runpb.EnvVar{Name: k, Values: &runpb.EnvVar_Value{Value: v}})
	}
	return out
}
