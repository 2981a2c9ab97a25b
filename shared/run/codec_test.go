package run

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheStoredFormStaysAsItIs(t *testing.T) {
	score := 0.5
	r := New(Spec{
		ID: "r1", Agent: "checker", Tenant: "default", Revision: 3, Priority: 50, CreatedAt: t0, Labels: map[string]string{"b": "2", "a": "1"},
		Input: Payload{Inline: json.RawMessage(`{"n":1}`), Size: 7}, BudgetUSD: 1.5,
	}, Event{Type: EvSubmitted, At: t0, Actor: "local"})
	for _, e := range []Event{
		{Type: EvAssigned, At: t0 + 1, Attempt: 1, Target: "pool", Worker: "w1", Node: "pool/w1", Detail: json.RawMessage(`{"t":"pool"}`), Due: t0 + 100},
		{Type: EvStarted, At: t0 + 2, Attempt: 1},
		{Type: EvSucceeded, At: t0 + 3, Attempt: 1, Output: &Payload{Inline: json.RawMessage(`2`), Size: 1}, Usage: &Usage{1, 2, 0.25}, Score: &score, Sure: true},
	} {
		if err := Decide(r, &e); err != nil {
			t.Fatal(err)
		}
		Evolve(r, e)
	}
	body := Encode(r)
	// What was stored yesterday must be read tomorrow: this changes only with the format's number.
	const want = "0180c0e285e368010472310201030e636865636b6572050606070764080202610231026202320c01077b226e223a317d0016000000000000f83f1f08201d23022402280029042a062b062d01013200320102020403000000000000d03f0033000000000000e03f340101020208706f6f6c0f04047731050206040706081d0c0d0102020403000000000000d03f000e003504010202230300050a6c6f63616c000104020f0302040206a30107a501180dc8010e0c7b2274223a22706f6f6c227d000106022903040402000108021d030604020f100101320011120102020403000000000000d03f0015000000000000e03f1700370200"
	if got := hex.EncodeToString(body); got != want {
		t.Errorf("%d bytes\n%s\nwant\n%s", len(body), got, want)
	}
	stored, err := hex.DecodeString(want)
	if err != nil {
		t.Fatal(err)
	}
	again, err := DecodeRecord(stored)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again, same); diff != "" {
		t.Errorf("read back (-record +read):\n%s", diff)
	}
}

func TestEveryWordOfTheKernelIsStoredAsANumber(t *testing.T) {
	var all []string
	for _, s := range States {
		all = append(all, string(s))
	}
	for _, r := range Reasons {
		all = append(all, string(r))
	}
	for _, c := range Classes {
		all = append(all, string(c))
	}
	for _, e := range eventTypes {
		if e != EvBegan && e != EvAdvanced && e != EvActed && e != EvGateChanged && e != EvDeadlineMoved { // they came after the form was fixed
			all = append(all, string(e))
		}
	}
	for _, w := range append(all, string(OutcomeStartFailed), string(OutcomeParked), string(OnTimer), string(OnInput), string(OnChildren), string(OnGate)) {
		if _, known := wordAt[w]; !known {
			t.Errorf("%s is not among the words", w)
		}
	}
	if len(wordAt) != len(words) {
		t.Errorf("%d words, %d of them different", len(words), len(wordAt))
	}
}

func TestHistoryReadsBack(t *testing.T) {
	list := []Event{
		{Seq: 5, Type: EvSignaled, At: t0, Signal: &Signal{Name: "go", Key: "k", Payload: Payload{Ref: "r1/in", Size: 1 << 20}}},
		{Seq: 6, Type: EvParked, At: t0 - 5, Attempt: 1, Park: &Park{On: OnInput, Step: "s", Name: "go", Until: maxInstant, Seq: 2}, Usage: &Usage{}},
		{Seq: 7, Type: EvFailed, At: 1, Message: strings.Repeat("long ", 400), Output: &Payload{}, Unspent: true},
	}
	again, err := DecodeEvents(EncodeEvents(list))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list, again, same); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
}

func FuzzDecodeEvents(f *testing.F) {
	f.Add(EncodeEvents([]Event{{Seq: 1, Type: EvSubmitted, At: t0, Actor: "local"}, {Seq: 2, Type: EvHeld, At: t0 + 1}}))
	f.Add([]byte{format, 0, 1, 200, 0})
	nan := math.NaN()
	f.Add(EncodeEvents([]Event{{Seq: 1, Type: EvScored, At: t0, Score: &nan}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := DecodeEvents(body)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error without ErrCorrupt: %v", err)
			}
			return
		}
		if again, err := DecodeEvents(EncodeEvents(events)); err != nil || !cmp.Equal(events, again, same) {
			t.Fatalf("%d events do not read back: %v", len(events), err)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	r := New(Spec{
		ID: "0123456789abcdefghij", Agent: "checker", Tenant: "default", Revision: 1, Priority: 50, CreatedAt: t0, RetainFor: 1 << 31,
		Input: Payload{Inline: json.RawMessage(`{"n":1}`), Size: 7},
	}, Event{Type: EvSubmitted, At: t0, Actor: "local"})
	for _, e := range []Event{
		{Type: EvAssigned, At: t0 + 1, Attempt: 1, Target: "workers-here", Worker: "host-1234-abcdef", Node: "workers-here/host-1234-abcdef", Detail: json.RawMessage(`{"o":"placed","t":"workers-here"}`), Due: t0 + 10_000},
		{Type: EvStarted, At: t0 + 2, Attempt: 1, Due: t0 + 300_000},
		{Type: EvSucceeded, At: t0 + 3, Attempt: 1, Output: &Payload{Inline: json.RawMessage(`{"began":1234567890}`), Size: 20}, Sure: true, Due: t0 + 1<<31},
	} {
		Evolve(r, e)
	}
	body := Encode(r)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = Encode(r)
		}
		b.ReportMetric(float64(len(body)), "bytes")
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = DecodeRecord(body)
		}
	})
}
