package notify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/trigger"
)

// event is a CloudEvent about a run; raw is it in one JSON document, which is sent on.
type event struct {
	ID, Type string
	data     api.RunEvent
	raw      []byte
}

const maxID = 256 // bytes

// document is the JSON form of a CloudEvent, as far as it is looked at.
type document struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Subject         string          `json:"subject,omitempty"`
	Time            string          `json:"time,omitempty"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data"`
}

// eventOf reads the CloudEvent in a message of Pub/Sub: structured, with the whole event as data, or binary, with its
// attributes as those of the message. The error is a *trigger.Poison.
func eventOf(m *trigger.Message) (*event, error) {
	refuse := func(path, format string, args ...any) (*event, error) {
		return nil, &trigger.Poison{Path: path, Message: fmt.Sprintf(format, args...)}
	}
	var d document
	media, _, _ := mime.ParseMediaType(m.Attributes["content-type"])
	switch {
	case m.Attributes["ce-id"] != "":
		a := m.Attributes
		d = document{a["ce-specversion"], a["ce-id"], a["ce-source"], a["ce-type"], a["ce-subject"], a["ce-time"], "application/json", m.Data}
	case media == "application/cloudevents+json" || media == "":
		if err := json.Unmarshal(m.Data, &d); err != nil {
			return refuse("message.data", "no CloudEvent: not JSON of its form")
		}
	default:
		return refuse("message.attributes.content-type", "%.80q; want application/cloudevents+json, or the event's attributes as ce-…", media)
	}
	switch {
	case !strings.HasPrefix(d.SpecVersion, "1."):
		return refuse("specversion", "%.20q; want 1.0", d.SpecVersion)
	case d.ID == "" || len(d.ID) > maxID:
		return refuse("id", "%d bytes; want 1 to %d", len(d.ID), maxID)
	case !isTold(d.Type) || len(d.Type) > maxID:
		return refuse("type", "%.80q; want %s… or %s…", d.Type, api.RunEventPrefix, api.GateEventPrefix)
	}
	e := &event{ID: d.ID, Type: strings.TrimPrefix(d.Type, api.RunEventPrefix)}
	gate := strings.HasPrefix(d.Type, api.GateEventPrefix)
	if gate {
		e.Type = "gate." + strings.TrimPrefix(d.Type, api.GateEventPrefix)
	}
	if err := json.Unmarshal(d.Data, &e.data); err != nil || e.data.Run.ID == "" {
		return refuse("data", "no {\"run\": …, \"event\": …}")
	}
	if gate && (e.data.Gate == nil || e.data.Gate.ID == "") {
		return refuse("data.gate", "missing in an event about a gate")
	}
	if e.raw = m.Data; m.Attributes["ce-id"] != "" {
		raw, err := encode(d)
		if err != nil {
			return refuse("data", "cannot be encoded again")
		}
		e.raw = raw
	}
	return e, nil
}

func isTold(kind string) bool {
	return strings.HasPrefix(kind, api.RunEventPrefix) || strings.HasPrefix(kind, api.GateEventPrefix)
}

// encode is json.Marshal without turning <, > and & into escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

const maxText = 1500 // bytes of a chat message

// chat is the event in words, for people: the facts, and where to look. The link opens a page and decides nothing.
func (e *event) chat(base string) ([]byte, error) {
	r := &e.data.Run
	var b strings.Builder
	fmt.Fprintf(&b, "Run %s of %s (tenant %s) %s", plain(r.ID), plain(r.Name()), plain(r.Tenant), plain(inWords(e.Type)))
	page := "/runs/" + url.PathEscape(r.ID)
	if g := e.data.Gate; g != nil {
		page = "/gates/" + url.PathEscape(g.ID)
		if g.Decision != "" {
			fmt.Fprintf(&b, ": %s", plain(g.Decision))
		}
		if g.By != "" {
			fmt.Fprintf(&b, " by %s", plain(g.By))
		}
	}
	if reason := e.data.Event.Reason; reason != "" {
		fmt.Fprintf(&b, ": %s", plain(reason))
	}
	if message := e.data.Event.Message; message != "" {
		fmt.Fprintf(&b, ", %s", plain(message))
	}
	if r.Attempt > 1 {
		fmt.Fprintf(&b, "; attempt %d", r.Attempt)
	}
	if r.EndedAt != nil && r.StartedAt != nil {
		fmt.Fprintf(&b, "; took %s", r.EndedAt.Sub(r.StartedAt.Time).Round(time.Millisecond))
	}
	if r.Cost.USD > 0 {
		fmt.Fprintf(&b, "; cost %.4f USD", r.Cost.USD)
	}
	text := b.String()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return encode(map[string]string{"text": text + "\n" + base + page})
}

func inWords(kind string) string {
	switch kind {
	case "parked", "waiting":
		return "waits"
	case "succeeded", "failed":
		return kind
	case "canceled":
		return "was canceled"
	case "gate.requested":
		return "asks people to decide"
	case "gate.reminded":
		return "still waits for people to decide"
	case "gate.escalated":
		return "asks further people to decide, as nobody has"
	case "gate.decided":
		return "has its answer"
	}
	return "has the event " + kind
}

// plain makes a text of somebody else's one that a chat shows as it is: no link, no mention, no second line.
func plain(s string) string {
	const most = 400
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
