package twin

import "net/http"

// routes are what the HTTP address answers: the issuer, and the REST API, for proxy requests too.
func (t *Twin) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", t.issuer.discovery)
	mux.HandleFunc("GET /oauth2/v3/certs", t.issuer.keys)
	return mux
}
