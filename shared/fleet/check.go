package fleet

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// check collects the problems of one object.
type check struct{ problems []Problem }

func (c *check) add(path, format string, args ...any) {
	c.problems = append(c.problems, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// relate names fields that the last problem hangs on, see Problem.Related.
func (c *check) relate(paths ...string) {
	last := &c.problems[len(c.problems)-1]
	last.Related = append(last.Related, paths...)
}

// At joins a path from its parts: texts are fields or keys, ints are indexes.
// Keys that a manifest's author chose go through Key first.
func At(parts ...any) string {
	var b strings.Builder
	for _, part := range parts {
		switch part := part.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", part)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(part)
		}
	}
	return b.String()
}

// Key makes a mapping's key fit for a path: one that is long is clipped, and
// one that does not print is quoted, so that no path can upset a terminal.
func Key(key string) string {
	key = clip(key)
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

// list renders alternatives: "service, instance, pool, job".
func list[T ~string](values []T) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(v))
	}
	return b.String()
}

// clip bounds a value that a message quotes.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// oneOf accepts the allowed values and an unset one.
func oneOf[T ~string](c *check, path string, v T, allowed ...T) {
	if v != "" && !slices.Contains(allowed, v) {
		c.add(path, "%q is not one of %s", clip(string(v)), list(allowed))
	}
}

// count checks 0 (unset or no bound) to most.
func (c *check) count(path string, v, most int64) {
	switch {
	case v < 0:
		c.add(path, "%d is negative; want 1 to %d", v, most)
	case v > most:
		c.add(path, "%d is too many; want at most %d", v, most)
	}
}

// length checks a length of time; 0 is unset.
func (c *check) length(path string, d Duration) {
	const most = Duration(MaxDurationInDays * 24 * time.Hour)
	switch {
	case d < 0:
		c.add(path, "%s is negative; want a length of time above zero, like %s", d, -max(d, -most))
	case d > most:
		c.add(path, "%s is too long; want at most %d days", d, MaxDurationInDays)
	}
}

// ratio checks 0 to 1.
func (c *check) ratio(path string, v float64) {
	if !(v >= 0 && v <= 1) {
		c.add(path, "%v is outside 0 to 1", v)
	}
}

// amount checks 0 to most; NaN is outside.
func (c *check) amount(path string, v, most float64) {
	if !(v >= 0 && v <= most) || math.IsInf(v, 0) {
		c.add(path, "%v is outside 0 to %v", v, most)
	}
}

// text checks free text for length, encoding and control characters.
func (c *check) text(path, s string, most int) {
	switch {
	case len(s) > most:
		c.add(path, "%d bytes are too long; want at most %d", len(s), most)
	case !utf8.ValidString(s):
		c.add(path, "the text is not valid UTF-8")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.add(path, "%q has a control character", clip(s))
	}
}

// name checks a required name.
func (c *check) name(path, s string) {
	if s == "" {
		c.add(path, "a name is required")
		return
	}
	c.ref(path, s)
}

// ref checks the name of another object; "" is none.
func (c *check) ref(path, s string) {
	if s != "" && !IsName(s) {
		c.add(path, "%q is not a name; want lower-case letters, digits and hyphens (a DNS label, 1 to %d characters, starting and ending with a letter or digit)", clip(s), MaxNameLength)
	}
}

// IsName reports whether s is a DNS label.
func IsName(s string) bool {
	if s == "" || len(s) > MaxNameLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if b := s[i]; b != '-' && (b < '0' || b > '9') && (b < 'a' || b > 'z') {
			return false
		}
	}
	return true
}

// items checks the length of a list, and each item for being there once.
func items[T comparable](c *check, path string, values []T, most int, each func(path string, v T)) {
	if len(values) > most {
		c.add(path, "%d items are too many; want at most %d", len(values), most)
		return
	}
	first := make(map[T]int, len(values))
	for i, v := range values {
		if j, ok := first[v]; ok {
			c.add(At(path, i), "%q is already given at [%d]", clip(fmt.Sprint(v)), j)
			continue
		}
		first[v] = i
		each(At(path, i), v)
	}
}

// names checks a list of names of objects.
func (c *check) names(path string, values []string) {
	items(c, path, values, MaxListLength, c.name)
}

// texts checks a list of free texts.
func (c *check) texts(path string, values []string) {
	items(c, path, values, MaxListLength, func(path, s string) {
		if s == "" {
			c.add(path, "an empty text; leave the item out")
		}
		c.text(path, s, MaxTextLength)
	})
}

// taints checks a list of KEY or KEY=VALUE.
func (c *check) taints(path string, values []string) {
	items(c, path, values, MaxListLength, func(path, s string) {
		key, value, _ := strings.Cut(s, "=")
		c.label(path, key, value)
	})
}

// labels checks keys and values by Kubernetes' rules.
func (c *check) labels(path string, labels map[string]string) {
	if len(labels) > MaxLabels {
		c.add(path, "%d labels are too many; want at most %d", len(labels), MaxLabels)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		c.label(At(path, Key(k)), k, labels[k])
	}
}

func (c *check) label(path, key, value string) {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	}
	switch {
	case !isQualified(name) || ok && !isDomain(prefix):
		c.add(path, "%q is not a key; want letters, digits, - _ . (1 to %d characters), with or without a domain and / in front", clip(key), MaxNameLength)
	case value != "" && !isQualified(value):
		c.add(path, "%q is not a value; want letters, digits, - _ . (at most %d characters)", clip(value), MaxLabelValue)
	}
}

// isQualified accepts letters, digits, - _ . with a letter or digit at the ends.
func isQualified(s string) bool {
	alphanumeric := func(b byte) bool {
		return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
	}
	if s == "" || len(s) > MaxNameLength || !alphanumeric(s[0]) || !alphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !alphanumeric(s[i]) && !strings.ContainsRune("-_.", rune(s[i])) {
			return false
		}
	}
	return true
}

// isDomain accepts DNS labels between dots.
func isDomain(s string) bool {
	if len(s) > MaxTextLength {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if !IsName(part) {
			return false
		}
	}
	return true
}

// address checks an http(s) URL that carries no credentials.
func (c *check) address(path, s string) {
	if len(s) > MaxURLLength {
		c.add(path, "%d bytes are too long; want at most %d", len(s), MaxURLLength)
		return
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || !utf8.ValidString(s) || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		// The text is not quoted: it may hold a password.
		c.add(path, "not an address; want http://HOST/PATH or https://HOST/PATH")
	case u.User != nil:
		c.add(path, "the address holds credentials; leave them out and use an identity")
	}
}

// meta checks the part that all kinds share.
func (c *check) meta(m *Meta) {
	c.name("metadata.name", m.Name)
	c.labels("metadata.labels", m.Labels)
	c.text("metadata.version", m.Version, MaxTextLength)
}
