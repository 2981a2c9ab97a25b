package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxKeyFiles = 8
	maxKeyFile  = 4 << 10 // bytes
	minKey      = 32      // bytes; what HMAC-SHA256 makes is as long
)

// Keys reads the signing keys anew each time it is called; nil when none are configured. Whoever gets it calls it once
// in a while: mounted secrets change under a running process.
func (s *Server) Keys() func() ([][]byte, error) {
	if len(s.SigningKeys) == 0 {
		return nil
	}
	return func() ([][]byte, error) {
		keys := make([][]byte, 0, len(s.SigningKeys))
		for _, file := range s.SigningKeys {
			data, err := readFile(file, maxKeyFile)
			if err != nil {
				return nil, fmt.Errorf("ERRAND_SIGNING_KEYS: %w", err)
			}
			key, err := ParseKey(data)
			if err != nil {
				return nil, fmt.Errorf("ERRAND_SIGNING_KEYS: %s: %w", file, err)
			}
			keys = append(keys, key)
		}
		return keys, nil
	}
}

// ParseKey reads the content of a key's file: text in hexadecimal or base64, which a line end may follow, or else the
// bytes themselves, of which a key has 32 or more. The error repeats none of them.
func ParseKey(data []byte) ([]byte, error) {
	key, form := data, "bytes"
	if text := string(bytes.TrimRight(data, "\r\n")); isText(text) {
		key = []byte(text)
		if raw, err := hex.DecodeString(text); err == nil {
			key, form = raw, "bytes in hexadecimal"
		} else if raw, ok := fromBase64(text); ok {
			key, form = raw, "bytes in base64"
		}
	}
	if len(key) < minKey {
		return nil, fmt.Errorf("a key of %d %s; want %d random bytes or more, such as: head -c 48 /dev/urandom | base64", len(key), form, minKey)
	}
	return key, nil
}

// isText keeps the last byte of a binary key, which may look like a line end.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\r' })
}

// fromBase64 reads either alphabet, with its padding or without. Long ones come in lines.
func fromBase64(text string) ([]byte, bool) {
	text = strings.NewReplacer("-", "+", "_", "/", "\n", "", "\r", "").Replace(text)
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	return raw, err == nil
}
