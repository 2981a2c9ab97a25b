package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// envelope is the outer form of every object.
type envelope struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Meta            `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
}

// These have the fields of the objects and not their methods: the encoding of a
// spec must not call itself.
type (
	agentSpec    Agent
	targetSpec   Target
	tenantSpec   Tenant
	workflowSpec Workflow
	triggerSpec  Trigger
)

// Encode returns the canonical form, one JSON document {apiVersion, kind,
// metadata, spec}. Fields come in a fixed order, and a field without effect is
// left out: equal objects have equal forms.
func Encode(obj Object) ([]byte, error) {
	var spec any
	switch o := obj.(type) {
	case *Agent:
		spec = (*agentSpec)(o)
	case *Target:
		spec = (*targetSpec)(o)
	case *Tenant:
		spec = (*tenantSpec)(o)
	case *Workflow:
		spec = (*workflowSpec)(o)
	case *Trigger:
		spec = (*triggerSpec)(o)
	default:
		return nil, fmt.Errorf("fleet: encode %T: not a declared kind", obj)
	}
	raw, err := marshal(spec)
	if err == nil {
		raw, err = marshal(envelope{APIVersion, obj.Kind(), *obj.Metadata(), raw})
	}
	if err != nil {
		return nil, fmt.Errorf("fleet: encode %s %q: %w", obj.Kind(), obj.Name(), err)
	}
	return raw, nil
}

// marshal is json.Marshal without turning <, > and & into escapes.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Decode reads what Encode wrote and fills defaults that were added since. A
// field it does not know is an error: to run an agent without a bound that it
// was given would be worse.
func Decode(data []byte) (Object, error) {
	var e envelope
	if err := unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("fleet: decode: %w", err)
	}
	if e.APIVersion != APIVersion {
		return nil, fmt.Errorf("fleet: decode: apiVersion %q, want %s", e.APIVersion, APIVersion)
	}
	obj, err := New(e.Kind)
	if err != nil {
		return nil, err
	}
	*obj.Metadata() = e.Metadata
	var spec any
	switch o := obj.(type) {
	case *Agent:
		spec = (*agentSpec)(o)
	case *Target:
		spec = (*targetSpec)(o)
	case *Tenant:
		spec = (*tenantSpec)(o)
	case *Workflow:
		spec = (*workflowSpec)(o)
	case *Trigger:
		spec = (*triggerSpec)(o)
	}
	if err := unmarshal(e.Spec, spec); err != nil {
		return nil, fmt.Errorf("fleet: decode %s %q: %w", e.Kind, e.Metadata.Name, err)
	}
	obj.SetDefaults()
	return obj, nil
}

// unmarshal reads exactly one document of known fields.
func unmarshal(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON document")
	}
	return nil
}

// MarshalJSON returns the canonical form, see Encode.
func (a Agent) MarshalJSON() ([]byte, error) { return Encode(&a) }

// MarshalJSON returns the canonical form, see Encode.
func (t Target) MarshalJSON() ([]byte, error) { return Encode(&t) }

// MarshalJSON returns the canonical form, see Encode.
func (t Tenant) MarshalJSON() ([]byte, error) { return Encode(&t) }

// MarshalJSON returns the canonical form, see Encode.
func (w Workflow) MarshalJSON() ([]byte, error) { return Encode(&w) }

// MarshalJSON returns the canonical form, see Encode.
func (t Trigger) MarshalJSON() ([]byte, error) { return Encode(&t) }

// UnmarshalJSON reads the canonical form, see Decode.
func (a *Agent) UnmarshalJSON(data []byte) error { return decodeInto(a, data) }

// UnmarshalJSON reads the canonical form, see Decode.
func (t *Target) UnmarshalJSON(data []byte) error { return decodeInto(t, data) }

// UnmarshalJSON reads the canonical form, see Decode.
func (t *Tenant) UnmarshalJSON(data []byte) error { return decodeInto(t, data) }

// UnmarshalJSON reads the canonical form, see Decode.
func (w *Workflow) UnmarshalJSON(data []byte) error { return decodeInto(w, data) }

// UnmarshalJSON reads the canonical form, see Decode.
func (t *Trigger) UnmarshalJSON(data []byte) error { return decodeInto(t, data) }

func decodeInto[T any](into *T, data []byte) error {
	obj, err := Decode(data)
	if err != nil {
		return err
	}
	got, ok := any(obj).(*T)
	if !ok {
		return fmt.Errorf("fleet: decode: a %s where %T is needed", obj.Kind(), *into)
	}
	*into = *got
	return nil
}

// Hash is 32 hexadecimal digits over the canonical form.
func (a *Agent) Hash() string { return hash(a) }

// Hash is 32 hexadecimal digits over the canonical form.
func (t *Target) Hash() string { return hash(t) }

// Hash is 32 hexadecimal digits over the canonical form.
func (t *Tenant) Hash() string { return hash(t) }

// Hash is 32 hexadecimal digits over the canonical form.
func (w *Workflow) Hash() string { return hash(w) }

// Hash is 32 hexadecimal digits over the canonical form.
func (t *Trigger) Hash() string { return hash(t) }

func hash(obj Object) string {
	form, err := Encode(obj)
	if err != nil {
		// Only a schema that is no JSON or a number that is none can be here, and
		// Validate refuses both. Such an object still differs from a good one.
		form = []byte(err.Error())
	}
	sum := sha256.Sum256(form)
	return hex.EncodeToString(sum[:16])
}

type schemaForm struct {
	Schema json.RawMessage `json:"schema"`
}

// MarshalJSON writes {"schema": …}.
func (s Schema) MarshalJSON() ([]byte, error) { return marshal(schemaForm{json.RawMessage(s)}) }

// UnmarshalJSON reads {"schema": …} into the one form that Schema promises: an
// encoder on the way may have turned < into an escape. A missing or null schema
// is nil.
func (s *Schema) UnmarshalJSON(data []byte) error {
	var form schemaForm
	if err := unmarshal(data, &form); err != nil {
		return err
	}
	if len(form.Schema) == 0 || string(form.Schema) == "null" {
		*s = nil
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(form.Schema))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return err
	}
	raw, err := marshal(tree)
	*s = raw
	return err
}
