package twin

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// change is a request to create or change a resource.
type change[R resource] struct {
	name     string
	declared R
	mask     *fieldmaskpb.FieldMask
	create   bool // it must not exist
	missing  bool // it need not exist
}

// declare makes the resource that a request wants from the one that is there, checks it and fills in its defaults. It
// needs the lock, and changes nothing.
func declare[R resource](t *Twin, tab *table[R], c change[R], prepare func(where string, r R) error) (wanted R, exists bool, err error) {
	where := tab.kind + " " + c.name
	old, missing := tab.get(c.name)
	exists = missing == nil
	switch {
	case t.closed:
		return wanted, exists, status.Error(codes.Unavailable, errClosed.Error())
	case !c.declared.ProtoReflect().IsValid():
		return wanted, exists, status.Errorf(codes.InvalidArgument, "%s: the request declares none", where)
	case c.create && exists:
		return wanted, exists, status.Errorf(codes.AlreadyExists, "%s %q exists already", tab.kind, c.name)
	case !c.create && !c.missing && !exists:
		return wanted, exists, missing
	}
	if exists {
		if err := checkEtag(tab.kind, old, c.declared.GetEtag()); err != nil {
			return wanted, exists, err
		}
		if wanted, err = merge(old, c.declared, c.mask); err != nil {
			return wanted, exists, err
		}
		t.stampChanged(wanted)
	} else {
		wanted = clone(c.declared)
		keepOutput(wanted.ProtoReflect(), nil)
		t.stampNew(wanted, c.name)
	}
	return wanted, exists, prepare(where, wanted)
}

// keep puts what declare made into its table. It needs the lock.
func keep[R resource](t *Twin, tab *table[R], r R, exists bool) error {
	if exists {
		tab.put(r)
		return nil
	}
	return tab.add(t.next(), r)
}

// discard takes a resource out of its table, if the request's etag is its own, and returns it as deleted. It needs the
// lock. With validateOnly the resource stays.
func discard[R resource](t *Twin, tab *table[R], name, etag string, validateOnly bool) (R, error) {
	r, err := tab.get(name)
	if err != nil {
		return r, err
	}
	if err := checkEtag(tab.kind, r, etag); err != nil || validateOnly {
		return r, err
	}
	tab.remove(name)
	delete(t.policies, name)
	r = clone(r)
	set(r, map[string]any{"delete_time": timestamppb.Now()})
	return r, nil
}

// serving is what runs for a service, an instance or a worker pool. It is guarded by the twin's lock.
type serving struct {
	front  *front            // nil for a pool
	groups map[string]*group // by the full name of the revision, "" of an instance
}

// stop ends all of it.
func (s *serving) stop() {
	s.front.close()
	for _, g := range s.groups {
		g.end()
	}
}

// forget ends a group, and drops it once it is empty.
func (s *serving) forget(name string) {
	g := s.groups[name]
	if g.retired {
		return
	}
	g.onEmpty = append(g.onEmpty, func() {
		if g.retired && s.groups[name] == g { // it may have come back to life
			delete(s.groups, name)
		}
	})
	g.retire()
}
