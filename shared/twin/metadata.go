package twin

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// metadata is the metadata server of one container instance. Each has a port of its own, so that a token is surely of
// who asks: what reaches the port was given its address.
type metadata struct {
	t        *Twin
	account  string
	region   string
	instance string
	resource string
	listener net.Listener
	server   *http.Server
}

const accessTokenLife = time.Hour

func (t *Twin) newMetadata(resource, region, account, instance string) (*metadata, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a metadata server: %w", err)
	}
	m := &metadata{t: t, account: account, region: region, instance: instance, resource: resource, listener: l}
	m.server = &http.Server{Handler: m.routes(), ReadHeaderTimeout: 10 * time.Second}
	t.active.Go(func() { _ = m.server.Serve(l) })
	return m, nil
}

// host is the value of GCE_METADATA_HOST.
func (m *metadata) host() string { return m.listener.Addr().String() }

func (m *metadata) close() { _ = m.server.Close() }

func (m *metadata) routes() http.Handler {
	mux := http.NewServeMux()
	text := func(path, value string) {
		mux.HandleFunc("GET /computeMetadata/v1/"+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/text")
			_, _ = w.Write([]byte(value))
		})
	}
	number := strconv.FormatInt(m.t.opts.Number, 10)
	text("project/project-id", m.t.opts.Project)
	text("project/numeric-project-id", number)
	text("instance/id", m.instance)
	text("instance/region", "projects/"+number+"/regions/"+m.region)
	text("instance/zone", "projects/"+number+"/zones/"+m.region+"-1")
	text("instance/service-accounts/{$}", "default/\n"+m.account+"/\n")
	for _, who := range []string{"default", m.account} {
		base := "instance/service-accounts/" + who
		text(base+"/{$}", "aliases\nemail\nidentity\nscopes\ntoken\n")
		text(base+"/email", m.account)
		text(base+"/aliases", "default\n")
		text(base+"/scopes", "https://www.googleapis.com/auth/cloud-platform\n")
		mux.HandleFunc("GET /computeMetadata/v1/"+base+"/identity", m.identity)
		mux.HandleFunc("GET /computeMetadata/v1/"+base+"/token", m.token)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("computeMetadata/\n")) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The header keeps out requests that a page or a redirect made a program send.
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Server", "Metadata Server for Serverless")
		if r.URL.Path != "/" && (r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "") {
			http.Error(w, "the request needs the header Metadata-Flavor: Google, and must not have X-Forwarded-For", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (m *metadata) identity(w http.ResponseWriter, r *http.Request) {
	if err := m.fault(r, "metadata.identity"); err != nil {
		httpError(w, err)
		return
	}
	token, err := m.t.issuer.mint(m.account, r.URL.Query().Get("audience"), r.URL.Query().Get("format") == "full")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	_, _ = w.Write([]byte(token))
}

// token answers with an access token. It opens nothing: no API of the twin asks for one.
func (m *metadata) token(w http.ResponseWriter, r *http.Request) {
	if err := m.fault(r, "metadata.token"); err != nil {
		httpError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"access_token": "ya29.twin." + letters(24), "expires_in": int(accessTokenLife / time.Second), "token_type": "Bearer",
	})
}

func (m *metadata) fault(r *http.Request, what string) error {
	e, ok := m.t.faults.take(what, m.resource)
	if !ok {
		return nil
	}
	return e.wait(r.Context())
}

// httpError answers with an error of the API in HTTP.
func httpError(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	number := httpStatus(s.Code())
	writeJSON(w, number, map[string]any{"error": map[string]any{"code": number, "message": s.Message(), "status": code.Code(s.Code()).String()}})
}

func httpStatus(c codes.Code) int {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Aborted, codes.AlreadyExists:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Canceled:
		return 499
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// Identity opens a metadata server for a process outside the twin, a control plane for instance, that is to act as the
// given account, and returns the value for its GCE_METADATA_HOST. It is there until the twin closes.
func (t *Twin) Identity(account string) (host string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", errClosed
	case len(t.metadata) >= maxOutside:
		return "", fmt.Errorf("open a metadata server for %s: there are %d already", account, maxOutside)
	}
	m, err := t.newMetadata("", t.opts.Region, account, instanceID())
	if err != nil {
		return "", err
	}
	t.metadata = append(t.metadata, m)
	return m.host(), nil
}

const maxOutside = 100
