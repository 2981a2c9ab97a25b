package server

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// maxPath bounds a path with its query, in bytes. Names of effects and steps are part of paths.
const maxPath = 8 << 10

// canonicalPath lets only paths through that have one meaning, and prepares custom verbs (POST /v1/runs/ID:cancel):
// names of effects and steps may hold colons and encoded slashes, so every colon is encoded but that of the verb.
// Routers cut at the first colon, and at slashes.
func canonicalPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > maxPath {
			writeProblem(w, problem(http.StatusRequestURITooLong, api.CodeTooLarge, "the address is longer than %d bytes", maxPath))
			return
		}
		if isPlain(r.Method, r.URL) {
			next.ServeHTTP(w, r)
			return
		}
		path := r.URL.EscapedPath()
		segments := strings.Split(path, "/")
		for i, s := range segments {
			plain, err := url.PathUnescape(s)
			switch {
			case err != nil, !utf8.ValidString(plain), strings.ContainsFunc(plain, unicode.IsControl):
				writeProblem(w, invalid("the path has a segment that is not printable UTF-8 text"))
				return
			case plain == ".", plain == "..", plain == "" && i > 0 && i < len(segments)-1:
				writeProblem(w, notFound("the path has an empty segment, or one of dots; nothing is there"))
				return
			}
		}
		last := len(segments) - 1
		head, verb := cutVerb(r.Method, segments)
		for i := range segments {
			if i == last {
				segments[i] = head
			}
			segments[i] = strings.ReplaceAll(segments[i], ":", "%3A")
		}
		r2 := new(http.Request)
		*r2 = *r
		u := *r.URL
		u.RawPath = strings.Join(segments, "/") + verb
		r2.URL = &u
		next.ServeHTTP(w, r2)
	})
}

// isPlain reports whether a path is plainly one of letters and digits, with at most a verb, as nearly all are: then there
// is nothing to prepare.
func isPlain(method string, u *url.URL) bool {
	if u.RawPath != "" || u.Path == "" || u.Path[0] != '/' {
		return false
	}
	for i := 1; i < len(u.Path); i++ {
		switch c := u.Path[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_':
		case c == '/':
			if u.Path[i-1] == '/' {
				return false
			}
		case c == ':':
			return method == http.MethodPost && isVerb.MatchString(u.Path[i+1:])
		default:
			return false
		}
	}
	return true
}

// cutVerb separates the verb from the last segment of a path: what follows its last colon, where that can be a verb.
func cutVerb(method string, segments []string) (head, verb string) {
	head = segments[len(segments)-1]
	colon := strings.LastIndexByte(head, ':')
	if method != http.MethodPost || colon < 0 || !isVerb.MatchString(head[colon+1:]) {
		return head, ""
	}
	return head[:colon], head[colon:]
}

var (
	isVerb = regexp.MustCompile(`^[a-z]{1,20}$`)
	isID   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	isName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// pathValue is a segment of the matched path, decoded.
func pathValue(r *http.Request, name string) string {
	v, err := url.PathUnescape(chi.URLParam(r, name))
	if err != nil {
		return "" // canonicalPath let only good encodings through
	}
	return v
}

// runID checks the shape of a run's id; what has another shape cannot exist.
func runID(id string) error {
	if !isID.MatchString(id) {
		return notFound("there is no run %q", clip(id))
	}
	return nil
}

func receiptID(id string) error {
	if !isID.MatchString(id) {
		return notFound("there is no receipt %q", clip(id))
	}
	return nil
}

func objectName(kind, name string) error {
	if !isName.MatchString(name) {
		return notFound("there is no %s %q", strings.ToLower(kind), clip(name))
	}
	return nil
}

// attemptID takes the id of an attempt apart.
func attemptID(id string) (runID string, n int, err error) {
	runID, n, err = runtime.ParseAttemptID(id)
	if err != nil || !isID.MatchString(runID) {
		return "", 0, notFound("there is no attempt %q", clip(id))
	}
	return runID, n, nil
}

// unitName checks a name that an agent or a person gives: of a step, an effect, a signal, a worker.
func unitName(location, name string, most int) error {
	switch {
	case name == "":
		return invalidAt(location, "missing")
	case len(name) > most:
		return invalidAt(location, "%d bytes; the limit is %d", len(name), most)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return invalidAt(location, "not printable UTF-8 text")
	}
	return nil
}

const maxEffect = run.MaxReceiptName
