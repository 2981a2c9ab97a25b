package patterns

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/agent"
)

func TestWhatIsPrivateIsTakenOut(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"an address":              {"write to ada.l+x@mail.example.org, please", "write to [email], please"},
		"an account":              {"DE02 1203 0000 0000 2020 51 is it", "[iban] is it"},
		"an account in one piece": {"pay DE02120300000000202051.", "pay [iban]."},
		"a number to call":        {"call +49 170 1234567 now", "call [phone] now"},
		"a price is not private":  {"29.00 EUR for 3 lamps", "29.00 EUR for 3 lamps"},
	} {
		got, err := redact(context.Background(), nil, mail{c.text})
		if err != nil || got.Text != c.want {
			t.Errorf("%s: %q, error %v; want %q", name, got.Text, err, c.want)
		}
	}
}

// A round never makes a tour longer or loses a stop, and says what it gained.
func TestARoundOfRefinementNeverHarms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "stops")
		in := tour{}
		for i := range n {
			in.Stops = append(in.Stops, stop{string(rune('a' + i)), rapid.Float64Range(-100, 100).Draw(t, "x"), rapid.Float64Range(-100, 100).Draw(t, "y")})
		}
		out, err := improveTour(context.Background(), nil, in)
		if err != nil {
			t.Fatal(err)
		}
		if before := length(in.Stops); out.Length > before+0.001 || math.Abs(before-out.Length-out.Gained) > 0.002 || out.Score < 0 || out.Score > 1 {
			t.Errorf("from %g to %+v", before, out)
		}
		names := func(stops []stop) (names []string) {
			for _, s := range stops {
				names = append(names, s.Name)
			}
			slices.Sort(names)
			return names
		}
		if diff := cmp.Diff(names(in.Stops), names(out.Stops)); diff != "" {
			t.Error(diff)
		}
	})
}

// Trimming drops one whole sentence in a round, and nothing of a text that fits.
func TestTrimmingEndsAndKeepsSentencesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sentence := rapid.StringMatching(`[A-Z][a-z]{2,8}( [a-z]{2,8}){1,5}\.`)
		sentences := rapid.SliceOfN(sentence, 1, 8).Draw(t, "sentences")
		in := longText{strings.Join(sentences, " "), rapid.IntRange(1, 200).Draw(t, "limit")}
		for round := 0; ; round++ {
			out, err := trim(context.Background(), nil, in)
			if err != nil {
				t.Fatal(err)
			}
			if out.Length != len([]rune(out.Text)) || len(out.Dropped) > 1 || round > len(sentences) {
				t.Fatalf("round %d: %+v", round, out)
			}
			for _, s := range sentencePattern.FindAllString(out.Text, -1) {
				if !slices.Contains(sentences, strings.TrimSpace(s)) {
					t.Fatalf("%q is no sentence of %q", s, sentences)
				}
			}
			if len(out.Dropped) == 0 {
				return
			}
			in.Text = out.Text
		}
	})
}

func TestAReviewSaysWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		brief brief
		want  []string
	}{
		"all is there":    {brief{Draft: "It burns for 40 hours.", Facts: []string{"burns for 40 hours"}, Limit: 100}, []string{}},
		"a fact is not":   {brief{Draft: "It burns.", Facts: []string{"costs 29 EUR"}}, []string{"it does not say: costs 29 EUR"}},
		"it is too long":  {brief{Draft: "abcdef", Limit: 5}, []string{"it has 6 characters, the limit is 5"}},
		"it boasts twice": {brief{Draft: "A World-class, unmatched lamp"}, []string{"it boasts: World-class", "it boasts: unmatched"}},
	} {
		got, err := review(context.Background(), nil, c.brief)
		if diff := cmp.Diff(c.want, got.Findings); diff != "" || err != nil || got.Approved != (len(c.want) == 0) {
			t.Errorf("%s: %+v, error %v (-want +got):\n%s", name, got, err, diff)
		}
	}
}

func TestWhatIsPaidBack(t *testing.T) {
	for name, c := range map[string]struct {
		in    returned
		cents int // 0: refused
	}{
		"all, in time and unused":       {returned{Order: "o", IBAN: "i", Cents: 1000, Days: 14}, 1000},
		"less, when it was used":        {returned{Order: "o", IBAN: "i", Cents: 1001, Days: 1, Used: true}, 801},
		"half, when it is late":         {returned{Order: "o", IBAN: "i", Cents: 1001, Days: 15, Used: true}, 500},
		"nothing of nothing":            {returned{Order: "o", IBAN: "i", Days: 1}, 0},
		"nothing beyond what one sells": {returned{Order: "o", IBAN: "i", Cents: 99999999, Days: 1}, 0},
		"nothing without an account":    {returned{Order: "o", Cents: 100, Days: 1}, 0},
	} {
		got, err := quoteRefund(context.Background(), nil, c.in)
		if (err != nil) != (c.cents == 0) || got.Payment.Cents != c.cents {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

func TestAnIncidentsCauseIsTheLastChangeBeforeItsSymptom(t *testing.T) {
	change := func(at int, service string) fact { return fact{factChange, service, at, ""} }
	symptom := func(at int, service string) fact { return fact{factSymptom, service, at, ""} }
	for name, c := range map[string]struct {
		facts []fact
		want  int // minute; -1: none
	}{
		"the last of two":               {[]fact{change(3, "a"), change(9, "a"), symptom(10, "a")}, 9},
		"not one after it":              {[]fact{change(11, "a"), symptom(10, "a")}, -1},
		"not one long before":           {[]fact{change(1, "a"), symptom(100, "a")}, -1},
		"not one of another service":    {[]fact{change(9, "b"), symptom(10, "a")}, -1},
		"a line of a log is no symptom": {[]fact{change(9, "a"), {factLog, "a", 10, ""}}, -1},
	} {
		got, ok := (&ledger{Facts: c.facts}).cause()
		if !ok {
			got.At = -1
		}
		if got.At != c.want {
			t.Errorf("%s: minute %d, want %d", name, got.At, c.want)
		}
	}
}

func TestCarriersQuoteWhatTheyCanCarry(t *testing.T) {
	for name, c := range map[string]struct {
		in    parcel
		cents int
		code  string
	}{
		"by started kilogram": {parcel{"van", 1001}, 510, ""},
		"nothing but a base":  {parcel{"rail", 0}, 900, ""},
		"too heavy":           {parcel{"bike", 5001}, 0, "TooHeavy"},
		"an unknown carrier":  {parcel{"drone", 1}, 0, "CarrierUnknown"},
	} {
		got, err := quoteCarrier(context.Background(), nil, c.in)
		var failed *agent.Error
		if errors.As(err, &failed); got.Cents != c.cents || (c.code != "") != (err != nil) || err != nil && failed.Code != c.code {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

// The chair lets those speak who have not agreed, and of those who was silent longest.
func TestWhoMaySpeakNext(t *testing.T) {
	said := func(names ...string) (all []spoken) {
		for _, n := range names {
			all = append(all, spoken{Speaker: n})
		}
		return all
	}
	for name, c := range map[string]struct {
		agreed map[string]bool
		said   []spoken
		want   []string
	}{
		"everybody, at first":         {nil, nil, participants},
		"not those who agree":         {map[string]bool{"chat-sales": true}, said("chat-sales"), []string{"chat-production", "chat-finance"}},
		"who was silent longest":      {nil, said("chat-production", "chat-sales"), []string{"chat-finance", "chat-production", "chat-sales"}},
		"nobody, when all are agreed": {map[string]bool{"chat-sales": true, "chat-production": true, "chat-finance": true}, said("chat-sales"), nil},
	} {
		if diff := cmp.Diff(c.want, stillOpen(c.agreed, c.said)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
