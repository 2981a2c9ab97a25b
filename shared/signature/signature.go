// Package signature proves that an HTTP body comes from who holds a key, and that it is no old one sent again.
//
// Two headers carry it: the time of signing, in seconds since 1970, and one or more HMAC-SHA256 over that time, a dot and
// the body, as sha256=HEX with commas between them. While a key is replaced the sender signs with the old one as well, or
// the receiver takes both: nobody has to change at the same moment.
//
// The package imports the standard library only.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// The headers of a signed request.
const (
	Header    = "X-Errand-Signature"
	Timestamp = "X-Errand-Timestamp"
)

// Bounds.
const (
	// Tolerance is how far the time of signing may lie from the receiver's, in either direction.
	Tolerance = 5 * time.Minute
	// MinKey and MaxKey bound a key, in bytes: a short one can be guessed.
	MinKey = 16
	MaxKey = 4096

	maxKeys       = 4
	maxSignatures = 8
)

// Refusals of Check. Callers tell none of them apart to whoever sent the request.
var (
	// ErrMissing: a header is missing or has another form.
	ErrMissing = errors.New("not signed: want " + Timestamp + " in seconds since 1970 and " + Header + ": sha256=HEX")
	// ErrOld: the time of signing is too far from now.
	ErrOld = errors.New("signed too long ago, or by a clock that is ahead: want " + Timestamp + " within " + Tolerance.String())
	// ErrWrong: no signature is right.
	ErrWrong = errors.New("the signature does not fit the body")
)

// Sign returns the values of the two headers: a signature by each key, in their order.
func Sign(keys [][]byte, at time.Time, body []byte) (timestamp, signatures string) {
	timestamp = strconv.FormatInt(at.Unix(), 10)
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = "sha256=" + hex.EncodeToString(sum(key, timestamp, body))
	}
	return timestamp, strings.Join(parts, ",")
}

func sum(key []byte, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(timestamp))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return mac.Sum(nil)
}

// Claim is what the headers say, before the body is read.
type Claim struct {
	timestamp  string
	signatures [][]byte
}

// Read takes the values of the headers. It refuses with ErrMissing or ErrOld, so that no body needs to be read for them.
func Read(timestamp, signatures string, now time.Time) (*Claim, error) {
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || strconv.FormatInt(at, 10) != timestamp {
		return nil, ErrMissing
	}
	c := &Claim{timestamp: timestamp}
	for part := range strings.SplitSeq(signatures, ",") {
		text, ok := strings.CutPrefix(strings.TrimSpace(part), "sha256=")
		raw, err := hex.DecodeString(text)
		if !ok || err != nil || len(raw) != sha256.Size || len(c.signatures) == maxSignatures {
			return nil, ErrMissing
		}
		c.signatures = append(c.signatures, raw)
	}
	if now.Unix()-at > int64(Tolerance.Seconds()) || at-now.Unix() > int64(Tolerance.Seconds()) {
		return nil, ErrOld
	}
	return c, nil
}

// Check returns nil if any of the keys made any of the signatures, or ErrWrong. How long it takes tells nothing of them.
func (c *Claim) Check(keys [][]byte, body []byte) error {
	good := false
	for _, key := range keys {
		want := sum(key, c.timestamp, body)
		for _, got := range c.signatures {
			good = hmac.Equal(want, got) || good
		}
	}
	if !good {
		return ErrWrong
	}
	return nil
}

// Keys reads the keys that refs names: env:NAME or file:PATH, up to four with commas between them, the one in use first.
// A line end behind a key is no part of it. A missing or short key is an error that names its place, never
// what stands there: half a rotation must not pass for a whole one.
func Keys(refs string, lookup func(string) (string, bool)) ([][]byte, error) {
	list := strings.Split(refs, ",")
	if len(list) > maxKeys {
		return nil, fmt.Errorf("%d keys; the limit is %d", len(list), maxKeys)
	}
	keys := make([][]byte, len(list))
	for i, ref := range list {
		key, err := read(strings.TrimSpace(ref), lookup)
		if err != nil {
			return nil, fmt.Errorf("key %d of %d: %w", i+1, len(list), err)
		}
		keys[i] = key
	}
	return keys, nil
}

func read(ref string, lookup func(string) (string, bool)) ([]byte, error) {
	var key []byte
	switch kind, place, _ := strings.Cut(ref, ":"); {
	case kind == "env" && place != "":
		value, ok := lookup(place)
		if !ok {
			return nil, fmt.Errorf("the environment has no %.100s", place)
		}
		key = []byte(strings.TrimRight(value, "\r\n")) // a secret that was written with a line end, and mounted here
	case kind == "file" && place != "":
		f, err := os.Open(place)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if key, err = io.ReadAll(io.LimitReader(f, MaxKey+3)); err != nil { // with a line end, and one byte to see that it is more
			return nil, err
		}
		key = []byte(strings.TrimRight(string(key), "\r\n"))
	default:
		return nil, errors.New("want env:NAME or file:PATH, the place of a key") // not quoted: it may be the key
	}
	if len(key) < MinKey || len(key) > MaxKey {
		return nil, fmt.Errorf("%.200s holds %d bytes; want %d to %d, from a good source of chance", ref, len(key), MinKey, MaxKey)
	}
	return key, nil
}
