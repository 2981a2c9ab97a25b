package twin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// namespaces is where version 1 of the REST API has its resources. A namespace is a project.
const namespaces = "/apis/run.googleapis.com/v1/namespaces/{namespace}/"

const maxBody = 1 << 20

// routes are what the HTTP address answers: the issuer, and the REST API, also for requests in absolute form as clients
// send to a proxy. For those the host names the region: europe-west1-run.HOST.
func (t *Twin) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", t.issuer.discovery)
	mux.HandleFunc("GET /oauth2/v3/certs", t.issuer.keys)
	mux.HandleFunc("GET "+namespaces+"jobs", t.rest("Jobs.ListJobs", t.restListJobs))
	mux.HandleFunc("GET "+namespaces+"jobs/{id}", t.rest("Jobs.GetJob", t.restGetJob))
	mux.HandleFunc("POST "+namespaces+"jobs/{id}", t.restVerb("run", "Jobs.RunJob", t.restRunJob))
	mux.HandleFunc("GET "+namespaces+"executions", t.rest("Executions.ListExecutions", t.restListExecutions))
	mux.HandleFunc("GET "+namespaces+"executions/{id}", t.rest("Executions.GetExecution", t.restGetExecution))
	mux.HandleFunc("POST "+namespaces+"executions/{id}", t.restVerb("cancel", "Executions.CancelExecution", t.restCancel))
	mux.HandleFunc("CONNECT /", func(w http.ResponseWriter, _ *http.Request) {
		httpError(w, status.Error(codes.Unimplemented, "the twin of Cloud Run is no proxy to other hosts: override the API's endpoint with an http URL"))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpError(w, status.Errorf(codes.NotFound, "the twin of Cloud Run has no %s %.200q", r.Method, r.URL.Path))
	})
	return mux
}

// restCall is a request to the REST API that has passed the checks for all.
type restCall struct {
	ctx    context.Context
	id     string // of the job or execution, "" in lists
	region string // "" when the host names none
	body   []byte
	query  func(string) string
}

// restVerb is rest for a path that ends in :VERB.
func (t *Twin) restVerb(verb, method string, handle func(restCall) (any, error)) http.HandlerFunc {
	do := t.rest(method, handle)
	return func(w http.ResponseWriter, r *http.Request) {
		id, ok := strings.CutSuffix(r.PathValue("id"), ":"+verb)
		if !ok {
			httpError(w, status.Errorf(codes.NotFound, "POST %.200q: want .../ID:%s", r.URL.Path, verb))
			return
		}
		r.SetPathValue("id", id)
		do(w, r)
	}
}

// rest makes a handler of a method: checks, the faults, the answer in JSON.
func (t *Twin) rest(method string, handle func(restCall) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := t.restAnswer(w, r, method, handle)
		switch {
		case errors.Is(err, errDropped):
		case err != nil:
			httpError(w, err)
		default:
			writeJSON(w, http.StatusOK, answer)
		}
	}
}

// errDropped says that the connection is closed already.
var errDropped = errors.New("the connection is closed")

func (t *Twin) restAnswer(w http.ResponseWriter, r *http.Request, method string, handle func(restCall) (any, error)) (any, error) {
	if !strings.HasPrefix(r.Header.Get(authorization), "Bearer ") {
		return nil, status.Error(codes.Unauthenticated, "the request has no access token: any will do, as Authorization: Bearer TOKEN")
	}
	if ns := r.PathValue("namespace"); ns != t.opts.Project {
		return nil, status.Errorf(codes.PermissionDenied, "namespace %.100q: this is project %q alone", ns, t.opts.Project)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "read the request: %s", err)
	}
	call := restCall{ctx: r.Context(), id: r.PathValue("id"), region: regionOf(r), body: body, query: r.URL.Query().Get}
	dropped := false
	answer, err := t.faulty(r.Context(), method, call.id, func() {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			reject(c)
			dropped = true
		}
	}, func() (any, error) { return handle(call) })
	if dropped {
		return nil, errDropped
	}
	return answer, err
}

// regionOf is the region that a host such as europe-west1-run.googleapis.com names.
func regionOf(r *http.Request) string {
	host, _, _ := strings.Cut(r.Host, ".")
	region, ok := strings.CutSuffix(host, "-run")
	if !ok || !regionID.MatchString(region) {
		return ""
	}
	return region
}

// decode reads a JSON body; an empty one leaves v as it is. Fields that the API does not have are refused, so that an
// override of the image or of resources does not pass for done.
func decode(body []byte, v any) error {
	if len(body) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid JSON payload received: %s", err)
	}
	return nil
}
