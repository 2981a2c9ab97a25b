package twin

import (
	"context"
	"slices"

	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// policies are the access policies of resources, by full name.
type policies map[string]*iampb.Policy

const maxBindings = 100

// policyServer has the access methods that four services of the API share.
type policyServer struct{ t *Twin }

// exists needs the lock.
func (t *Twin) exists(name string) bool {
	_, job := t.jobs.rows[name]
	_, served := t.servings[name]
	return job || served
}

// GetIamPolicy is the policy of a resource, an empty one where none was set.
func (s policyServer) GetIamPolicy(_ context.Context, r *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if !s.t.exists(r.GetResource()) {
		return nil, notFound("Resource", r.GetResource())
	}
	if p, ok := s.t.policies[r.GetResource()]; ok {
		return p, nil
	}
	return &iampb.Policy{Version: 1, Etag: []byte("ACAB")}, nil
}

// SetIamPolicy replaces the policy of a resource.
func (s policyServer) SetIamPolicy(_ context.Context, r *iampb.SetIamPolicyRequest) (*iampb.Policy, error) {
	if r.GetPolicy() == nil {
		return nil, status.Errorf(codes.InvalidArgument, "set the policy of %q: there is none in the request", r.GetResource())
	}
	if n := len(r.GetPolicy().GetBindings()); n > maxBindings {
		return nil, status.Errorf(codes.InvalidArgument, "set the policy of %q: %d bindings, want at most %d", r.GetResource(), n, maxBindings)
	}
	for _, b := range r.GetPolicy().GetBindings() {
		if b.GetCondition() != nil {
			return nil, status.Errorf(codes.InvalidArgument, "set the policy of %q: Cloud Run takes no conditions in bindings", r.GetResource())
		}
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if !s.t.exists(r.GetResource()) {
		return nil, notFound("Resource", r.GetResource())
	}
	old := s.t.policies[r.GetResource()]
	if etag := r.GetPolicy().GetEtag(); old != nil && len(etag) > 0 && !slices.Equal(etag, old.GetEtag()) {
		return nil, status.Errorf(codes.Aborted, "set the policy of %q: it changed since; read it again", r.GetResource())
	}
	p := proto.Clone(r.GetPolicy()).(*iampb.Policy)
	p.Etag = []byte(letters(8))
	s.t.policies[r.GetResource()] = p
	return p, nil
}

// TestIamPermissions grants all that is asked: callers of the twin's API have every right.
func (s policyServer) TestIamPermissions(_ context.Context, r *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	return &iampb.TestIamPermissionsResponse{Permissions: r.GetPermissions()}, nil
}

// mayInvoke reports whether a policy, or one that holds for all, lets an account call a resource. It needs the lock.
func (t *Twin) mayInvoke(name, email string) bool {
	allowed := func(members []string) bool {
		return slices.Contains(members, "allUsers") || email != "" && (slices.Contains(members, "allAuthenticatedUsers") ||
			slices.Contains(members, "serviceAccount:"+email) || slices.Contains(members, "user:"+email))
	}
	if allowed(t.opts.Invokers) {
		return true
	}
	for _, b := range t.policies[name].GetBindings() {
		if (b.GetRole() == "roles/run.invoker" || b.GetRole() == "roles/run.admin") && allowed(b.GetMembers()) {
			return true
		}
	}
	return false
}
