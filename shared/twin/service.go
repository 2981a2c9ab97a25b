package twin

import (
	"context"
	"math/rand/v2"
	"strings"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const maxServiceID = 49

type servicesServer struct {
	servicesRest
	policyServer
	t *Twin
}

type servicesRest struct {
	runpb.UnimplementedServicesServer
}

// prepareService checks a declaration and fills in the defaults.
func (t *Twin) prepareService(where string, s *runpb.Service) error {
	bad := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, where+": "+format, args...)
	}
	r := s.GetTemplate()
	switch {
	case r == nil:
		return bad("template is missing: it declares the containers")
	case r.GetMaxInstanceRequestConcurrency() < 0 || r.GetMaxInstanceRequestConcurrency() > maxRooms:
		return bad("concurrency %d, want 1 to %d", r.GetMaxInstanceRequestConcurrency(), maxRooms)
	case r.GetTimeout() != nil && (r.GetTimeout().AsDuration() <= 0 || r.GetTimeout().AsDuration() > maxRequestTimeout):
		return bad("timeout %s, want more than 0 and at most %s", r.GetTimeout().AsDuration(), maxRequestTimeout)
	case r.GetRevision() != "" && (!strings.HasPrefix(r.GetRevision(), lastID(s.GetName())+"-") || !resourceID.MatchString(r.GetRevision()) || len(r.GetRevision()) > 63):
		return bad("revision %.100q: want the service's id, a hyphen, and more", r.GetRevision())
	}
	for _, n := range []int32{
		r.GetScaling().GetMinInstanceCount(), r.GetScaling().GetMaxInstanceCount(), s.GetScaling().GetMinInstanceCount(),
		s.GetScaling().GetMaxInstanceCount(), s.GetScaling().GetManualInstanceCount(),
	} {
		if n < 0 || n > maxInstances {
			return bad("scaling to %d instances, want 0 to %d", n, maxInstances)
		}
	}
	if a, b := r.GetScaling().GetMinInstanceCount(), r.GetScaling().GetMaxInstanceCount(); b > 0 && a > b {
		return bad("scaling to at least %d and at most %d instances", a, b)
	}
	if err := checkContainers(where, r.GetContainers(), len(r.GetVolumes()), true); err != nil {
		return err
	}
	if err := t.checkTraffic(bad, s); err != nil {
		return err
	}
	if r.GetMaxInstanceRequestConcurrency() == 0 {
		r.MaxInstanceRequestConcurrency = defaultRooms
	}
	if r.GetTimeout() == nil {
		r.Timeout = durationpb.New(t.opts.RequestTimeout)
	}
	if r.GetServiceAccount() == "" {
		r.ServiceAccount = t.DefaultAccount()
	}
	return nil
}

func (t *Twin) checkTraffic(bad func(string, ...any) error, s *runpb.Service) error {
	sum := int32(0)
	if len(s.GetTraffic()) > 100 {
		return bad("traffic to %d targets, want at most 100", len(s.GetTraffic()))
	}
	for _, to := range s.GetTraffic() {
		switch _, known := t.revisions.rows[s.GetName()+"/revisions/"+to.GetRevision()]; {
		case to.GetTag() != "":
			return bad("traffic to tag %.80q: the twin of Cloud Run has no URLs for tags", to.GetTag())
		case to.GetPercent() < 0 || to.GetPercent() > 100:
			return bad("traffic of %d percent", to.GetPercent())
		case to.GetType() == runpb.TrafficTargetAllocationType_TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION && !known && to.GetRevision() != s.GetTemplate().GetRevision():
			return bad("traffic to revision %.100q, which does not exist", to.GetRevision())
		}
		sum += to.GetPercent()
	}
	if len(s.GetTraffic()) > 0 && sum != 100 {
		return bad("traffic of %d percent together, want 100", sum)
	}
	return nil
}

// CreateService makes a service, with its URL and first revision.
func (s *servicesServer) CreateService(_ context.Context, r *runpb.CreateServiceRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	if err := checkID("service", r.GetServiceId(), maxServiceID); err != nil {
		return nil, err
	}
	name := r.GetParent() + "/services/" + r.GetServiceId()
	return s.t.putService(change[*runpb.Service]{name: name, declared: r.GetService(), create: true}, r.GetValidateOnly(), false)
}

// UpdateService changes a service. A changed template makes a new revision, which gets the traffic when it is ready.
func (s *servicesServer) UpdateService(_ context.Context, r *runpb.UpdateServiceRequest) (*longrunningpb.Operation, error) {
	name := r.GetService().GetName()
	if err := s.t.checkName(name, false, "services"); err != nil {
		return nil, err
	}
	if err := checkID("service", lastID(name), maxServiceID); err != nil {
		return nil, err
	}
	c := change[*runpb.Service]{name: name, declared: r.GetService(), mask: r.GetUpdateMask(), missing: r.GetAllowMissing()}
	return s.t.putService(c, r.GetValidateOnly(), r.GetForceNewRevision())
}

func (t *Twin) putService(c change[*runpb.Service], validateOnly, force bool) (*longrunningpb.Operation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// 1. What is wanted.
	s, exists, err := declare(t, &t.services, c, t.prepareService)
	if err != nil {
		return nil, err
	}
	if validateOnly {
		return preview(s), nil
	}
	old := t.services.rows[c.name].r
	running := t.servings[c.name]
	if !exists {
		running = &serving{groups: make(map[string]*group)}
		if running.front, err = t.newFront(c.name, func() *target { return t.targetOf(c.name) }); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		s.Uri = running.front.url()
		s.Urls = []string{s.Uri}
	}
	// 2. A new revision, if its template is new.
	var revision *runpb.Revision
	if !exists || force || !proto.Equal(old.GetTemplate(), s.GetTemplate()) {
		if revision, err = t.newRevision(s); err != nil {
			if !exists {
				running.front.close()
			}
			return nil, err
		}
		s.LatestCreatedRevision = revision.GetName()
		s.TerminalCondition = &runpb.Condition{Type: "Ready", State: runpb.Condition_CONDITION_RECONCILING, LastTransitionTime: timestamppb.Now()}
		s.Reconciling = true
	}
	if err := keep(t, &t.services, s, exists); err != nil {
		running.front.close()
		return nil, err
	}
	t.servings[c.name] = running
	// 3. The operation ends when the revision is up, or cannot be.
	if revision == nil {
		t.route(c.name)
		return t.finished(t.services.rows[c.name].r, c.name, nil), nil
	}
	last := s
	op := t.newOperation(c.name, func() proto.Message {
		if now, err := t.services.get(c.name); err == nil {
			last = now
		}
		return last
	})
	t.deploy(s, revision, func(err error) {
		t.settleService(c.name, revision.GetName(), err)
		op.finish(err)
	})
	return op.message(), nil
}

// deploy tries a revision by starting one container instance, which then serves, and tells whether it was up. It needs
// the lock, as done has it.
func (t *Twin) deploy(s *runpb.Service, r *runpb.Revision, done func(error)) {
	if err := t.haveImages(r.GetContainers()); err != nil {
		done(err)
		return
	}
	g := t.groupOf(s, r)
	if g.max == 0 {
		done(nil)
		return
	}
	g.onUp = append(g.onUp, func(err error) {
		if err != nil {
			err = status.Errorf(codes.FailedPrecondition, "Revision '%s' is not ready and cannot serve traffic: %s", lastID(r.GetName()), err)
		}
		done(err)
	})
	g.adjust()
	if g.live() == 0 {
		g.start()
	}
}

// settleService notes that a revision is ready, or that it cannot be. It needs the lock.
func (t *Twin) settleService(name, revision string, failure error) {
	if r, err := t.revisions.get(revision); err == nil {
		r = clone(r)
		r.Reconciling = false
		r.Conditions = []*runpb.Condition{readyCondition(failure)}
		t.revisions.put(r)
	}
	running := t.servings[name]
	s, err := t.services.get(name)
	if err != nil || running == nil {
		return // it was deleted meanwhile
	}
	s = clone(s)
	if s.GetLatestCreatedRevision() == revision {
		s.Reconciling = false
		s.TerminalCondition = readyCondition(failure)
	}
	if failure == nil && t.revisions.rows[revision].seq > t.revisions.rows[s.GetLatestReadyRevision()].seq {
		s.LatestReadyRevision = revision
	}
	t.services.put(s)
	if failure != nil && running.groups[revision] != nil {
		running.forget(revision)
	}
	t.route(name)
}

// limits is between how many container instances a revision scales.
func limits(s *runpb.Service, r *runpb.Revision) (least, most int) {
	if s.GetScaling().GetScalingMode() == runpb.ServiceScaling_MANUAL {
		n := int(s.GetScaling().GetManualInstanceCount())
		return n, n
	}
	most = int(r.GetScaling().GetMaxInstanceCount())
	if n := int(s.GetScaling().GetMaxInstanceCount()); most == 0 || n > 0 && n < most {
		most = n
	}
	if most == 0 {
		most = defaultMax
	}
	least = int(max(s.GetScaling().GetMinInstanceCount(), r.GetScaling().GetMinInstanceCount()))
	return min(least, most), most
}

// groupOf is the container instances of a revision, none of which need run yet. It needs the lock.
func (t *Twin) groupOf(s *runpb.Service, r *runpb.Revision) *group {
	running := t.servings[s.GetName()]
	g := running.groups[r.GetName()]
	if g == nil {
		g = &group{
			t: t, concurrency: int(r.GetMaxInstanceRequestConcurrency()),
			plan: plan{
				resource: s.GetName(), account: r.GetServiceAccount(), containers: r.GetContainers(), ingress: true,
				env: map[string]string{"K_SERVICE": lastID(s.GetName()), "K_REVISION": lastID(r.GetName()), "K_CONFIGURATION": lastID(s.GetName())},
			},
		}
		running.groups[r.GetName()] = g
	}
	g.retired = false
	g.min, g.max = limits(s, r)
	return g
}

// shares is which revisions get how much of the traffic, in percent. It needs the lock.
func (t *Twin) shares(s *runpb.Service) map[string]int32 {
	shares := make(map[string]int32)
	add := func(revision string, percent int32) {
		if r, err := t.revisions.get(revision); err == nil && r.GetReconciling() || err != nil {
			return // it is not ready
		}
		shares[revision] += percent
	}
	if len(s.GetTraffic()) == 0 {
		add(s.GetLatestReadyRevision(), 100)
	}
	for _, to := range s.GetTraffic() {
		if to.GetType() == runpb.TrafficTargetAllocationType_TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION {
			add(s.GetName()+"/revisions/"+to.GetRevision(), to.GetPercent())
		} else {
			add(s.GetLatestReadyRevision(), to.GetPercent())
		}
	}
	return shares
}

// route lets the revisions with traffic run as they should, and the others end. It needs the lock.
func (t *Twin) route(name string) {
	s, err := t.services.get(name)
	if err != nil {
		return
	}
	s = clone(s)
	s.TrafficStatuses = nil
	shares := t.shares(s)
	for revision, percent := range shares {
		s.TrafficStatuses = append(s.TrafficStatuses, &runpb.TrafficTargetStatus{
			Type: runpb.TrafficTargetAllocationType_TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION, Revision: lastID(revision), Percent: percent, Uri: s.GetUri(),
		})
		t.groupOf(s, t.revisions.rows[revision].r).adjust()
	}
	t.services.put(s)
	for revision := range t.servings[name].groups {
		r, err := t.revisions.get(revision)
		if shares[revision] == 0 && (err != nil || !r.GetReconciling()) {
			t.servings[name].forget(revision)
		}
	}
}

// targetOf is where the next request to a service goes. It needs the lock.
func (t *Twin) targetOf(name string) *target {
	s, err := t.services.get(name)
	if err != nil {
		return nil
	}
	dice := rand.Int32N(100)
	for revision, percent := range t.shares(s) {
		if dice -= percent; dice >= 0 {
			continue
		}
		r := t.revisions.rows[revision].r
		return &target{group: t.groupOf(s, r), timeout: r.GetTimeout().AsDuration(), audiences: s.GetCustomAudiences(), open: s.GetInvokerIamDisabled()}
	}
	return nil
}

// GetService is a service.
func (s *servicesServer) GetService(_ context.Context, r *runpb.GetServiceRequest) (*runpb.Service, error) {
	if err := s.t.checkName(r.GetName(), false, "services"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.t.services.get(r.GetName())
}

// ListServices is a page of a location's services, the newest first.
func (s *servicesServer) ListServices(_ context.Context, r *runpb.ListServicesRequest) (*runpb.ListServicesResponse, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	services, next, err := s.t.services.list(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	return &runpb.ListServicesResponse{Services: services, NextPageToken: next}, err
}

// DeleteService removes a service with its revisions. Its URL is gone at once.
func (s *servicesServer) DeleteService(_ context.Context, r *runpb.DeleteServiceRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "services"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	gone, err := discard(s.t, &s.t.services, r.GetName(), r.GetEtag(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(gone), nil
	}
	s.t.dismiss(r.GetName())
	for name := range s.t.revisions.rows {
		if below(name, r.GetName()) {
			s.t.revisions.remove(name)
		}
	}
	return s.t.finished(gone, r.GetName(), nil), nil
}

// dismiss ends what runs for a resource. It needs the lock.
func (t *Twin) dismiss(name string) {
	if s := t.servings[name]; s != nil {
		s.stop()
		delete(t.servings, name)
	}
}
