package bustest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/bus"
)

func attributes(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprint("a", i)] = "v"
	}
	return all
}

func testLimits(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	l := newLedger()
	receive(t, b, topic, 1, l.ack)
	named := func(name string, m bus.Message) bus.Message {
		if m.Attributes == nil {
			m.Attributes = map[string]string{}
		}
		m.Attributes["name"] = name
		return m
	}
	cases := map[string]struct {
		message bus.Message
		want    error
	}{
		"data at the limit goes":             {named("data", bus.Message{Data: make([]byte, bus.MaxData)}), nil},
		"a byte more does not":               {bus.Message{Data: make([]byte, bus.MaxData+1)}, bus.ErrTooLarge},
		"attributes at the limit go":         {named("many", bus.Message{Attributes: attributes(bus.MaxAttributes - 1)}), nil},
		"one more does not":                  {bus.Message{Attributes: attributes(bus.MaxAttributes + 1)}, bus.ErrTooLarge},
		"a value at the limit goes":          {named("value", bus.Message{Attributes: map[string]string{"a": strings.Repeat("v", bus.MaxAttribute)}}), nil},
		"a byte more of it does not":         {bus.Message{Attributes: map[string]string{"a": strings.Repeat("v", bus.MaxAttribute+1)}}, bus.ErrTooLarge},
		"a key at the limit goes":            {named("key", bus.Message{Attributes: map[string]string{strings.Repeat("k", bus.MaxKey): "v"}}), nil},
		"a byte more of a key does not":      {bus.Message{Attributes: map[string]string{strings.Repeat("k", bus.MaxKey+1): "v"}}, bus.ErrTooLarge},
		"nothing at all does not":            {bus.Message{}, bus.ErrInvalid},
		"an empty key does not":              {bus.Message{Attributes: map[string]string{"": "v"}}, bus.ErrInvalid},
		"a key of the broker's own does not": {bus.Message{Attributes: map[string]string{"googclient_x": "v"}}, bus.ErrInvalid},
		"a value that is not UTF-8 does not": {bus.Message{Attributes: map[string]string{"a": "\xff"}}, bus.ErrInvalid},
		"a key that is not UTF-8 does not":   {bus.Message{Attributes: map[string]string{"\xff": "v"}}, bus.ErrInvalid},
		"an empty value goes":                {named("empty", bus.Message{Attributes: map[string]string{"a": ""}}), nil},
		"attributes without data go":         {message("bare"), nil},
	}
	var messages []bus.Message
	var said []string
	var want []error
	for sentence, c := range cases {
		messages, said, want = append(messages, c.message), append(said, sentence), append(want, c.want)
	}
	got := b.Publish(t.Context(), topic, messages)
	if len(got) != len(messages) {
		t.Fatalf("%d outcomes of %d messages", len(got), len(messages))
	}
	for i, err := range got {
		if !errors.Is(err, want[i]) {
			t.Errorf("%s: got %v, want %v", said[i], err, want[i])
		}
	}
	l.until(t, "data", "many", "value", "key", "empty", "bare")

	for i, err := range b.Publish(t.Context(), topic, make([]bus.Message, bus.MaxBatch+1)) {
		if !errors.Is(err, bus.ErrTooLarge) {
			t.Fatalf("message %d of too large a batch: got %v", i, err)
		}
	}
	if got := b.Publish(t.Context(), topic, nil); len(got) != 0 {
		t.Errorf("no messages have outcomes: %v", got)
	}
}

func testNoTopic(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	for _, name := range []bus.Topic{"pool-elsewhere", "", "Pool", "a/b", "9lives", bus.Topic(strings.Repeat("x", 300))} {
		errs := b.Publish(t.Context(), name, []bus.Message{message("m"), message("n")})
		for _, err := range errs {
			if !errors.Is(err, bus.ErrNoTopic) {
				t.Errorf("publish on topic %.20q: got %v", name, err)
			}
		}
		if name == "pool-elsewhere" && !strings.Contains(errs[0].Error(), string(name)) {
			t.Errorf("the error does not name the topic: %v", errs[0])
		}
		r := bus.Receiver{Slots: 1, Handle: newLedger().ack}
		if err := b.Receive(t.Context(), name, r); !errors.Is(err, bus.ErrNoTopic) {
			t.Errorf("receive from topic %.20q: got %v", name, err)
		}
	}
}

func testReceiver(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	ack := newLedger().ack
	for sentence, c := range map[string]struct {
		receiver bus.Receiver
		want     error
	}{
		"no slots":       {bus.Receiver{Handle: ack}, bus.ErrInvalid},
		"negative slots": {bus.Receiver{Slots: -1, Handle: ack}, bus.ErrInvalid},
		"no handler":     {bus.Receiver{Slots: 1}, bus.ErrInvalid},
		"too many slots": {bus.Receiver{Slots: bus.MaxSlots + 1, Handle: ack}, bus.ErrTooLarge},
	} {
		if err := b.Receive(t.Context(), topic, c.receiver); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", sentence, err, c.want)
		}
	}
}

func testClose(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.Open(t)
	publish(t, b, topic, "m")
	began := make(chan struct{})
	busy := func(ctx context.Context, d *bus.Delivery) error {
		close(began)
		<-ctx.Done()
		return nil
	}
	ended := make(chan error, 2)
	go func() { ended <- b.Receive(context.Background(), topic, bus.Receiver{Slots: 1, Handle: busy}) }()
	wait(t, began, "the message")
	go func() {
		ended <- b.Receive(context.Background(), topic, bus.Receiver{Slots: 1, Handle: newLedger().ack})
	}()
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			if err := <-ended; !errors.Is(err, bus.ErrClosed) {
				t.Errorf("a Receive ended with %v, want %v", err, bus.ErrClosed)
			}
		}
	}()
	wait(t, done, "the end of every Receive")
	if err := b.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	for _, err := range b.Publish(t.Context(), topic, []bus.Message{message("m"), message("n")}) {
		if !errors.Is(err, bus.ErrClosed) {
			t.Errorf("publish on a closed bus: got %v", err)
		}
	}
	err := b.Receive(t.Context(), topic, bus.Receiver{Slots: 1, Handle: newLedger().ack})
	if !errors.Is(err, bus.ErrClosed) {
		t.Errorf("receive from a closed bus: got %v", err)
	}
	if b.Describe() == "" {
		t.Error("a closed bus has no description")
	}
	nothingLeft(t, br, br.open(t), topic) // the handler's nil counted
}

func testPublishCanceled(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range b.Publish(ctx, topic, []bus.Message{message("m"), message("n")}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	}
	l := newLedger()
	receive(t, b, topic, 1, l.ack)
	publish(t, b, topic, "later")
	l.until(t, "later")
}
