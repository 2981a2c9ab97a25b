package fleet

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fill sets every field that the encoding has a place for.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[Schema]() {
			v.SetBytes([]byte(`{"a":"<&>"}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v").Convert(v.Type().Elem()))
	case reflect.String:
		v.SetString("s")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.1)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic(v.Type())
	}
}

func TestEncodingKeepsEveryField(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) {
			want, err := New(kind)
			if err != nil {
				t.Fatal(err)
			}
			fill(reflect.ValueOf(want).Elem())
			form, err := Encode(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(form)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, form)
			}
			if got.Kind() != kind || got.Name() != "s" || got.Metadata().Name != "s" {
				t.Errorf("kind %s, name %s", got.Kind(), got.Name())
			}

			// The same through encoding/json, as a part of something else.
			whole, err := json.Marshal(map[string]any{"x": reflect.ValueOf(want).Elem().Interface()})
			if err != nil {
				t.Fatal(err)
			}
			into := reflect.MakeMap(reflect.MapOf(reflect.TypeFor[string](), reflect.TypeOf(want)))
			back := reflect.New(into.Type())
			if err := json.Unmarshal(whole, back.Interface()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, back.Elem().MapIndex(reflect.ValueOf("x")).Interface()); diff != "" {
				t.Errorf("as a part (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEncodeIsCanonical(t *testing.T) {
	a := &Agent{
		Meta: Meta{Name: "a", Labels: map[string]string{"z": "1", "b": "2"}}, Shape: Instance,
		Run:   Run{Command: []string{"x", "a<b&c"}, Protocol: Worker},
		Input: Schema(`{"type":"object"}`), Needs: Needs{CPU: 500, Memory: 256 << 20},
		Timeouts: Timeouts{Attempt: Duration(90 * time.Second)},
	}
	a.SetDefaults()
	got, err := Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"errand.dev/v1","kind":"Agent","metadata":{"name":"a","labels":{"b":"2","z":"1"}},"spec":{` +
		`"shape":"instance","run":{"command":["x","a<b&c"],"slots":8,"protocol":"worker"},"input":{"schema":{"type":"object"}},` +
		`"needs":{"slots":1,"cpu":"500m","memory":"256Mi"},` +
		`"retry":{"maxAttempts":4,"backoff":{"initial":"1s","factor":2,"max":"5m","jitter":0.2}},` +
		`"timeouts":{"queue":"24h","attempt":"1m30s","run":"24h","heartbeat":"0s","countWaiting":false},` +
		`"session":{"maxBytes":"1Mi","idle":"24h"},"effects":{"onUnknown":"ask","settle":"30s"},"backpressure":"queue","retain":"720h"}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	same := *a
	same.Needs.Labels, same.Needs.Regions = map[string]string{}, []string{}
	if a.Hash() != same.Hash() || len(a.Hash()) != 32 {
		t.Errorf("hashes %s and %s of equal agents", a.Hash(), same.Hash())
	}
	other := *a
	other.Retry.Backoff.Jitter = 0
	if a.Hash() == other.Hash() {
		t.Error("the hash does not see a change to 0")
	}
	tenant, target := &Tenant{Meta: Meta{Name: "x"}}, &Target{Meta: Meta{Name: "x"}}
	if tenant.Hash() == target.Hash() {
		t.Error("the hash does not see the kind")
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := map[string]struct{ form, want string }{
		"what is no JSON":    {`{`, "fleet: decode: unexpected EOF"},
		"another version":    {`{"apiVersion":"errand.dev/v2","kind":"Agent"}`, `fleet: decode: apiVersion "errand.dev/v2", want errand.dev/v1`},
		"an unknown kind":    {`{"apiVersion":"errand.dev/v1","kind":"Pod"}`, `fleet: no kind "Pod"; the kinds are Agent, Target, Tenant, Workflow, Trigger`},
		"an unknown field":   {`{"apiVersion":"errand.dev/v1","kind":"Tenant","metadata":{"name":"t"},"spec":{"limit":1}}`, `fleet: decode Tenant "t": json: unknown field "limit"`},
		"a bad duration":     {`{"apiVersion":"errand.dev/v1","kind":"Agent","metadata":{"name":"a"},"spec":{"retain":"x"}}`, `is not a duration`},
		"something behind":   {`{"apiVersion":"errand.dev/v1","kind":"Tenant","spec":{}} {}`, "fleet: decode: more than one JSON document"},
		"a missing spec":     {`{"apiVersion":"errand.dev/v1","kind":"Tenant","metadata":{"name":"t"}}`, `fleet: decode Tenant "t": EOF`},
		"a stray schema key": {`{"apiVersion":"errand.dev/v1","kind":"Agent","metadata":{"name":"a"},"spec":{"input":{"type":1}}}`, `unknown field "type"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tt.form))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %s", err, tt.want)
			}
		})
	}
	if err := new(Agent).UnmarshalJSON([]byte(`{"apiVersion":"errand.dev/v1","kind":"Tenant","spec":{}}`)); err == nil {
		t.Error("a tenant was read as an agent")
	}
}

func FuzzDecode(f *testing.F) {
	for _, kind := range Kinds() {
		obj, err := New(kind)
		if err != nil {
			f.Fatal(err)
		}
		fill(reflect.ValueOf(obj).Elem())
		form, err := Encode(obj)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(form)
	}
	f.Fuzz(func(t *testing.T, form []byte) {
		obj, err := Decode(form)
		if err != nil {
			return
		}
		if len(obj.Validate()) > 0 {
			return
		}
		again, err := Encode(obj)
		if err != nil {
			t.Fatalf("a good object has no form: %v", err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		if back.Hash() != obj.Hash() {
			t.Errorf("the hash changed on the way:\n%s\n%s", form, again)
		}
	})
}
