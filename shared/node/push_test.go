package node

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/store/memory"
)

const ordersTrigger = `---
apiVersion: errand.dev/v1
kind: Trigger
metadata: {name: orders}
spec:
  pubsub: {topic: projects/p/topics/orders, maxAttempts: 3}
  run: {agent: echo, input: 'message.data.order', key: 'message.attributes.shop + "/" + string(message.data.order)'}
`

// Pub/Sub's own emulator pushes to the node: the form is as Google's code writes it, and so is what comes again.
func TestWhatPubSubPushesBecomesARun(t *testing.T) {
	broker := "http://" + emulator.PubSub(t) + "/v1/projects/p/"
	n, err := Start(t.Context(), Options{Store: memory.Open(), Listener: listen(t), Local: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	}()
	c, err := api.NewClient(api.Options{URL: n.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Apply(t.Context(), []byte(manifests+ordersTrigger), api.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	call := func(method, path, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, broker+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, answer, err)
		}
	}
	message := func(data string) string {
		return `{"data":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `","attributes":{"shop":"acme"}}`
	}
	call("PUT", "topics/orders", "{}")
	call("PUT", "subscriptions/errand-trigger-orders", fmt.Sprintf(
		`{"topic":"projects/p/topics/orders","retryPolicy":{"minimumBackoff":"0.1s","maximumBackoff":"0.2s"},"pushConfig":{"pushEndpoint":"%s/v1/triggers/pubsub/orders"}}`, n.URL()))
	defer call("DELETE", "subscriptions/errand-trigger-orders", "")
	call("POST", "topics/orders:publish", `{"messages":[`+message(`{"order":1}`)+`,`+message(`{"order":2}`)+`,`+message(`{"order":2}`)+`,`+message("hello")+`]}`)

	// What a broker does shows in time: it pushes, and pushes again what was refused.
	runs := make(map[string]bool)
	var letters []api.DeadLetter
	for deadline := time.Now().Add(30 * time.Second); len(runs) < 2 || len(letters) < 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d runs ended well and %d dead letters are there, want 2 and 1", len(runs), len(letters))
		}
		list, err := c.ListRuns(t.Context(), api.RunFilter{State: []string{"succeeded"}}, api.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Items {
			runs[r.ID] = true
		}
		page, err := c.ListDeadLetters(t.Context(), api.Page{})
		if err != nil {
			t.Fatal(err)
		}
		letters = page.Items
	}
	letter, err := c.DeadLetter(t.Context(), letters[0].ID)
	if err != nil || len(runs) != 2 || letter.Attempts != 3 || letter.Trigger != "orders" || letter.PublishTime == nil || string(letter.Data) != `"hello"` ||
		letter.Subscription != "projects/p/subscriptions/errand-trigger-orders" {
		t.Errorf("%d runs, letter %+v, %v", len(runs), letter, err)
	}
}
