package twin

import (
	"context"
	"fmt"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type instancesServer struct {
	instancesRest
	policyServer
	t *Twin
}

type instancesRest struct {
	runpb.UnimplementedInstancesServer
}

// prepareInstance checks a declaration and fills in the defaults.
func (t *Twin) prepareInstance(where string, i *runpb.Instance) error {
	if err := checkContainers(where, i.GetContainers(), len(i.GetVolumes()), true); err != nil {
		return err
	}
	if i.GetServiceAccount() == "" {
		i.ServiceAccount = t.DefaultAccount()
	}
	if i.GetRestartPolicy() == runpb.Instance_RESTART_POLICY_UNSPECIFIED {
		i.RestartPolicy = runpb.Instance_ON_FAILURE
	}
	return nil
}

// CreateInstance makes an instance, with its URL, and starts it.
func (s *instancesServer) CreateInstance(_ context.Context, r *runpb.CreateInstanceRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	if err := checkID("instance", r.GetInstanceId(), maxServiceID); err != nil {
		return nil, err
	}
	name := r.GetParent() + "/instances/" + r.GetInstanceId()
	return s.t.putInstance(change[*runpb.Instance]{name: name, declared: r.GetInstance(), create: true}, r.GetValidateOnly())
}

// UpdateInstance changes an instance. If it runs it is ended, then started anew: there is never more than one.
func (s *instancesServer) UpdateInstance(_ context.Context, r *runpb.UpdateInstanceRequest) (*longrunningpb.Operation, error) {
	name := r.GetInstance().GetName()
	if err := s.t.checkName(name, false, "instances"); err != nil {
		return nil, err
	}
	if err := checkID("instance", lastID(name), maxServiceID); err != nil {
		return nil, err
	}
	return s.t.putInstance(change[*runpb.Instance]{
		name: name, declared: r.GetInstance(), mask: r.GetUpdateMask(), missing: r.GetAllowMissing(),
	}, r.GetValidateOnly())
}

func (t *Twin) putInstance(c change[*runpb.Instance], validateOnly bool) (*longrunningpb.Operation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// 1. What is wanted.
	i, exists, err := declare(t, &t.instances, c, t.prepareInstance)
	if err != nil {
		return nil, err
	}
	if validateOnly {
		return preview(i), nil
	}
	running := t.servings[c.name]
	if !exists {
		running = &serving{groups: map[string]*group{"": {t: t, concurrency: instanceRooms, exclusive: true}}}
		if running.front, err = t.newFront(c.name, func() *target { return t.instanceTarget(c.name) }); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		i.Urls = []string{running.front.url()}
	}
	if err := keep(t, &t.instances, i, exists); err != nil {
		running.front.close()
		return nil, err
	}
	t.servings[c.name] = running
	// 2. What runs, anew.
	g := running.groups[""]
	g.plan = plan{resource: c.name, account: i.GetServiceAccount(), containers: i.GetContainers(), ingress: true}
	g.again = func(e exit) bool { return t.instanceEnded(c.name, e) }
	if err := t.haveImages(i.GetContainers()); err != nil {
		t.condition(c.name, readyCondition(err))
		return t.finished(t.instances.rows[c.name].r, c.name, err), nil
	}
	if exists && g.max == 0 {
		return t.finished(i, c.name, nil), nil // it is stopped
	}
	for _, m := range g.members {
		g.leave(m)
	}
	return t.startInstance(c.name), nil
}

// startInstance lets an instance run; the operation ends when it is up, or cannot be. It needs the lock.
func (t *Twin) startInstance(name string) *longrunningpb.Operation {
	g := t.servings[name].groups[""]
	g.min, g.max = 1, 1
	t.condition(name, &runpb.Condition{Type: "Ready", State: runpb.Condition_CONDITION_RECONCILING, LastTransitionTime: timestamppb.Now()})
	op := t.instanceOperation(name)
	g.onUp = append(g.onUp, func(err error) {
		c := readyCondition(nil)
		if err != nil {
			err = status.Errorf(codes.FailedPrecondition, "Instance '%s' is not ready: %s", lastID(name), err)
			c = readyCondition(err)
			c.Reasons = &runpb.Condition_InstanceReason_{InstanceReason: runpb.Condition_INSTANCE_NON_ZERO_EXIT_CODE}
		}
		t.condition(name, c)
		op.finish(err)
	})
	g.adjust()
	return op.message()
}

// instanceOperation is an operation about an instance as it is. It needs the lock.
func (t *Twin) instanceOperation(name string) *operation {
	var last proto.Message = &runpb.Instance{Name: name}
	return t.newOperation(name, func() proto.Message {
		if i, err := t.instances.get(name); err == nil {
			last = i
		}
		return last
	})
}

// condition notes how an instance is. It needs the lock.
func (t *Twin) condition(name string, c *runpb.Condition) {
	i, err := t.instances.get(name)
	if err != nil {
		return
	}
	i = clone(i)
	i.TerminalCondition = c
	i.Reconciling = c.GetState() == runpb.Condition_CONDITION_RECONCILING
	i.ContainerStatuses = nil
	for _, each := range i.GetContainers() {
		i.ContainerStatuses = append(i.ContainerStatuses, &runpb.ContainerStatus{Name: each.GetName()})
	}
	t.instances.put(i)
}

// instanceEnded decides whether an instance that ended by itself starts again. It needs the lock.
func (t *Twin) instanceEnded(name string, e exit) bool {
	i, err := t.instances.get(name)
	if err != nil {
		return false
	}
	policy := i.GetRestartPolicy()
	if policy == runpb.Instance_ALWAYS || policy == runpb.Instance_ON_FAILURE && !e.ok() {
		return true
	}
	c := stoppedCondition(runpb.Condition_INSTANCE_STOPPED)
	if !e.ok() {
		c = stoppedCondition(runpb.Condition_INSTANCE_NON_ZERO_EXIT_CODE)
		c.Message = fmt.Sprintf("The container ended with exit code %d.", e.code)
	}
	t.condition(name, c)
	return false
}

func stoppedCondition(reason runpb.Condition_InstanceReason) *runpb.Condition {
	return &runpb.Condition{
		Type: "Ready", State: runpb.Condition_CONDITION_FAILED, LastTransitionTime: timestamppb.Now(),
		Reasons: &runpb.Condition_InstanceReason_{InstanceReason: reason},
	}
}

// instanceTarget is where requests to an instance go, nil while it is stopped. It needs the lock.
func (t *Twin) instanceTarget(name string) *target {
	i, err := t.instances.get(name)
	if err != nil {
		return nil
	}
	g := t.servings[name].groups[""]
	if g.max == 0 {
		return nil
	}
	return &target{group: g, timeout: maxRequestTimeout, open: i.GetInvokerIamDisabled()}
}

// running is the group of an instance that a request is about, with the instance. It needs the lock.
func (t *Twin) running(name, etag string) (*group, *runpb.Instance, error) {
	if err := t.checkName(name, false, "instances"); err != nil {
		return nil, nil, err
	}
	i, err := t.instances.get(name)
	if err != nil {
		return nil, nil, err
	}
	if err := checkEtag("Instance", i, etag); err != nil {
		return nil, nil, err
	}
	return t.servings[name].groups[""], i, nil
}

// StopInstance ends an instance, which stays declared. It is idempotent.
func (s *instancesServer) StopInstance(_ context.Context, r *runpb.StopInstanceRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	g, i, err := s.t.running(r.GetName(), r.GetEtag())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(i), nil
	}
	op := s.t.instanceOperation(r.GetName())
	s.t.condition(r.GetName(), stoppedCondition(runpb.Condition_INSTANCE_STOPPING))
	g.min, g.max = 0, 0
	g.onEmpty = append(g.onEmpty, func() {
		if g.max == 0 {
			s.t.condition(r.GetName(), stoppedCondition(runpb.Condition_INSTANCE_STOPPED))
		}
		op.finish(nil)
	})
	g.failWaiting(errNoInstance)
	g.adjust()
	return op.message(), nil
}

// StartInstance starts an instance that is stopped.
func (s *instancesServer) StartInstance(_ context.Context, r *runpb.StartInstanceRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	g, i, err := s.t.running(r.GetName(), r.GetEtag())
	if err != nil {
		return nil, err
	}
	if err := s.t.haveImages(i.GetContainers()); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "start Instance %q: %s", r.GetName(), status.Convert(err).Message())
	}
	if r.GetValidateOnly() || g.max > 0 && g.live() > 0 {
		return s.t.finished(i, r.GetName(), nil), nil
	}
	return s.t.startInstance(r.GetName()), nil
}

// GetInstance is an instance.
func (s *instancesServer) GetInstance(_ context.Context, r *runpb.GetInstanceRequest) (*runpb.Instance, error) {
	if err := s.t.checkName(r.GetName(), false, "instances"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.t.instances.get(r.GetName())
}

// ListInstances is a page of a location's instances, the newest first.
func (s *instancesServer) ListInstances(_ context.Context, r *runpb.ListInstancesRequest) (*runpb.ListInstancesResponse, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	instances, next, err := s.t.instances.list(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	return &runpb.ListInstancesResponse{Instances: instances, NextPageToken: next}, err
}

// DeleteInstance removes an instance and ends it.
func (s *instancesServer) DeleteInstance(_ context.Context, r *runpb.DeleteInstanceRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "instances"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	gone, err := discard(s.t, &s.t.instances, r.GetName(), r.GetEtag(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(gone), nil
	}
	s.t.dismiss(r.GetName())
	return s.t.finished(gone, r.GetName(), nil), nil
}

// Restart ends an instance with SIGTERM and the grace, and starts it anew, as the platform does about once a week. name is
// the instance's full name.
func (t *Twin) Restart(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, _, err := t.running(name, "")
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if len(g.members) == 0 {
		return fmt.Errorf("restart %s: it does not run", name)
	}
	for _, m := range g.members {
		g.leave(m)
	}
	return nil
}
