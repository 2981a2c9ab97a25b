package deadletter

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

// handedOver is a hand-over that Pub/Sub has given up.
const handedOver = `{"message":{"messageId":"10","publishTime":"2026-02-19T11:28:34.055Z","attributes":{"attempt":"run1.2","ticket":"once","agent":"embed",` +
	`"CloudPubSubDeadLetterSourceSubscription":"errand-pool-gpu","CloudPubSubDeadLetterSourceSubscriptionProject":"p","CloudPubSubDeadLetterSourceDeliveryCount":"5"}},` +
	`"subscription":"projects/p/subscriptions/errand-deadletter"}`

func TestHandOversThatCameToNobody(t *testing.T) {
	told := `POST /v1/attempts/run1.2:undelivered {"ticket":"once","reason":"given up by projects/p/subscriptions/errand-pool-gpu after 5 deliveries"}`
	kept := `POST /v1/deadletters {"subscription":"projects/p/subscriptions/errand-pool-gpu","messageId":"10","publishTime":"2026-02-19T11:28:34.055Z",` +
		`"attributes":{"agent":"embed","attempt":"run1.2"},"attempts":5,"reason":"given up by projects/p/subscriptions/errand-pool-gpu after 5 deliveries"}`
	tests := map[string]struct {
		body   string
		answer int // of the control plane to the first call
		status int
		want   []string
	}{
		"are told":                            {handedOver, 204, 200, []string{told}},
		"of an attempt that is over":          {handedOver, 409, 200, []string{told}},
		"of an attempt that nobody knows":     {handedOver, 404, 200, []string{told}},
		"with a ticket that is none":          {handedOver, 403, 200, []string{told, kept}},
		"with an attempt that is none":        {handedOver, 400, 200, []string{told, kept}},
		"while the control plane has trouble": {handedOver, 500, 503, []string{told}},
		"without a ticket":                    {strings.Replace(handedOver, `"ticket":"once",`, "", 1), 201, 200, []string{kept}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var calls []string
			control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				calls = append(calls, r.Method+" "+r.URL.Path+" "+strings.TrimSpace(string(body)))
				switch status := tt.answer; {
				case len(calls) > 1 || status == 201:
					w.WriteHeader(http.StatusCreated)
					_ = json.NewEncoder(w).Encode(api.DeadLetter{ID: "letter1"})
				case status == 204:
					w.WriteHeader(status)
				default:
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(status)
					_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemBase + "x", Title: "no", Status: status})
				}
			}))
			defer control.Close()
			env := map[string]string{"ERRAND_URL": control.URL, "ERRAND_TOKEN": "x"}
			h, err := New(func(name string) (string, bool) { v, ok := env[name]; return v, ok }, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h(w, httptest.NewRequest("POST", "/", strings.NewReader(tt.body)))
			if w.Code != tt.status {
				t.Errorf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
			if diff := cmp.Diff(tt.want, calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
