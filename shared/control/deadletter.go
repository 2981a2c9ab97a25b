package control

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/trigger"
)

// Dead letters: messages that became no run, kept with their data and the reason until somebody has looked at them.

// DeadLetter is one of them.
type DeadLetter struct {
	ID      string
	Trigger string // "" where nobody knows
	// Message is what was delivered; without data in a listing.
	Message  *trigger.Message
	Size     int // bytes of its data
	Attempts int // deliveries that failed
	Reason   string
	At       run.Instant // of the record
	Replays  int         // runs that were made of it on purpose
	Run      string      // the last of them
}

// KeepDeadLetters is how long a dead letter is kept at least; older ones go when the next is recorded.
const KeepDeadLetters = 60 * 24 * time.Hour

const (
	letterPrefix   = "deadletter/"
	tagDeadLetter  = "deadletter"
	maxReason      = 1000 // bytes
	replayAttempts = 4    // of a write that others are faster with
)

// letterDoc is a dead letter as it is stored; the data stands in a payload of its own under the same id.
type letterDoc struct {
	Trigger      string            `json:"trigger,omitempty"`
	Subscription string            `json:"subscription,omitempty"`
	MessageID    string            `json:"messageId"`
	OrderingKey  string            `json:"orderingKey,omitempty"`
	PublishTime  time.Time         `json:"publishTime,omitzero"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Size         int               `json:"size"`
	Attempts     int               `json:"attempts"`
	Reason       string            `json:"reason"`
	At           run.Instant       `json:"at"`
	Replays      int               `json:"replays,omitempty"`
	Run          string            `json:"run,omitempty"`
}

func decodeMisc(doc store.Doc, into any) error {
	if err := json.Unmarshal(doc.Body, into); err != nil {
		return fmt.Errorf("decode %s: %w", doc.ID, err)
	}
	return nil
}

func encodeMisc(doc store.Doc, v any) (store.Doc, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return doc, fmt.Errorf("encode %s: %w", doc.ID, err)
	}
	doc.Version, doc.Body = doc.Version+1, body
	return doc, nil
}

// letterEncoding sorts as what it encodes does.
var letterEncoding = base32.HexEncoding.WithPadding(base32.NoPadding)

// messageKey names a message by its id, so that a repeat gets the same name, and sorts by the time of publication. A
// subscription stands for the trigger where nobody knows it.
func messageKey(name string, m *trigger.Message) string {
	at := run.Instant(0)
	if !m.PublishTime.IsZero() {
		at = max(run.At(m.PublishTime), 0)
	}
	if name == "" {
		name = "\x00" + m.Subscription
	}
	sum := sha256.Sum256([]byte(name + "\x00" + m.ID))
	head := []byte{byte(at >> 40), byte(at >> 32), byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}
	return strings.ToLower(letterEncoding.EncodeToString(append(head, sum[:9]...)))
}

func deliveryID(name string, m *trigger.Message) string { return deliveryPrefix + messageKey(name, m) }

func reasonOf(err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// RecordDeadLetter keeps a message that a broker has given up, once: the same message again gives the letter that is
// there, and existed.
func (p *Plane) RecordDeadLetter(ctx context.Context, l DeadLetter) (letter DeadLetter, existed bool, err error) {
	switch {
	case l.Message == nil || l.Message.ID == "":
		return l, false, &Refusal{Code: CodeInvalid, Detail: "the dead letter was not recorded", Faults: []Fault{{"messageId", "missing: a repeat could not be told from another one"}}}
	case l.Trigger != "" && !fleet.IsName(l.Trigger):
		return l, false, &Refusal{Code: CodeInvalid, Detail: "the dead letter was not recorded", Faults: []Fault{{"trigger", "no name of a trigger"}}}
	case len(l.Message.Data) > trigger.MaxData:
		return l, false, refuse(CodeTooLarge, "the data has %d bytes, %d at most", len(l.Message.Data), trigger.MaxData)
	}
	if l.Reason == "" {
		l.Reason = "delivered too often without being taken"
	}
	l.Reason = reasonOf(errors.New(l.Reason))
	return p.recordDeadLetter(ctx, l, nil)
}

// recordDeadLetter writes a letter together with other writes.
func (p *Plane) recordDeadLetter(ctx context.Context, l DeadLetter, more []store.Write) (DeadLetter, bool, error) {
	m := l.Message
	l.ID, l.At, l.Size = messageKey(l.Trigger, m), p.now(), len(m.Data)
	// 1. Once.
	earlier, err := p.DeadLetter(ctx, l.ID)
	var missing *Refusal
	switch {
	case err == nil:
		if len(more) > 0 {
			err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: more}})[0]
		}
		return earlier, true, err
	case !errors.As(err, &missing):
		return l, false, err
	}
	p.sweep(ctx, tagDeadLetter, KeepDeadLetters)
	// 2. The letter and its data.
	doc, err := encodeMisc(store.Doc{Kind: store.KindMisc, ID: letterPrefix + l.ID, Tag: tagDeadLetter}, letterDoc{
		Trigger: l.Trigger, Subscription: m.Subscription, MessageID: m.ID, OrderingKey: m.OrderingKey, PublishTime: m.PublishTime,
		Attributes: m.Attributes, Size: l.Size, Attempts: l.Attempts, Reason: l.Reason, At: l.At,
	})
	if err != nil {
		return l, false, err
	}
	writes := append(more, store.Write{Doc: doc})
	if l.Size > 0 {
		writes = append(writes, store.Write{Expect: store.AnyVersion, Doc: store.Doc{Kind: store.KindPayload, ID: doc.ID, Version: 1, Body: m.Data}})
	}
	err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: writes}})[0]
	if errors.Is(err, store.ErrExists) { // somebody else at the same time
		earlier, err := p.DeadLetter(ctx, l.ID)
		return earlier, true, err
	}
	if err != nil {
		return l, false, fmt.Errorf("record a dead letter: %w", err)
	}
	p.log.WarnContext(ctx, "dead letter", "id", l.ID, "trigger", l.Trigger, "message", m.ID, "attempts", l.Attempts)
	return l, false, nil
}

func letterOf(doc store.Doc) (DeadLetter, error) {
	var d letterDoc
	if err := decodeMisc(doc, &d); err != nil {
		return DeadLetter{}, err
	}
	return DeadLetter{
		ID: strings.TrimPrefix(doc.ID, letterPrefix), Trigger: d.Trigger, Size: d.Size, Attempts: d.Attempts, Reason: d.Reason,
		At: d.At, Replays: d.Replays, Run: d.Run,
		Message: &trigger.Message{ID: d.MessageID, Subscription: d.Subscription, OrderingKey: d.OrderingKey, PublishTime: d.PublishTime, Attributes: d.Attributes},
	}, nil
}

// DeadLetters lists dead letters without their data, the oldest message first.
func (p *Plane) DeadLetters(ctx context.Context, limit int, pageToken string) (letters []DeadLetter, next string, err error) {
	after := ""
	if pageToken != "" {
		after = letterPrefix + pageToken
	}
	docs, err := p.store.Tagged(ctx, store.KindMisc, tagDeadLetter, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("read dead letters: %w", err)
	}
	for _, doc := range docs {
		l, err := letterOf(doc)
		if err != nil {
			return nil, "", err
		}
		letters = append(letters, l)
	}
	if len(docs) == limit {
		next = letters[limit-1].ID
	}
	return letters, next, nil
}

// DeadLetter returns one with its data.
func (p *Plane) DeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	l, _, err := p.deadLetter(ctx, id)
	return l, err
}

func (p *Plane) deadLetter(ctx context.Context, id string) (DeadLetter, store.Doc, error) {
	doc, err := p.store.Get(ctx, store.KindMisc, letterPrefix+id)
	if errors.Is(err, store.ErrNotFound) {
		return DeadLetter{}, doc, refuse(CodeNotFound, "there is no dead letter %.80s", id)
	}
	if err != nil {
		return DeadLetter{}, doc, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	l, err := letterOf(doc)
	if err != nil || l.Size == 0 {
		return l, doc, err
	}
	data, err := p.store.Get(ctx, store.KindPayload, doc.ID)
	if err != nil {
		return l, doc, fmt.Errorf("read the data of dead letter %s: %w", id, err)
	}
	l.Message.Data = data.Body
	return l, doc, nil
}

// ReplayDeadLetter submits the message of a dead letter once more, through its trigger as it is declared now, or through
// the one that is named. Each replay is a run of its own; two calls at the same time are one.
func (p *Plane) ReplayDeadLetter(ctx context.Context, id, through, actor string) (Submitted, error) {
	// 1. What and through which trigger.
	l, doc, err := p.deadLetter(ctx, id)
	if err != nil {
		return Submitted{}, err
	}
	if through == "" {
		through = l.Trigger
	}
	if through == "" {
		return Submitted{}, &Refusal{Code: CodeInvalid, Detail: "the dead letter was not replayed", Faults: []Fault{{"trigger", "missing: nobody knows the trigger of this message; name one"}}}
	}
	x := p.declaredNamed(ctx, fleet.KindTrigger, through)
	if x == nil {
		return Submitted{}, refuse(CodeNotFound, "there is no trigger %.80s to replay the message through", through)
	}
	// 2. Submit under a key of its own, then count: a crash in between lets the next call meet this run.
	done, err := p.submitMessage(ctx, x, Arrived{Trigger: through, Message: l.Message, Actor: actor}, l.Replays+1)
	if err != nil {
		return done, err
	}
	ctx = context.WithoutCancel(ctx)
	for range replayAttempts {
		var d letterDoc
		if err := decodeMisc(doc, &d); err != nil {
			return done, err
		}
		if d.Replays > l.Replays {
			return done, nil // the other call has counted
		}
		d.Replays, d.Run = l.Replays+1, done.Run.ID
		next, err := encodeMisc(doc, d)
		if err != nil {
			return done, err
		}
		err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: []store.Write{{Expect: doc.Version, Doc: next}}}})[0]
		if !errors.Is(err, store.ErrConflict) {
			return done, err
		}
		if doc, err = p.store.Get(ctx, store.KindMisc, doc.ID); err != nil {
			return done, fmt.Errorf("count a replay of dead letter %s: %w", id, err)
		}
	}
	return done, nil
}
