package server

import (
	"encoding/json"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// interfaceTable is every call that the interface promises.
const interfaceTable = `
DELETE /v1/agents/{name}
DELETE /v1/state/{key}
DELETE /v1/targets/{name}
DELETE /v1/tenants/{name}
DELETE /v1/triggers/{name}
DELETE /v1/workflows/{name}
GET /
GET /docs
GET /gates
GET /gates/{id}
GET /health/live
GET /health/ready
GET /health/startup
GET /metrics
GET /openapi.json
GET /receipts
GET /runs/{id}
GET /v1/agents
GET /v1/agents/{name}
GET /v1/attempts/{id}/children/{step}
GET /v1/deadletters
GET /v1/deadletters/{id}
GET /v1/events
GET /v1/gates
GET /v1/gates/{id}
GET /v1/jobs
GET /v1/jobs/{name}
GET /v1/models
GET /v1/models/{name}
GET /v1/receipts
GET /v1/receipts/{id}
GET /v1/runs
GET /v1/runs/{id}
GET /v1/runs/{id}/attempts
GET /v1/runs/{id}/audit
GET /v1/runs/{id}/events
GET /v1/runs/{id}/logs
GET /v1/runs/{id}/output
GET /v1/runs/{id}/placement
GET /v1/runs/{id}/receipts
GET /v1/runs/{id}/tree
GET /v1/schedules
GET /v1/schedules/{name}
GET /v1/state
GET /v1/state/{key}
GET /v1/stats
GET /v1/targets
GET /v1/targets/{name}
GET /v1/tenants
GET /v1/tenants/{name}
GET /v1/triggers
GET /v1/triggers/{name}
GET /v1/version
GET /v1/workflows
GET /v1/workflows/{name}
POST /gates
POST /gates/{id}
POST /receipts/{id}
POST /v1/agents/{name}:invoke
POST /v1/agents/{name}:pause
POST /v1/agents/{name}:resume
POST /v1/apply
POST /v1/attempts/{id}/children
POST /v1/attempts/{id}/gates
POST /v1/attempts/{id}/logs
POST /v1/attempts/{id}/progress
POST /v1/attempts/{id}/receipts/{effect}:abandon
POST /v1/attempts/{id}/receipts/{effect}:begin
POST /v1/attempts/{id}/receipts/{effect}:commit
POST /v1/attempts/{id}/steps/{name}
POST /v1/attempts/{id}/usage
POST /v1/attempts/{id}:claim
POST /v1/attempts/{id}:complete
POST /v1/attempts/{id}:fail
POST /v1/attempts/{id}:heartbeat
POST /v1/attempts/{id}:park
POST /v1/attempts/{id}:release
POST /v1/attempts/{id}:start
POST /v1/attempts/{id}:undelivered
POST /v1/attempts:batch
POST /v1/deadletters
POST /v1/deadletters/{id}:replay
POST /v1/gates/{id}:decide
POST /v1/gates:decide
POST /v1/leases
POST /v1/receipts/{id}:resolve
POST /v1/runs
POST /v1/runs/{id}:cancel
POST /v1/runs/{id}:resume
POST /v1/runs/{id}:retry
POST /v1/runs/{id}:score
POST /v1/runs/{id}:signal
POST /v1/runs/{id}:suspend
POST /v1/runs:batch
POST /v1/runs:begin
POST /v1/runs:cancel
POST /v1/runs:retry
POST /v1/tick
POST /v1/triggers/http/{path}
POST /v1/triggers/pubsub/{name}
POST /v1/workers/{id}:heartbeat
PUT /v1/state/{key}
`

// document is what the tests look at of an OpenAPI document.
type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Parameters  []struct {
			Name, In string
			Required bool
		}
		RequestBody struct {
			Content map[string]struct{ Schema map[string]any }
		} `json:"requestBody"`
		Responses map[string]struct {
			Content map[string]struct{ Schema map[string]any }
		}
	}
	Components struct{ Schemas map[string]any }
}

func TestOpenAPIListsEveryCallOfTheInterface(t *testing.T) {
	s := newSite(t)
	doc := into[document](t, s.do("GET", "/openapi.json", ""))
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi is %q, want 3.1.0", doc.OpenAPI)
	}
	var got []string
	ids := make(map[string]string)
	for path, ops := range doc.Paths {
		for method, op := range ops {
			call := strings.ToUpper(method) + " " + path
			got = append(got, call)
			if other, taken := ids[op.OperationID]; taken || op.OperationID == "" {
				t.Errorf("operation id %q of %s is missing or that of %s", op.OperationID, call, other)
			}
			ids[op.OperationID] = call
			for _, m := range placeholder.FindAllStringSubmatch(path, -1) {
				found := false
				for _, p := range op.Parameters {
					found = found || (p.Name == m[1] && p.In == "path" && p.Required)
				}
				if !found {
					t.Errorf("%s: path parameter %s is not described", call, m[1])
				}
			}
			if _, ok := op.Responses["default"].Content["application/problem+json"]; !ok {
				t.Errorf("%s: errors are not described as problems", call)
			}
		}
	}
	sort.Strings(got)
	if diff := cmp.Diff(strings.Fields(interfaceTable), strings.Fields(strings.Join(got, "\n"))); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	for _, name := range []string{"Submit", "Run", "LeaseRequest", "Lease", "Report", "Problem", "Stats", "Object", "Audit"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("schema %s is missing", name)
		}
	}
}

func TestOpenAPIRefersOnlyToSchemasThatExist(t *testing.T) {
	s := newSite(t)
	var doc any
	r := s.do("GET", "/openapi.json", "")
	if err := json.Unmarshal(r.body, &doc); err != nil {
		t.Fatal(err)
	}
	schemas := doc.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if name := strings.TrimPrefix(ref, "#/components/schemas/"); schemas[name] == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(doc)
}
