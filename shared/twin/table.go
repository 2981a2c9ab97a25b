package twin

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// resource is what services, jobs, worker pools, instances and revisions have in common.
type resource interface {
	proto.Message
	GetName() string
	GetEtag() string
	GetUid() string
	GetGeneration() int64
	GetCreateTime() *timestamppb.Timestamp
}

// table holds the resources of one kind. Its methods need the twin's lock. What it holds is never changed in place, so
// that it can be sent without the lock.
type table[R resource] struct {
	kind string
	rows map[string]entry[R]
}

type entry[R resource] struct {
	seq int64 // order of creation
	r   R
}

func (t *table[R]) get(name string) (R, error) {
	e, ok := t.rows[name]
	if !ok {
		return e.r, notFound(t.kind, name)
	}
	return e.r, nil
}

// add takes a new resource under its name.
func (t *table[R]) add(seq int64, r R) error {
	if _, ok := t.rows[r.GetName()]; ok {
		return status.Errorf(codes.AlreadyExists, "%s %q exists already", t.kind, r.GetName())
	}
	if len(t.rows) >= maxResources {
		return status.Errorf(codes.ResourceExhausted, "%s %q: there are %d already", t.kind, r.GetName(), maxResources)
	}
	if t.rows == nil {
		t.rows = make(map[string]entry[R])
	}
	t.rows[r.GetName()] = entry[R]{seq, r}
	return nil
}

// put replaces a resource that is there.
func (t *table[R]) put(r R) {
	e := t.rows[r.GetName()]
	t.rows[r.GetName()] = entry[R]{e.seq, r}
}

func (t *table[R]) remove(name string) { delete(t.rows, name) }

// list is one page of what is below parent, the newest first.
func (t *table[R]) list(parent string, size int32, token string) ([]R, string, error) {
	var all []entry[R]
	for name, e := range t.rows {
		if below(name, parent) {
			all = append(all, e)
		}
	}
	page, next, err := paginate(all, func(e entry[R]) int64 { return e.seq }, size, token)
	if err != nil {
		return nil, "", err
	}
	found := make([]R, len(page))
	for i, e := range page {
		found[i] = e.r
	}
	return found, next, nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)

// paginate sorts by falling number and cuts out the page that token tells. Numbers are unique and positive.
func paginate[T any](all []T, number func(T) int64, size int32, token string) (page []T, next string, err error) {
	switch {
	case size < 0:
		return nil, "", status.Errorf(codes.InvalidArgument, "page size %d: want 0 or more", size)
	case size == 0:
		size = defaultPage
	}
	size = min(size, maxPage)
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(number(b), number(a)) })
	if token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		after, perr := strconv.ParseInt(strings.TrimPrefix(string(raw), "after:"), 10, 64)
		if err != nil || perr != nil || !strings.HasPrefix(string(raw), "after:") {
			return nil, "", status.Errorf(codes.InvalidArgument, "page token %.100q: give the one of an earlier answer", token)
		}
		i := slices.IndexFunc(all, func(v T) bool { return number(v) < after })
		if i < 0 {
			return nil, "", nil
		}
		all = all[i:]
	}
	if len(all) <= int(size) {
		return all, "", nil
	}
	page = all[:size]
	last := number(page[size-1])
	return page, base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "after:%d", last)), nil
}

// clone is a copy of a message in its own type.
func clone[M proto.Message](m M) M { return proto.Clone(m).(M) }

// set sets fields that the kinds of resources have in common, by the name of the field.
func set(m proto.Message, fields map[string]any) {
	r := m.ProtoReflect()
	for name, value := range fields {
		fd := r.Descriptor().Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			continue // kinds differ: a revision has no modifier
		}
		switch v := value.(type) {
		case proto.Message:
			r.Set(fd, protoreflect.ValueOfMessage(v.ProtoReflect()))
		default:
			r.Set(fd, protoreflect.ValueOf(v))
		}
	}
}

// stampNew fills in what the API knows of a resource that was just created.
func (t *Twin) stampNew(m proto.Message, name string) {
	now := timestamppb.Now()
	set(m, map[string]any{
		"name": name, "uid": newUUID(), "generation": int64(1), "observed_generation": int64(1),
		"create_time": now, "update_time": now, "etag": newEtag(),
		"creator": creator, "last_modifier": creator,
	})
}

// stampChanged does the same for one whose declaration changed.
func (t *Twin) stampChanged(m resource) {
	set(m, map[string]any{
		"generation": m.GetGeneration() + 1, "observed_generation": m.GetGeneration() + 1,
		"update_time": timestamppb.Now(), "etag": newEtag(), "last_modifier": creator,
	})
}

// creator is who changes resources: calls to the twin's API carry no identity.
const creator = "user@example.com"

func newEtag() string { return `"` + letters(16) + `"` }

// checkEtag refuses a change that was based on another version.
func checkEtag(kind string, r interface {
	GetName() string
	GetEtag() string
}, etag string,
) error {
	if etag != "" && etag != r.GetEtag() {
		return status.Errorf(codes.Aborted, "%s %q: it changed since: its etag is %s, the request's %.80s; read it again", kind, r.GetName(), r.GetEtag(), etag)
	}
	return nil
}

// keepOutput makes the output-only fields of m those of old, or empty where old is nil: callers do not set them.
func keepOutput(m, old protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !isOutput(fd) {
			continue
		}
		if old != nil && old.Has(fd) {
			m.Set(fd, old.Get(fd))
		} else {
			m.Clear(fd)
		}
	}
}

func isOutput(fd protoreflect.FieldDescriptor) bool {
	behavior, _ := proto.GetExtension(fd.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behavior, annotations.FieldBehavior_OUTPUT_ONLY)
}

// merge is old with the fields of the mask taken from request; all that is not output-only where the mask is empty or
// "*". Both stay as they are.
func merge[R resource](old, request R, mask *fieldmaskpb.FieldMask) (R, error) {
	if len(mask.GetPaths()) == 0 || len(mask.GetPaths()) == 1 && mask.GetPaths()[0] == "*" {
		merged := clone(request)
		keepOutput(merged.ProtoReflect(), old.ProtoReflect())
		set(merged, map[string]any{"name": old.GetName(), "etag": old.GetEtag()})
		return merged, nil
	}
	merged := clone(old)
	if !mask.IsValid(merged) {
		return merged, status.Errorf(codes.InvalidArgument, "update mask %.200q: %q has no such field", mask.GetPaths(), old.GetName())
	}
	from := clone(request)
	for _, path := range mask.GetPaths() {
		copyField(merged.ProtoReflect(), from.ProtoReflect(), strings.Split(path, "."))
	}
	keepOutput(merged.ProtoReflect(), old.ProtoReflect())
	set(merged, map[string]any{"name": old.GetName(), "etag": old.GetEtag()})
	return merged, nil
}

// copyField copies the field at the end of a valid path.
func copyField(to, from protoreflect.Message, path []string) {
	fd := to.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	if len(path) > 1 {
		copyField(to.Mutable(fd).Message(), from.Get(fd).Message(), path[1:])
		return
	}
	if from.Has(fd) {
		to.Set(fd, from.Get(fd))
	} else {
		to.Clear(fd)
	}
}
