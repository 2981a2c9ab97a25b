package run

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/states.md instead of comparing with it")

const statesDoc = "../../docs/states.md"

// docs/states.md says what the table and the constants of this package say, and nothing else.
func TestStatesDoc(t *testing.T) {
	want, err := renderStates()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(statesDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(statesDoc)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s and the kernel have parted: run `go generate ./shared/run`", statesDoc)
	}
}

// Every state, reason and class is in its closed set and is explained where it is declared.
func TestEveryWordIsExplained(t *testing.T) {
	words, err := declaredWords()
	if err != nil {
		t.Fatal(err)
	}
	var reasons, states, classes []string
	for _, r := range Reasons {
		reasons = append(reasons, string(r))
	}
	for _, s := range States {
		states = append(states, string(s))
	}
	for _, c := range Classes {
		classes = append(classes, string(c))
	}
	for kind, set := range map[string][]string{"Reason": reasons, "State": states, "Class": classes} {
		var declared []string
		for _, w := range words[kind] {
			declared = append(declared, w.value)
			if w.doc == "" {
				t.Errorf("%s %s has no comment", kind, w.value)
			}
			if !slices.Contains(set, w.value) {
				t.Errorf("%s %s is not in the closed set", kind, w.value)
			}
		}
		if len(declared) != len(set) {
			t.Errorf("%d of kind %s are declared, the closed set has %d", len(declared), kind, len(set))
		}
	}
	var events []string
	for _, w := range words["EventType"] {
		events = append(events, w.value)
		if byEvent[EventType(w.value)] == nil {
			t.Errorf("event %s is not in the table", w.value)
		}
	}
	if len(events) != len(Table) {
		t.Errorf("%d events are declared, the table has %d rows", len(events), len(Table))
	}
	for _, row := range Table {
		if row.Doc == "" {
			t.Errorf("event %s has no doc", row.Event)
		}
	}
}

// Every state but the terminal ones has a way out, and every state can be reached.
func TestTheTableHasNoDeadEnd(t *testing.T) {
	reached := map[State]bool{}
	for _, row := range Table {
		if row.To != "" {
			reached[row.To] = true
		}
	}
	for _, s := range States {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
		leaves := slices.ContainsFunc(Table, func(row Transition) bool {
			return row.To != "" && row.To != s && slices.Contains(row.From, s)
		})
		if leaves == s.Terminal() {
			t.Errorf("%s: terminal %t, left %t", s, s.Terminal(), leaves)
		}
	}
}

// word is a declared constant with the comment behind it.
type word struct{ value, doc string }

// declaredWords reads the typed string constants of the package by the name of their type, in order.
func declaredWords() (map[string][]word, error) {
	words := map[string][]word{}
	for _, name := range []string{"state.go", "event.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Type == nil || len(spec.Values) != 1 {
				return true
			}
			kind, ok := spec.Type.(*ast.Ident)
			lit, isLit := spec.Values[0].(*ast.BasicLit)
			if !ok || !isLit || lit.Kind != token.STRING {
				return true
			}
			value, err := strconv.Unquote(lit.Value)
			if err == nil {
				words[kind.Name] = append(words[kind.Name], word{value, strings.TrimSpace(spec.Comment.Text())})
			}
			return true
		})
	}
	return words, nil
}

// many is from how many states on the diagram draws an event from "any open state" instead of from each.
const many = 5

func renderStates() (string, error) {
	words, err := declaredWords()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# States of a run

<!-- Generated from shared/run by: go generate ./shared/run. Do not edit. -->

A run is in exactly one state. An event takes it from one to the next; the table below is all there is, and an event
that it does not admit changes nothing. ` + "`succeeded`, `failed` and `canceled`" + ` are final.

` + "```mermaid\nstateDiagram-v2\n")
	b.WriteString("    state \"any open state\" as open\n    [*] --> queued: submitted\n")
	for _, row := range Table {
		from := row.From
		if row.To == "" || len(from) == 0 {
			continue
		}
		if len(from) >= many {
			fmt.Fprintf(&b, "    open --> %s: %s\n", row.To, row.Event)
			continue
		}
		for _, s := range from {
			if s != row.To {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", s, row.To, row.Event)
			}
		}
	}
	for _, s := range States {
		if s.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	b.WriteString("```\n\n\"Any open state\" stands for several at once; the table of events names them.\n")

	list := func(title, intro, column string, of []word) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| %s | meaning |\n|---|---|\n", title, intro, column)
		for _, w := range of {
			fmt.Fprintf(&b, "| `%s` | %s |\n", w.value, w.doc)
		}
	}
	list("States", "Where a run is.", "state", words["State"])

	b.WriteString("\n## Events\n\nA fenced event speaks for an attempt and is refused unless that attempt holds the run.\n\n| event | from | to | fenced | what happens |\n|---|---|---|---|---|\n")
	for _, row := range Table {
		from := make([]string, len(row.From))
		for i, s := range row.From {
			from[i] = string(s)
		}
		froms, to, fenced := strings.Join(from, ", "), string(row.To), ""
		switch {
		case len(from) == 0:
			froms = "(none)"
		case len(from) == len(States):
			froms = "any"
		}
		if to == "" {
			to = "(stays)"
		}
		if row.Fenced {
			fenced = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", row.Event, froms, to, fenced, row.Doc)
	}

	list("Reasons", "Why a run ended, or why it is where it is. The set is closed.", "reason", words["Reason"])
	list("Classes of failure", "How an attempt failed. The retry policy maps each to retry, fail or ignore.", "class", words["Class"])
	return b.String(), nil
}
