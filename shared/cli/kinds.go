package cli

import (
	"strings"

	"github.com/errand-run/errand/shared/cli/internal/render"
)

// kind is a declared kind as people type it and as the interface spells it.
type kind struct {
	name   string   // as in a manifest
	plural string   // as in a path
	short  []string // other spellings
}

var kinds = []kind{
	{"Agent", "agents", []string{"agent", "ag"}},
	{"Target", "targets", []string{"target", "tg"}},
	{"Tenant", "tenants", []string{"tenant", "tn"}},
	{"Workflow", "workflows", []string{"workflow", "wf"}},
	{"Trigger", "triggers", []string{"trigger", "tr"}},
}

// kindRun is no declared kind, but get, describe and delete take it where that has a meaning.
var kindRun = kind{"Run", "runs", []string{"run", "r"}}

// findKind reads a KIND argument.
func findKind(word string) (kind, error) {
	lower := strings.ToLower(word)
	var names []string
	for _, k := range append(kinds[:len(kinds):len(kinds)], kindRun) {
		if lower == k.plural {
			return k, nil
		}
		for _, s := range k.short {
			if lower == s {
				return k, nil
			}
		}
		names = append(names, k.plural)
	}
	return kind{}, usagef("kind %q: want one of %s", render.Clean(word), strings.Join(names, ", "))
}

// kindWords completes a KIND argument.
func kindWords() []string {
	words := []string{kindRun.plural}
	for _, k := range kinds {
		words = append(words, k.plural)
	}
	return words
}
