package trigger

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a message; Pub/Sub's own are as large or lower.
const (
	MaxData       = 10 << 20 // bytes
	MaxAttributes = 128
	maxKeyBytes   = 256 // of an attribute
	maxValueBytes = 8 << 10
	maxName       = 512 // bytes of an id, a subscription, an ordering key

	// MaxBody is the largest body that can hold a message, with its data in base64.
	MaxBody = MaxData/3*4 + MaxAttributes*(maxKeyBytes+maxValueBytes) + 16<<10
)

// EventType is the type of CloudEvents that carry messages of Pub/Sub.
const EventType = "google.cloud.pubsub.topic.v1.messagePublished"

// Message is what arrived, whichever form it had.
type Message struct {
	ID           string // the broker's, or the sender's; "" where neither gave one
	Subscription string // projects/P/subscriptions/S; "" where the form does not tell
	OrderingKey  string
	Attempt      int       // deliveries of this message as the broker counts them, from 1; 0 where it does not tell
	PublishTime  time.Time // by the broker's clock; zero where the form does not tell
	Attributes   map[string]string
	Data         []byte
}

// Read takes a message of Pub/Sub in any form in which one is posted: a push, wrapped or not, or a CloudEvent, binary or
// structured. The error is a *Poison.
func Read(h http.Header, body []byte) (*Message, error) {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	var m *Message
	var err error
	switch {
	case media == "application/cloudevents-batch+json":
		return nil, poison("header.Content-Type", "a batch of events; configure the sender for one event a request")
	case media == "application/cloudevents+json":
		m, err = readStructured(body)
	case h.Get("Ce-Specversion") != "" || h.Get("Ce-Type") != "":
		m, err = readBinary(h, body)
	case h.Get("X-Goog-Pubsub-Message-Id") != "":
		m = readUnwrapped(h, body)
	default:
		m, err = readPush(body)
	}
	if err != nil {
		return nil, err
	}
	return m, m.Check()
}

// ReadHTTP takes a request that is no message of a broker: its body is the data, its headers the attributes, without
// those that are about the transport or prove who sends. id is what makes a repeat of the request the same message.
func ReadHTTP(h http.Header, body []byte, id string) (*Message, error) {
	m := &Message{ID: id, Attributes: headerAttributes(h), Data: body}
	return m, m.Check()
}

// envelope is a wrapped push, and the data of a CloudEvent. Fields that are not known are left alone: the sender's form
// grows. Names with underscores are sent beside the others or instead of them.
type envelope struct {
	Message *struct {
		Attributes   map[string]string `json:"attributes"`
		Data         []byte            `json:"data"`
		MessageID    string            `json:"messageId"`
		MessageID2   string            `json:"message_id"`
		PublishTime  string            `json:"publishTime"`
		PublishTime2 string            `json:"publish_time"`
		OrderingKey  string            `json:"orderingKey"`
		OrderingKey2 string            `json:"ordering_key"`
	} `json:"message"`
	Subscription    string `json:"subscription"`
	DeliveryAttempt int    `json:"deliveryAttempt"`
}

func readPush(body []byte) (*Message, error) {
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, poison("body", "not the push of a message of Pub/Sub: not JSON of its form; want {\"message\": {\"data\": BASE64, \"messageId\": …}, \"subscription\": …}, or a push without wrapper that writes metadata")
	}
	if e.Message == nil {
		return nil, poison("message", "missing; want {\"message\": {\"data\": BASE64, \"messageId\": …}, \"subscription\": …}; a push without wrapper has to write metadata")
	}
	m := &Message{
		ID: first(e.Message.MessageID, e.Message.MessageID2), Subscription: e.Subscription,
		OrderingKey: first(e.Message.OrderingKey, e.Message.OrderingKey2), Attempt: e.DeliveryAttempt,
		Attributes: e.Message.Attributes, Data: e.Message.Data,
	}
	if text := first(e.Message.PublishTime, e.Message.PublishTime2); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, poison("message.publishTime", "not an instant in RFC 3339")
		}
		m.PublishTime = at.UTC()
	}
	return m, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// event is a CloudEvent in one JSON document.
type event struct {
	SpecVersion string          `json:"specversion"`
	Type        string          `json:"type"`
	Data        json.RawMessage `json:"data"`
	DataBase64  []byte          `json:"data_base64"`
}

func readStructured(body []byte) (*Message, error) {
	var e event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, poison("body", "not a CloudEvent: not JSON of its form")
	}
	if err := checkEvent(e.SpecVersion, e.Type); err != nil {
		return nil, err
	}
	switch {
	case len(e.DataBase64) > 0:
		return readPush(e.DataBase64)
	case len(e.Data) > 0 && e.Data[0] == '"': // JSON in a text: what is no JSON to the sender comes like that
		var text string
		if err := json.Unmarshal(e.Data, &text); err != nil {
			return nil, poison("data", "not JSON")
		}
		return readPush([]byte(text))
	}
	return readPush(e.Data)
}

func readBinary(h http.Header, body []byte) (*Message, error) {
	if err := checkEvent(h.Get("Ce-Specversion"), h.Get("Ce-Type")); err != nil {
		return nil, err
	}
	return readPush(body)
}

func checkEvent(version, kind string) error {
	if !strings.HasPrefix(version, "1.") {
		return poison("specversion", "%.40q; want a CloudEvent of version 1.0", version)
	}
	if kind != EventType {
		return poison("type", "%.100q; want %s", kind, EventType)
	}
	return nil
}

// readUnwrapped takes a push whose body is the message's data and whose headers are the rest.
func readUnwrapped(h http.Header, body []byte) *Message {
	m := &Message{
		ID: h.Get("X-Goog-Pubsub-Message-Id"), Subscription: h.Get("X-Goog-Pubsub-Subscription-Name"),
		OrderingKey: h.Get("X-Goog-Pubsub-Ordering-Key"), Attributes: headerAttributes(h), Data: body,
	}
	m.Attempt, _ = strconv.Atoi(h.Get("X-Goog-Pubsub-Delivery-Attempt"))
	if at, err := time.Parse(time.RFC3339Nano, h.Get("X-Goog-Pubsub-Publish-Time")); err == nil {
		m.PublishTime = at.UTC()
	}
	return m
}

// transport are headers that say nothing of a message, or prove who sends it: a run's input is no place for those.
var transport = []string{
	"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Cookie", "Expect",
	"Forwarded", "From", "Host", "Keep-Alive", "Origin", "Proxy-Authorization", "Referer", "Te", "Traceparent", "Tracestate",
	"Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Via", "X-Cloud-Trace-Context", "X-Errand-Signature",
	"X-Errand-Timestamp", "X-Request-Id",
}

// headerAttributes are headers as attributes, in lower case: HTTP keeps no other.
func headerAttributes(h http.Header) map[string]string {
	out := make(map[string]string)
	for name, values := range h {
		skip := slices.Contains(transport, name)
		for _, prefix := range []string{"X-Forwarded-", "X-Goog-", "X-Serverless-", "Sec-"} {
			skip = skip || strings.HasPrefix(name, prefix)
		}
		if !skip && len(values) > 0 {
			out[strings.ToLower(name)] = values[0]
		}
	}
	return out
}

// Check holds the message to its bounds, as Read and ReadHTTP have done. The error is a *Poison.
func (m *Message) Check() error {
	for _, x := range []struct{ path, value string }{
		{"message.messageId", m.ID}, {"subscription", m.Subscription}, {"message.orderingKey", m.OrderingKey},
	} {
		if len(x.value) > maxName || !utf8.ValidString(x.value) {
			return poison(x.path, "%d bytes; want at most %d of UTF-8 text", len(x.value), maxName)
		}
	}
	switch {
	case m.Attempt < 0:
		return poison("deliveryAttempt", "%d; want 0 or more", m.Attempt)
	case len(m.Attributes) > MaxAttributes:
		return poison("message.attributes", "%d attributes; the limit is %d", len(m.Attributes), MaxAttributes)
	case len(m.Data) > MaxData:
		return poison("message.data", "%d bytes; the limit is %d", len(m.Data), MaxData)
	}
	for k, v := range m.Attributes {
		if len(k) > maxKeyBytes || len(v) > maxValueBytes || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return poison("message.attributes", "an attribute of %d and %d bytes; want UTF-8, at most %d in its name and %d in its value", len(k), len(v), maxKeyBytes, maxValueBytes)
		}
	}
	return nil
}

// Push is the message as a wrapped push, which Read takes back as it is.
func (m *Message) Push() ([]byte, error) {
	type inner struct {
		Attributes  map[string]string `json:"attributes,omitempty"`
		Data        []byte            `json:"data,omitempty"`
		MessageID   string            `json:"messageId,omitempty"`
		PublishTime string            `json:"publishTime,omitempty"`
		OrderingKey string            `json:"orderingKey,omitempty"`
	}
	out := struct {
		Message      inner  `json:"message"`
		Subscription string `json:"subscription,omitempty"`
		Attempt      int    `json:"deliveryAttempt,omitempty"`
	}{inner{m.Attributes, m.Data, m.ID, "", m.OrderingKey}, m.Subscription, m.Attempt}
	if !m.PublishTime.IsZero() {
		out.Message.PublishTime = m.PublishTime.UTC().Format(time.RFC3339Nano)
	}
	return json.Marshal(out)
}

// Value is the data as a run's input has it: JSON if it is JSON, a text if it is text, {"base64": …} if it is neither,
// null if there is none.
func (m *Message) Value() json.RawMessage {
	data := bytes.TrimSpace(m.Data)
	switch {
	case len(data) == 0:
		return json.RawMessage("null")
	case json.Valid(data) && utf8.Valid(data):
		return json.RawMessage(data)
	}
	var v any = string(m.Data)
	if !utf8.Valid(m.Data) {
		v = map[string][]byte{"base64": m.Data}
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null") // a text and bytes always encode
	}
	return raw
}

// The names of subscriptions say what they deliver: PREFIX-trigger-NAME the messages of a trigger, PREFIX-pool-TARGET the
// hand-overs to the workers of a target. In full or alone.
var (
	ofTrigger = regexp.MustCompile(`^(?:projects/[^/]+/subscriptions/)?(?:[^/]*?-)??trigger-([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$`)
	ofPool    = regexp.MustCompile(`^(?:projects/[^/]+/subscriptions/)?(?:[^/]*?-)??pool-([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$`)
)

// OfTrigger is the trigger that a subscription's name tells; "" if it tells none.
func OfTrigger(subscription string) string { return named(ofTrigger, subscription) }

// OfPool is the target to whose pool a subscription's name tells that it hands over; "" if it tells none.
func OfPool(subscription string) string { return named(ofPool, subscription) }

func named(form *regexp.Regexp, subscription string) string {
	m := form.FindStringSubmatch(subscription)
	if m == nil {
		return ""
	}
	return m[1]
}
