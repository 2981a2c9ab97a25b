package twin

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	regionID   = regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`)
	resourceID = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
)

// checkParent refuses a parent that is not projects/PROJECT/locations/REGION of the twin's project.
func (t *Twin) checkParent(parent string) error {
	p := strings.Split(parent, "/")
	if len(p) != 4 || p[0] != "projects" || p[2] != "locations" || !regionID.MatchString(p[3]) {
		return status.Errorf(codes.InvalidArgument, "parent %.200q: want projects/PROJECT/locations/REGION", parent)
	}
	if p[1] != t.opts.Project {
		return status.Errorf(codes.PermissionDenied, "project %.100q: this is project %q alone", p[1], t.opts.Project)
	}
	return nil
}

// checkName refuses a name that is not one of the collections' resources, projects/P/locations/R/jobs/J/executions/E for
// "jobs", "executions". With wild, an id may be "-", which stands for all of the collection.
func (t *Twin) checkName(name string, wild bool, collections ...string) error {
	bad := func() error {
		want := "projects/PROJECT/locations/REGION"
		for _, c := range collections {
			want += "/" + c + "/" + strings.ToUpper(strings.TrimSuffix(c, "s"))
		}
		return status.Errorf(codes.InvalidArgument, "name %.200q: want %s", name, want)
	}
	p := strings.Split(name, "/")
	if len(p) != 4+2*len(collections) {
		return bad()
	}
	if err := t.checkParent(strings.Join(p[:4], "/")); err != nil {
		return err
	}
	for i, c := range collections {
		id := p[5+2*i]
		if p[4+2*i] != c || !resourceID.MatchString(id) && !(wild && id == "-") {
			return bad()
		}
	}
	return nil
}

// checkID refuses an id that no new resource may have.
func checkID(kind, id string, most int) error {
	if !resourceID.MatchString(id) || len(id) > most {
		return status.Errorf(codes.InvalidArgument,
			"%s id %.100q: want a lower-case letter, then letters, digits and hyphens, not a hyphen last, at most %d characters", kind, id, most)
	}
	return nil
}

// below reports whether a name lies directly in a collection of parent, where a "-" in parent stands for any id.
func below(name, parent string) bool {
	n, p := strings.Split(name, "/"), strings.Split(parent, "/")
	if len(n) != len(p)+2 {
		return false
	}
	for i := range p {
		if p[i] != "-" && p[i] != n[i] {
			return false
		}
	}
	return true
}

// lastID is the last element of a name.
func lastID(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// locationOf is the projects/P/locations/R that a name begins with.
func locationOf(name string) string {
	return strings.Join(strings.SplitN(name, "/", 5)[:4], "/")
}

func notFound(kind, name string) error {
	return status.Errorf(codes.NotFound, "%s %q does not exist", kind, name)
}
