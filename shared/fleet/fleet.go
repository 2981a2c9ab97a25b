// Package fleet holds what is declared: agents, the targets they may run on, the
// tenants they run for, workflows of agents, and the triggers that make runs of
// what arrives, with their defaults, their rules and one canonical encoding.
//
// Layer 0: standard library only, and nothing here blocks, reads a clock or
// draws randomness. Reading YAML is the business of package manifest.
//
// An object is made in three steps. [New] gives one with the defaults that do
// not depend on other fields; a decoder writes over it; SetDefaults fills what
// is still unset. A Go literal may skip the first step: SetDefaults then fills
// every field whose zero value has no meaning of its own. SetDefaults never
// changes a set field, and doing it twice changes nothing.
package fleet

import "fmt"

// APIVersion is the version of every kind in this package.
const APIVersion = "errand.dev/v1"

// The kinds of this package.
const (
	KindAgent    = "Agent"
	KindTarget   = "Target"
	KindTenant   = "Tenant"
	KindWorkflow = "Workflow"
	KindTrigger  = "Trigger"
)

// Object is one declared thing.
type Object interface {
	// Kind is one of the Kind constants.
	Kind() string
	// Name is unique within the kind.
	Name() string
	// Metadata is the object's own, to read or to change.
	Metadata() *Meta
	// SetDefaults fills every unset field that has a default.
	SetDefaults()
	// Validate returns every problem of the object, none for a good one. It
	// accepts a field that SetDefaults would still fill.
	Validate() []Problem
	// Hash is 32 hexadecimal digits over the canonical form: equal for equal
	// declarations, different after any change.
	Hash() string
}

// Problem is one thing that is wrong with an object.
type Problem struct {
	// Path leads to the field from the top of the manifest, with the manifest's
	// names: spec.retry.on[0].class. A map's key follows a dot, as it is.
	Path string
	// Message says what is wrong and what would be right.
	Message string
	// Related are the paths of other fields without which there might be no
	// problem. A decoder that could not read one of them drops the problem: it
	// would only echo that failure.
	Related []string
}

// String renders the problem as "path: message".
func (p Problem) String() string { return p.Path + ": " + p.Message }

// Meta names an object.
type Meta struct {
	// Name is a DNS label, unique within the kind.
	Name string `json:"name"`
	// Labels group objects. Keys and values follow Kubernetes' rules.
	Labels map[string]string `json:"labels,omitempty"`
	// Version is free text, recorded on every run.
	Version string `json:"version,omitempty"`
}

// Metadata returns m itself.
func (m *Meta) Metadata() *Meta { return m }

// Kinds lists the kinds that can be declared, in the order to show them.
func Kinds() []string {
	return []string{KindAgent, KindTarget, KindTenant, KindWorkflow, KindTrigger}
}

// New returns an object of the kind with those defaults set that do not depend
// on other fields, ready to be decoded into.
func New(kind string) (Object, error) {
	switch kind {
	case KindAgent:
		return &Agent{Retry: Retry{Backoff: defaultBackoff}}, nil
	case KindTarget:
		return &Target{}, nil
	case KindTenant:
		return &Tenant{}, nil
	case KindWorkflow:
		return &Workflow{}, nil
	case KindTrigger:
		return &Trigger{}, nil
	}
	return nil, fmt.Errorf("fleet: no kind %q; the kinds are %s", kind, list(Kinds()))
}
