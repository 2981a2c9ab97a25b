package patterns

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Loop: one agent works on its own last result until it is good enough.

type longText struct {
	Text  string `json:"text"`
	Limit int    `json:"limit"` // characters
}

type trimmed struct {
	Text    string   `json:"text"`
	Length  int      `json:"length"`
	Limit   int      `json:"limit"`
	Dropped []string `json:"dropped"` // in this round
}

var sentencePattern = regexp.MustCompile(`[^.!?]+[.!?]+\s*|[^.!?]+$`)

// trim drops the sentence that says least: the one whose words occur least in the rest of the text.
func trim(_ context.Context, _ *agent.Run, in longText) (trimmed, error) {
	out := trimmed{Text: strings.TrimSpace(in.Text), Limit: in.Limit, Dropped: []string{}}
	sentences := sentencePattern.FindAllString(out.Text, -1)
	if len([]rune(out.Text)) > in.Limit && len(sentences) > 1 {
		least := leastTelling(sentences)
		out.Dropped = append(out.Dropped, strings.TrimSpace(sentences[least]))
		out.Text = strings.TrimSpace(strings.Join(slices.Delete(sentences, least, least+1), ""))
	}
	out.Length = len([]rune(out.Text))
	return out, nil
}

// leastTelling is the index of the sentence whose words are met least often; of equals the last.
func leastTelling(sentences []string) int {
	count := make(map[string]int)
	words := make([][]string, len(sentences))
	for i, s := range sentences {
		words[i] = wordPattern.FindAllString(strings.ToLower(s), -1)
		for _, w := range words[i] {
			if len(w) > 3 {
				count[w]++
			}
		}
	}
	least, lowest := 0, math.MaxFloat64
	for i := range sentences {
		var told float64
		for _, w := range words[i] {
			told += float64(count[w])
		}
		if told /= float64(max(len(words[i]), 1)); told <= lowest {
			least, lowest = i, told
		}
	}
	return least
}

// Iterative refinement: each round makes the tour shorter, and the best one is kept whatever the last was.

// maxStops bounds a tour: each round looks at every pair of its stops.
const maxStops = 500

type stop struct {
	Name string  `json:"name"`
	X    float64 `json:"x"`
	Y    float64 `json:"y"`
}

type tour struct {
	Stops []stop `json:"stops"`
}

type improved struct {
	Stops  []stop  `json:"stops"`  // in the order in which they are visited; it ends where it begins
	Length float64 `json:"length"` // rounded to thousandths
	Gained float64 `json:"gained"` // by this round
	Score  float64 `json:"score"`  // of 1: how close to the length that no tour can undercut
}

// improveTour turns around the one stretch of the tour that makes it shortest (a step of 2-opt).
func improveTour(_ context.Context, _ *agent.Run, in tour) (improved, error) {
	n := len(in.Stops)
	if n < 2 || n > maxStops {
		return improved{}, invalid("stops: a tour has 2 to %d, this has %d", maxStops, n)
	}
	stops := slices.Clone(in.Stops)
	before := length(stops)
	bestFrom, bestTo, bestGain := 0, 0, 1e-9
	for i := 0; i < n-1; i++ {
		for k := i + 1; k < n; k++ {
			if i == 0 && k == n-1 {
				continue // the whole tour backwards
			}
			a, b, c, d := stops[(i+n-1)%n], stops[i], stops[k], stops[(k+1)%n]
			if gain := between(a, b) + between(c, d) - between(a, c) - between(b, d); gain > bestGain {
				bestFrom, bestTo, bestGain = i, k, gain
			}
		}
	}
	if bestTo > 0 {
		slices.Reverse(stops[bestFrom : bestTo+1])
	}
	after := length(stops)
	if math.IsNaN(after) || math.IsInf(after, 0) {
		return improved{}, invalid("stops: their places are too far apart to measure")
	}
	out := improved{Stops: stops, Length: thousandths(after), Gained: thousandths(before - after), Score: 1}
	if after > 0 {
		out.Score = thousandths(min(leastLength(stops)/after, 1))
	}
	return out, nil
}

func between(a, b stop) float64 { return math.Hypot(a.X-b.X, a.Y-b.Y) }

func length(stops []stop) (sum float64) {
	for i := range stops {
		sum += between(stops[i], stops[(i+1)%len(stops)])
	}
	return sum
}

// leastLength is a bound from below: every stop is entered and left, at best by its two nearest neighbors.
func leastLength(stops []stop) float64 {
	var sum float64
	for i, s := range stops {
		first, second := math.MaxFloat64, math.MaxFloat64
		for k, o := range stops {
			if k == i {
				continue
			}
			if d := between(s, o); d < first {
				first, second = d, first
			} else if d < second {
				second = d
			}
		}
		if len(stops) == 2 {
			second = first
		}
		sum += first + second
	}
	return sum / 2
}

func thousandths(x float64) float64 { return math.Round(x*1000) / 1000 }

// Review and critique: a writer and a reviewer who knows what may not be missing.

type brief struct {
	Product string   `json:"product"`
	Facts   []string `json:"facts"` // each has to be in the text, word for word
	Limit   int      `json:"limit"` // characters
	Draft   string   `json:"draft,omitempty"`
	// Findings of the reviewer about the draft.
	Findings []string `json:"findings,omitempty"`
}

type draft struct {
	Draft string `json:"draft"`
}

const writerRole = `You are the writer of press notes. You are given a brief as lines "Product:", "Fact:", "Limit:", and, from the second ` +
	`round on, your last "Draft:" and what the reviewer found, as lines "Finding:". Answer with the note alone.`

// write asks the model for a text, with what was wrong about the last one.
func write(ctx context.Context, r *agent.Run, in brief) (draft, error) {
	var q strings.Builder
	fmt.Fprintf(&q, "Product: %s\n", in.Product)
	for _, f := range in.Facts {
		fmt.Fprintf(&q, "Fact: %s\n", f)
	}
	fmt.Fprintf(&q, "Limit: %d characters\n", in.Limit)
	if in.Draft != "" {
		fmt.Fprintf(&q, "Draft: %s\n", in.Draft)
	}
	for _, f := range in.Findings {
		fmt.Fprintf(&q, "Finding: %s\n", f)
	}
	text, err := ask(ctx, r, "write", writerRole, q.String())
	return draft{strings.TrimSpace(text)}, err
}

type reviewed struct {
	Approved bool     `json:"approved"`
	Findings []string `json:"findings"`
	Score    float64  `json:"score"` // of 1
}

// boasts are what a note does not say.
var boasts = regexp.MustCompile(`(?i)\b(revolutionary|best in class|unmatched|game.?chang\w+|world.?class)\b`)

// review checks what can be checked: every fact, the limit, and words that promise too much.
func review(_ context.Context, _ *agent.Run, in brief) (reviewed, error) {
	out := reviewed{Findings: []string{}}
	for _, f := range in.Facts {
		if !strings.Contains(in.Draft, f) {
			out.Findings = append(out.Findings, "it does not say: "+f)
		}
	}
	if n := len([]rune(in.Draft)); in.Limit > 0 && n > in.Limit {
		out.Findings = append(out.Findings, fmt.Sprintf("it has %d characters, the limit is %d", n, in.Limit))
	}
	for _, w := range boasts.FindAllString(in.Draft, -1) {
		out.Findings = append(out.Findings, "it boasts: "+w)
	}
	out.Approved = len(out.Findings) == 0
	out.Score = thousandths(1 / float64(1+len(out.Findings)))
	return out, nil
}
