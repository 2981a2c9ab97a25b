package run

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestABriefIsTheRecordWithoutItsTailAndDetail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New(Spec{ID: "r", Agent: "a", Tenant: "t", CreatedAt: t0, Labels: map[string]string{"l": "1"}}, Event{Type: EvSubmitted, At: t0})
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			if e := anyEvent(t, r, false); Decide(r, &e) == nil {
				Evolve(r, e)
			}
		}
		body := Encode(r)
		var got Record
		if err := DecodeBrief(body, &got); err != nil {
			t.Fatal(err)
		}
		want, err := DecodeRecord(body)
		if err != nil {
			t.Fatal(err)
		}
		want.Tail, want.Detail = nil, nil
		if diff := cmp.Diff(want, &got, same); diff != "" {
			t.Fatalf("(-record +brief):\n%s", diff)
		}
	})
}

func TestABriefOfNoRecordIsAnError(t *testing.T) {
	for name, body := range map[string][]byte{
		"nothing":        nil,
		"another format": []byte(`{"id":"a"}`),
		"no id":          {format, 0, 0},
		"cut short":      Encode(New(Spec{ID: "a", Agent: "b", Tenant: "c", CreatedAt: 5}, Event{Type: EvSubmitted, At: 5}))[:9],
		"too large":      make([]byte, MaxRecord+1),
	} {
		var r Record
		if err := DecodeBrief(body, &r); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
