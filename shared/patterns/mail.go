package patterns

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Sequential: a mail passes through three agents, each of which knows one thing.

type mail struct {
	Text string `json:"text"`
}

type redacted struct {
	Text     string         `json:"text"`
	Redacted map[string]int `json:"redacted"` // by kind
}

// What is taken out before anybody else reads the mail. The order matters: an IBAN holds what looks like a number to call.
var private = []struct {
	kind    string
	pattern *regexp.Regexp
}{
	{"email", regexp.MustCompile(`[\w.+-]+@[\w-]+(\.[\w-]+)+`)},
	{"iban", regexp.MustCompile(`\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b`)},
	{"phone", regexp.MustCompile(`\+?[0-9][0-9 /-]{7,}[0-9]`)},
}

func redact(_ context.Context, _ *agent.Run, in mail) (redacted, error) {
	out := redacted{Text: in.Text, Redacted: map[string]int{}}
	for _, p := range private {
		out.Text = p.pattern.ReplaceAllStringFunc(out.Text, func(string) string {
			out.Redacted[p.kind]++
			return "[" + p.kind + "]"
		})
	}
	return out, nil
}

type topicOf struct {
	Topic string   `json:"topic"`
	Words []string `json:"words"` // that speak for it
}

// topics by the words that speak for them.
var topics = []struct {
	name  string
	words []string
}{
	{"invoice", []string{"invoice", "charged", "charge", "payment", "refund", "paid", "bill"}},
	{"delivery", []string{"parcel", "delivery", "delivered", "shipping", "tracking", "carrier", "arrived"}},
	{"fault", []string{"broken", "error", "crash", "fault", "defect", "start", "works"}},
}

var wordPattern = regexp.MustCompile(`[\pL]+`)

// topic chooses what most words speak for; of equals the one that stands first above.
func topic(_ context.Context, _ *agent.Run, in mail) (topicOf, error) {
	found := topicOf{Topic: "other", Words: []string{}}
	words := wordPattern.FindAllString(strings.ToLower(in.Text), -1)
	for _, t := range topics {
		var hits []string
		for _, w := range words {
			if slices.Contains(t.words, w) {
				hits = append(hits, w)
			}
		}
		if len(hits) > len(found.Words) {
			found = topicOf{t.name, hits}
		}
	}
	return found, nil
}

type replyTo struct {
	Topic string `json:"topic"`
	Text  string `json:"text"`
}

type replied struct {
	Reply  string `json:"reply"`
	Topic  string `json:"topic"`
	Person bool   `json:"person"` // a person has to look at it
}

var replies = map[string]string{
	"invoice":  "we are looking at your invoice and will tell you within two working days what we found.",
	"delivery": "we have asked the carrier where your parcel is.",
	"fault":    "we are sorry that it does not work. Please keep the device as it is; a technician will call you.",
}

func reply(_ context.Context, _ *agent.Run, in replyTo) (replied, error) {
	text, known := replies[in.Topic]
	if !known {
		text = "thank you for your mail. Somebody will read it today."
	}
	quote, _, _ := strings.Cut(strings.TrimSpace(in.Text), "\n")
	return replied{Reply: fmt.Sprintf("You wrote: %q\n\nHello, %s", cut(quote, 120), text), Topic: in.Topic, Person: !known}, nil
}

// cut shortens text to so many characters.
func cut(text string, limit int) string {
	if r := []rune(text); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return text
}
