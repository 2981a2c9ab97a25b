package twin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxRevisions of a service are kept; older ones that take no traffic go.
const maxRevisions = 100

// newRevision makes the revision that a service's template stands for. It needs the lock.
func (t *Twin) newRevision(s *runpb.Service) (*runpb.Revision, error) {
	template := s.GetTemplate()
	id := template.GetRevision()
	if id == "" {
		id = fmt.Sprintf("%s-%05d-%s", lastID(s.GetName()), s.GetGeneration(), letters(3))
	}
	name := s.GetName() + "/revisions/" + id
	if _, ok := t.revisions.rows[name]; ok {
		return nil, status.Errorf(codes.AlreadyExists, "Revision %q exists already: leave template.revision out, or give another", name)
	}
	t.pruneRevisions(s)
	r := &runpb.Revision{
		Labels: template.GetLabels(), Annotations: template.GetAnnotations(), Service: lastID(s.GetName()), Scaling: template.GetScaling(),
		MaxInstanceRequestConcurrency: template.GetMaxInstanceRequestConcurrency(), Timeout: template.GetTimeout(),
		ServiceAccount: template.GetServiceAccount(), Containers: template.GetContainers(), ExecutionEnvironment: template.GetExecutionEnvironment(),
		SessionAffinity: template.GetSessionAffinity(), Reconciling: true,
	}
	t.stampNew(r, name)
	r.Conditions = []*runpb.Condition{{Type: "Ready", State: runpb.Condition_CONDITION_RECONCILING, LastTransitionTime: r.GetCreateTime()}}
	return r, t.revisions.add(t.next(), r)
}

// pruneRevisions forgets the oldest revisions of a service that take no traffic. It needs the lock.
func (t *Twin) pruneRevisions(s *runpb.Service) {
	var all []entry[*runpb.Revision]
	for name, e := range t.revisions.rows {
		if below(name, s.GetName()) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b entry[*runpb.Revision]) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range all[:max(len(all)-maxRevisions+1, 0)] {
		if t.servings[s.GetName()].groups[e.r.GetName()] == nil && t.shares(s)[e.r.GetName()] == 0 {
			t.revisions.remove(e.r.GetName())
		}
	}
}

type revisionsServer struct {
	runpb.UnimplementedRevisionsServer
	t *Twin
}

// GetRevision is a revision.
func (s *revisionsServer) GetRevision(_ context.Context, r *runpb.GetRevisionRequest) (*runpb.Revision, error) {
	if err := s.t.checkName(r.GetName(), false, "services", "revisions"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.t.revisions.get(r.GetName())
}

// ListRevisions is a page of a service's revisions, or of all services' with "-" for the service, the newest first.
func (s *revisionsServer) ListRevisions(_ context.Context, r *runpb.ListRevisionsRequest) (*runpb.ListRevisionsResponse, error) {
	if err := s.t.checkName(r.GetParent(), true, "services"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	revisions, next, err := s.t.revisions.list(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	return &runpb.ListRevisionsResponse{Revisions: revisions, NextPageToken: next}, err
}

// DeleteRevision removes a revision that is not the latest and takes no traffic.
func (s *revisionsServer) DeleteRevision(_ context.Context, r *runpb.DeleteRevisionRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "services", "revisions"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, e := range s.t.services.rows {
		if e.r.GetLatestCreatedRevision() == r.GetName() || s.t.shares(e.r)[r.GetName()] > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "delete Revision %q: it is the latest of its service, or takes traffic", r.GetName())
		}
	}
	gone, err := discard(s.t, &s.t.revisions, r.GetName(), r.GetEtag(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(gone), nil
	}
	return s.t.finished(gone, r.GetName(), nil), nil
}
