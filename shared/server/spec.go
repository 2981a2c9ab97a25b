package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
)

var placeholder = regexp.MustCompile(`\{([a-zA-Z]+)\}`)

// frame is the frame of the OpenAPI document and how huma writes answers.
func (s *Server) frame(version string) huma.Config {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	schemas.RegisterTypeAlias(reflect.TypeFor[api.Time](), reflect.TypeFor[time.Time]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wireProblem](), reflect.TypeFor[api.Problem]())
	asJSON := huma.Format{
		Marshal: func(w io.Writer, v any) error {
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			return e.Encode(v)
		},
		Unmarshal: unmarshal,
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Errand", Version: version,
				Description: "Runs each AI-agent execution as a managed workload. Errors are problems (RFC 9457). " +
					"Times are RFC 3339 in UTC with milliseconds, lengths of time are text such as 1m30s, ids are opaque.",
			},
			Tags: []*huma.Tag{
				{Name: "runs", Description: "Submit, follow and end runs."},
				{Name: "fleet", Description: "What is declared: agents, targets, tenants, triggers."},
				{Name: "effects", Description: "Receipts of external effects."},
				{Name: "gates", Description: "Questions to people that runs wait for."},
				{Name: "state", Description: "Documents that runs of a tenant share."},
				{Name: "triggers", Description: "Messages from outside that make runs, and those that made none."},
				{Name: "workers", Description: "The worker protocol: leases, reports of attempts."},
				{Name: "operations", Description: "Figures, health, version."},
				{Name: "coming", Description: "Reserved names that answer 501 in this version."},
			},
			OnAddOperation: []huma.AddOpFunc{func(_ *huma.OpenAPI, op *huma.Operation) { s.operations = append(s.operations, op) }},
			Components: &huma.Components{
				Schemas: schemas,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token":   {Type: "http", Scheme: "bearer", Description: "An API token. A server on loopback asks for none."},
					"attempt": {Type: "http", Scheme: "bearer", Description: "The token of the attempt, as its lease gave it."},
				},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": asJSON, "json": asJSON},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	}
}

func (s *Server) encodeSpec() []byte {
	body, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic("server: the OpenAPI document does not encode: " + err.Error())
	}
	return body
}

func (s *Server) serveSpec(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.spec())
}

// writeJSON answers with a value of the interface.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	b := answers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= maxKeptAnswer {
			b.Reset()
			answers.Put(b)
		}
	}()
	if err := encodeTo(b, v); err != nil {
		return err
	}
	body := b.Bytes()
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))} // or a longer one would go in chunks
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone; the request is done
	return nil
}

// answers are buffers to encode in: an answer has left, or is copied, when its Write returns.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const maxKeptAnswer = 64 << 10

var jsonType = []string{"application/json"}
