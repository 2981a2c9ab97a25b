package twin

import (
	"context"
	"fmt"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type poolsServer struct {
	poolsRest
	policyServer
	t *Twin
}

type poolsRest struct {
	runpb.UnimplementedWorkerPoolsServer
}

// preparePool checks a declaration and fills in the defaults.
func (t *Twin) preparePool(where string, p *runpb.WorkerPool) error {
	bad := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, where+": "+format, args...)
	}
	switch n := p.GetScaling().GetManualInstanceCount(); {
	case p.GetTemplate() == nil:
		return bad("template is missing: it declares the containers")
	case n < 0 || n > maxInstances:
		return bad("%d instances, want 0 to %d", n, maxInstances)
	case len(p.GetInstanceSplits()) > 0:
		return bad("the twin of Cloud Run runs the newest revision alone: leave the instance splits out")
	}
	if err := checkContainers(where, p.GetTemplate().GetContainers(), len(p.GetTemplate().GetVolumes()), false); err != nil {
		return err
	}
	if p.GetTemplate().GetServiceAccount() == "" {
		p.Template.ServiceAccount = t.DefaultAccount()
	}
	if p.Scaling == nil {
		p.Scaling = new(runpb.WorkerPoolScaling)
	}
	if p.Scaling.ManualInstanceCount == nil {
		p.Scaling.ManualInstanceCount = proto.Int32(1)
	}
	return nil
}

// CreateWorkerPool makes a worker pool and starts its instances.
func (s *poolsServer) CreateWorkerPool(_ context.Context, r *runpb.CreateWorkerPoolRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	if err := checkID("worker pool", r.GetWorkerPoolId(), maxServiceID); err != nil {
		return nil, err
	}
	name := r.GetParent() + "/workerPools/" + r.GetWorkerPoolId()
	return s.t.putPool(change[*runpb.WorkerPool]{name: name, declared: r.GetWorkerPool(), create: true}, r.GetValidateOnly(), false)
}

// UpdateWorkerPool changes a worker pool: the count of instances, or what they run.
func (s *poolsServer) UpdateWorkerPool(_ context.Context, r *runpb.UpdateWorkerPoolRequest) (*longrunningpb.Operation, error) {
	name := r.GetWorkerPool().GetName()
	if err := s.t.checkName(name, false, "workerPools"); err != nil {
		return nil, err
	}
	if err := checkID("worker pool", lastID(name), maxServiceID); err != nil {
		return nil, err
	}
	c := change[*runpb.WorkerPool]{name: name, declared: r.GetWorkerPool(), mask: r.GetUpdateMask(), missing: r.GetAllowMissing()}
	return s.t.putPool(c, r.GetValidateOnly(), r.GetForceNewRevision())
}

func (t *Twin) putPool(c change[*runpb.WorkerPool], validateOnly, force bool) (*longrunningpb.Operation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// 1. What is wanted.
	p, exists, err := declare(t, &t.pools, c, t.preparePool)
	if err != nil {
		return nil, err
	}
	if validateOnly {
		return preview(p), nil
	}
	old := t.pools.rows[c.name].r
	fresh := !exists || force || !proto.Equal(old.GetTemplate(), p.GetTemplate())
	ready := error(nil)
	if fresh {
		id := p.GetTemplate().GetRevision()
		if id == "" {
			id = fmt.Sprintf("%s-%05d-%s", lastID(c.name), p.GetGeneration(), letters(3))
		}
		p.LatestCreatedRevision = c.name + "/revisions/" + id
		if ready = t.haveImages(p.GetTemplate().GetContainers()); ready == nil {
			p.LatestReadyRevision = p.LatestCreatedRevision
		}
	}
	p.TerminalCondition = readyCondition(ready)
	if err := keep(t, &t.pools, p, exists); err != nil {
		return nil, err
	}
	if ready != nil {
		return t.finished(p, c.name, ready), nil
	}
	// 2. Another count is at once. A new revision takes over when it is up.
	running := t.servings[c.name]
	if running == nil {
		running = &serving{groups: make(map[string]*group)}
		t.servings[c.name] = running
	}
	g := running.groups[p.GetLatestReadyRevision()]
	if g == nil {
		g = &group{t: t, plan: plan{
			resource: c.name, account: p.GetTemplate().GetServiceAccount(), containers: p.GetTemplate().GetContainers(),
			env: map[string]string{"CLOUD_RUN_WORKER_POOL": lastID(c.name), "CLOUD_RUN_WORKER_POOL_REVISION": lastID(p.GetLatestReadyRevision())},
		}}
		running.groups[p.GetLatestReadyRevision()] = g
	}
	g.min = int(p.GetScaling().GetManualInstanceCount())
	g.max = g.min
	replace := func() {
		for revision := range running.groups {
			if revision != p.GetLatestReadyRevision() {
				running.forget(revision)
			}
		}
	}
	grows := g.live() < g.min
	if grows && fresh {
		op := t.newOperation(c.name, func() proto.Message { return p })
		g.onUp = append(g.onUp, func(err error) {
			if err != nil {
				err = status.Errorf(codes.FailedPrecondition, "Revision '%s' is not ready: %s", lastID(p.GetLatestCreatedRevision()), err)
			}
			replace()
			op.finish(err)
		})
		g.adjust()
		return op.message(), nil
	}
	g.adjust()
	replace()
	return t.finished(p, c.name, nil), nil
}

// GetWorkerPool is a worker pool.
func (s *poolsServer) GetWorkerPool(_ context.Context, r *runpb.GetWorkerPoolRequest) (*runpb.WorkerPool, error) {
	if err := s.t.checkName(r.GetName(), false, "workerPools"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.t.pools.get(r.GetName())
}

// ListWorkerPools is a page of a location's worker pools, the newest first.
func (s *poolsServer) ListWorkerPools(_ context.Context, r *runpb.ListWorkerPoolsRequest) (*runpb.ListWorkerPoolsResponse, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	pools, next, err := s.t.pools.list(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	return &runpb.ListWorkerPoolsResponse{WorkerPools: pools, NextPageToken: next}, err
}

// DeleteWorkerPool removes a worker pool and ends its instances.
func (s *poolsServer) DeleteWorkerPool(_ context.Context, r *runpb.DeleteWorkerPoolRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "workerPools"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	gone, err := discard(s.t, &s.t.pools, r.GetName(), r.GetEtag(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(gone), nil
	}
	s.t.dismiss(r.GetName())
	return s.t.finished(gone, r.GetName(), nil), nil
}
