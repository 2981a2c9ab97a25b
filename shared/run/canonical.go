package run

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxActionDepth is how deep lists and objects of an action may lie in each other.
const maxActionDepth = 64

// HashAction is the SHA-256, in 64 hexadecimal digits, of an action in its canonical form: objects with their keys in
// the order of their bytes, no white space, text with no escapes but the needed ones, numbers by their exact decimal
// value (1.0 and 1 and 10e-1 are one action). Two actions have the same hash when they ask for the same. An action
// that two readers could understand differently is refused with an error wrapping ErrInvalid: a key that occurs twice
// in an object, text that is no Unicode. One over MaxGateAction bytes wraps ErrTooLarge.
func HashAction(action json.RawMessage) (string, error) {
	if len(action) > MaxGateAction {
		return "", fmt.Errorf("the action has %d bytes, the limit is %d: %w", len(action), MaxGateAction, ErrTooLarge)
	}
	form, err := canonical(action)
	if err != nil {
		return "", fmt.Errorf("the action %w: %w", err, ErrInvalid)
	}
	sum := sha256.Sum256(form)
	return hex.EncodeToString(sum[:]), nil
}

// canonical writes JSON in its one form. No value is null.
func canonical(value json.RawMessage) ([]byte, error) {
	if len(bytes.TrimSpace(value)) == 0 {
		return []byte("null"), nil
	}
	if !utf8.Valid(value) {
		return nil, errors.New("is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	// A lone half of a surrogate pair is read as the replacement character, as another lone half is.
	halves := bytes.Contains(value, []byte(`\ud`)) || bytes.Contains(value, []byte(`\uD`))
	out, err := appendCanonical(nil, d, halves, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("is more than one JSON value")
	}
	return out, nil
}

func appendCanonical(b []byte, d *json.Decoder, halves bool, depth int) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		return nil, fmt.Errorf("is not JSON at byte %d", d.InputOffset())
	}
	if depth > maxActionDepth {
		return nil, fmt.Errorf("lies more than %d lists and objects deep", maxActionDepth)
	}
	switch v := token.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case json.Number:
		return appendDecimal(b, string(v))
	case string:
		if halves && strings.ContainsRune(v, utf8.RuneError) {
			return nil, fmt.Errorf("has text that is no Unicode before byte %d", d.InputOffset())
		}
		return appendText(b, v), nil
	}
	if token == json.Delim('[') {
		b = append(b, '[')
		for first := true; d.More(); first = false {
			if !first {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, d, halves, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return append(b, ']'), endOf(d, err)
	}
	type member struct {
		key   string
		value []byte
	}
	var members []member
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, endOf(d, err)
		}
		name, _ := key.(string) // the decoder takes nothing else for a key
		if halves && strings.ContainsRune(name, utf8.RuneError) {
			return nil, fmt.Errorf("has text that is no Unicode before byte %d", d.InputOffset())
		}
		value, err := appendCanonical(nil, d, halves, depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name, value})
	}
	if _, err = d.Token(); err != nil {
		return nil, endOf(d, err)
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			if m.key == members[i-1].key {
				return nil, fmt.Errorf("has the key %q twice in one object", Clip(m.key, 64))
			}
			b = append(b, ',')
		}
		b = append(append(appendText(b, m.key), ':'), m.value...)
	}
	return append(b, '}'), nil
}

func endOf(d *json.Decoder, err error) error {
	if err != nil {
		return fmt.Errorf("is not JSON at byte %d", d.InputOffset())
	}
	return nil
}

const hexDigits = "0123456789abcdef"

func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c == '\b':
			b = append(b, '\\', 'b')
		case c == '\f':
			b = append(b, '\\', 'f')
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// Numbers are written out in full up to this many digits before or behind the point, else with an exponent.
const maxPlainDigits = 40

// appendDecimal writes a number of JSON by its exact value.
func appendDecimal(b []byte, s string) ([]byte, error) {
	// 1. Apart: sign, digits, and the power of ten of the last one.
	negative := strings.HasPrefix(s, "-")
	mantissa, exponent := strings.TrimPrefix(s, "-"), 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		e, err := strconv.Atoi(mantissa[i+1:])
		if err != nil || e > 1<<20 || e < -1<<20 {
			return nil, fmt.Errorf("has a number with the exponent %s", Clip(mantissa[i+1:], 24))
		}
		mantissa, exponent = mantissa[:i], e
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	short := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(short)
	digits = short
	// 2. Together.
	if digits == "" {
		return append(b, '0'), nil
	}
	if negative {
		b = append(b, '-')
	}
	point := len(digits) + exponent // digits before the point
	switch {
	case exponent >= 0 && point <= maxPlainDigits:
		return append(append(b, digits...), strings.Repeat("0", exponent)...), nil
	case exponent < 0 && point > 0 && point <= maxPlainDigits:
		return append(append(append(b, digits[:point]...), '.'), digits[point:]...), nil
	case exponent < 0 && point <= 0 && -point <= maxPlainDigits:
		return append(append(append(b, "0."...), strings.Repeat("0", -point)...), digits...), nil
	}
	b = append(b, digits[0])
	if len(digits) > 1 {
		b = append(append(b, '.'), digits[1:]...)
	}
	return strconv.AppendInt(append(b, 'e'), int64(point-1), 10), nil
}
