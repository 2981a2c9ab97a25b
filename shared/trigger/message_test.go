package trigger

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

const order = `{"order":7}`

var encoded = base64.StdEncoding.EncodeToString([]byte(order))

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func pushBody(more string) string {
	return `{"message":{"attributes":{"kind":"order"},"data":"` + encoded + `","messageId":"136969346945","message_id":"136969346945",` +
		`"publishTime":"2026-02-19T11:28:34.055Z","publish_time":"2026-02-19T11:28:34.055Z","orderingKey":"acme"},` +
		`"subscription":"projects/p/subscriptions/errand-trigger-orders"` + more + `}`
}

func wantMessage(change func(*Message)) *Message {
	m := &Message{
		ID: "136969346945", Subscription: "projects/p/subscriptions/errand-trigger-orders", OrderingKey: "acme", Attempt: 3,
		PublishTime: time.Date(2026, 2, 19, 11, 28, 34, 55_000_000, time.UTC),
		Attributes:  map[string]string{"kind": "order"}, Data: []byte(order),
	}
	if change != nil {
		change(m)
	}
	return m
}

func TestRead(t *testing.T) {
	event := func(data string) string {
		return `{"specversion":"1.0","type":"` + EventType + `","source":"//pubsub.googleapis.com/projects/p/topics/orders","id":"136969346945",` +
			`"time":"2026-02-19T11:28:34.055Z","datacontenttype":"application/json",` + data + `}`
	}
	binary := []string{"Ce-Specversion", "1.0", "Ce-Type", EventType, "Ce-Source", "//pubsub.googleapis.com/projects/p/topics/orders", "Ce-Id", "1", "Content-Type", "application/json"}
	structured := []string{"Content-Type", "application/cloudevents+json; charset=utf-8"}
	tests := map[string]struct {
		header http.Header
		body   string
		want   *Message
	}{
		"a wrapped push":             {headers("Content-Type", "application/json"), pushBody(`,"deliveryAttempt":3`), wantMessage(nil)},
		"a push of a later form":     {headers(), pushBody(`,"deliveryAttempt":3,"next":{"a":1}`), wantMessage(nil)},
		"a push that is not counted": {headers(), pushBody(""), wantMessage(func(m *Message) { m.Attempt = 0 })},
		"a push with underscores":    {headers(), `{"message":{"data":"` + encoded + `","message_id":"9","publish_time":"2026-02-19T11:28:34.055Z","ordering_key":"acme"}}`, wantMessage(func(m *Message) { m.ID, m.Subscription, m.Attempt, m.Attributes = "9", "", 0, nil })},
		"a push without data":        {headers(), `{"message":{"messageId":"9","attributes":{"a":"b"}},"subscription":"s"}`, &Message{ID: "9", Subscription: "s", Attributes: map[string]string{"a": "b"}}},
		"an unwrapped push": {
			headers("Content-Type", "application/json", "User-Agent", "CloudPubSub-Google", "Authorization", "Bearer hunter2", "X-Forwarded-For", "10.0.0.1",
				"X-Goog-Pubsub-Message-Id", "136969346945", "X-Goog-Pubsub-Subscription-Name", "projects/p/subscriptions/errand-trigger-orders",
				"X-Goog-Pubsub-Publish-Time", "2026-02-19T11:28:34.055Z", "X-Goog-Pubsub-Ordering-Key", "acme", "X-Goog-Pubsub-Delivery-Attempt", "3", "Kind", "order"),
			order, wantMessage(func(m *Message) { m.Attributes["content-type"] = "application/json" }),
		},
		"a binary event":                       {headers(binary...), pushBody(`,"deliveryAttempt":3`), wantMessage(nil)},
		"a structured event":                   {headers(structured...), event(`"data":` + pushBody(`,"deliveryAttempt":3`)), wantMessage(nil)},
		"a structured event in base64":         {headers(structured...), event(`"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(pushBody(`,"deliveryAttempt":3`))) + `"`), wantMessage(nil)},
		"a structured event with JSON in text": {headers(structured...), event(`"data":"{\"message\":{\"messageId\":\"9\"}}"`), &Message{ID: "9"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Read(tt.header, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	structured := headers("Content-Type", "application/cloudevents+json")
	attributes := func(n int) string {
		var parts []string
		for i := range n {
			parts = append(parts, `"k`+strings.Repeat("x", i)+`":"v"`)
		}
		return `{"message":{"messageId":"1","attributes":{` + strings.Join(parts, ",") + `}}}`
	}
	tests := map[string]struct {
		header http.Header
		body   string
		want   string // path
	}{
		"nothing":                     {headers(), "", "body"},
		"what is no JSON":             {headers(), "hello", "body"},
		"JSON of another form":        {headers(), `{"a":1}`, "message"},
		"a list":                      {headers(), `[1]`, "body"},
		"data that is no base64":      {headers(), `{"message":{"data":"???"}}`, "body"},
		"a time that is none":         {headers(), `{"message":{"publishTime":"yesterday"}}`, "message.publishTime"},
		"a negative count":            {headers(), pushBody(`,"deliveryAttempt":-1`), "deliveryAttempt"},
		"an id without end":           {headers(), `{"message":{"messageId":"` + strings.Repeat("1", maxName+1) + `"}}`, "message.messageId"},
		"attributes without end":      {headers(), attributes(MaxAttributes + 1), "message.attributes"},
		"an attribute without end":    {headers(), `{"message":{"messageId":"1","attributes":{"k":"` + strings.Repeat("v", maxValueBytes+1) + `"}}}`, "message.attributes"},
		"data over the limit":         {headers("X-Goog-Pubsub-Message-Id", "1"), strings.Repeat("x", MaxData+1), "message.data"},
		"an event of something else":  {structured, `{"specversion":"1.0","type":"google.cloud.storage.object.v1.finalized","data":{}}`, "type"},
		"an event of another version": {structured, `{"specversion":"0.3","type":"` + EventType + `","data":{}}`, "specversion"},
		"an event without data":       {structured, `{"specversion":"1.0","type":"` + EventType + `"}`, "body"},
		"an event that is no JSON":    {structured, `<xml/>`, "body"},
		"a binary event of nobody":    {headers("Ce-Specversion", "1.0"), pushBody(""), "type"},
		"a batch of events":           {headers("Content-Type", "application/cloudevents-batch+json"), `[]`, "header.Content-Type"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := Read(tt.header, []byte(tt.body))
			p := IsPoison(err)
			if p == nil || p.Path != tt.want {
				t.Errorf("read %v with %v, want a refusal of %s", m, err, tt.want)
			}
		})
	}
}

func TestReadHTTPKeepsNoProofOfTheSender(t *testing.T) {
	got, err := ReadHTTP(headers("Authorization", "Bearer hunter2", "Cookie", "hunter2", "X-Errand-Signature", "sha256=hunter2",
		"X-Forwarded-For", "10.0.0.1", "Content-Type", "text/plain", "X-Event", "paid"), []byte("hello"), "id-1")
	if err != nil {
		t.Fatal(err)
	}
	want := &Message{ID: "id-1", Attributes: map[string]string{"content-type": "text/plain", "x-event": "paid"}, Data: []byte("hello")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValue(t *testing.T) {
	for data, want := range map[string]string{
		``: `null`, " \n": `null`, ` {"a": 1} `: `{"a": 1}`, `7`: `7`, `hello "you"`: `"hello \"you\""`, `{"a":`: `"{\"a\":"`,
		"\xff\x00": `{"base64":"/wA="}`, "\"\xff\"": `{"base64":"Iv8i"}`,
	} {
		if got := string((&Message{Data: []byte(data)}).Value()); got != want {
			t.Errorf("%q is %s, want %s", data, got, want)
		}
	}
}

func TestPushIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 20, 60)
		want := &Message{
			ID: text.Draw(t, "id"), Subscription: text.Draw(t, "subscription"), OrderingKey: text.Draw(t, "ordering"),
			Attempt: rapid.IntRange(0, 99).Draw(t, "attempt"), Attributes: rapid.MapOfN(text, text, 0, 5).Draw(t, "attributes"),
			Data: rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "data"),
		}
		if n := rapid.Int64Range(0, 4e18).Draw(t, "at"); n > 0 {
			want.PublishTime = time.Unix(0, n).UTC()
		}
		body, err := want.Push()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read(http.Header{}, body)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add("application/json", "", "", []byte(pushBody(`,"deliveryAttempt":3`)))
	f.Add("application/cloudevents+json", "", "", []byte(`{"specversion":"1.0","type":"`+EventType+`","data":`+pushBody("")+`}`))
	f.Add("application/cloudevents+json", "", "", []byte(`{"specversion":"1.0","type":"`+EventType+`","data_base64":"e30="}`))
	f.Add("application/json", EventType, "", []byte(pushBody("")))
	f.Add("text/plain", "", "12", []byte("hello"))
	f.Fuzz(func(t *testing.T, media, kind, id string, body []byte) {
		h := headers("Content-Type", media)
		if kind != "" {
			h = headers("Content-Type", media, "Ce-Specversion", "1.0", "Ce-Type", kind)
		}
		if id != "" {
			h.Set("X-Goog-Pubsub-Message-Id", id)
		}
		m, err := Read(h, body)
		if err != nil {
			if IsPoison(err) == nil {
				t.Fatalf("refused with %v, which is no Poison", err)
			}
			return
		}
		again, err := m.Push()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Read(http.Header{}, again)
		if err != nil {
			t.Fatalf("not read back: %v", err)
		}
		if !bytes.Equal(m.Data, back.Data) || m.ID != back.ID || !m.PublishTime.Equal(back.PublishTime) {
			t.Errorf("read back as %+v, was %+v", back, m)
		}
	})
}

func TestSubscriptionsTellWhatTheyDeliver(t *testing.T) {
	for subscription, want := range map[string][2]string{
		"projects/p/subscriptions/errand-trigger-orders": {"orders", ""},
		"errand-trigger-orders":                          {"orders", ""},
		"trigger-orders":                                 {"orders", ""},
		"my-prod-trigger-trigger-x":                      {"trigger-x", ""},
		"projects/p/subscriptions/errand-pool-gpu":       {"", "gpu"},
		"errand-events":                                  {"", ""},
		"errand-trigger-":                                {"", ""},
		"errand-trigger-Orders":                          {"", ""},
		"a/b-trigger-orders":                             {"", ""},
		"":                                               {"", ""},
	} {
		if got := [2]string{OfTrigger(subscription), OfPool(subscription)}; got != want {
			t.Errorf("%q tells %q, want %q", subscription, got, want)
		}
	}
}
