package signature

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	signedAt = time.Unix(1_800_000_000, 0)
	newKey   = []byte("0123456789abcdef-new")
	oldKey   = []byte("0123456789abcdef-old")
)

func TestKnownSignature(t *testing.T) {
	// Computed apart: printf '1800000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef-new
	timestamp, got := Sign([][]byte{newKey}, signedAt, []byte(`{"a":1}`))
	const want = "sha256=2da75f79502cceb103146dad07bb9af355c08952c46a9ffdb8187563e3635956"
	if timestamp != "1800000000" || got != want {
		t.Errorf("signed %s %s, want %s", timestamp, got, want)
	}
}

func TestCheck(t *testing.T) {
	body := []byte(`{"a":1}`)
	timestamp, signed := Sign([][]byte{newKey}, signedAt, body)
	_, both := Sign([][]byte{newKey, oldKey}, signedAt, body)
	tests := map[string]struct {
		timestamp, signature string
		now                  time.Time
		keys                 [][]byte
		body                 string
		want                 error
	}{
		"by the key":                         {timestamp, signed, signedAt, [][]byte{newKey}, `{"a":1}`, nil},
		"for a receiver with the old key":    {timestamp, both, signedAt, [][]byte{oldKey}, `{"a":1}`, nil},
		"for a receiver with both keys":      {timestamp, signed, signedAt, [][]byte{oldKey, newKey}, `{"a":1}`, nil},
		"at the end of the tolerance":        {timestamp, signed, signedAt.Add(Tolerance), [][]byte{newKey}, `{"a":1}`, nil},
		"by another key":                     {timestamp, signed, signedAt, [][]byte{oldKey}, `{"a":1}`, ErrWrong},
		"of another body":                    {timestamp, signed, signedAt, [][]byte{newKey}, `{"a":2}`, ErrWrong},
		"of another time":                    {"1800000001", signed, signedAt, [][]byte{newKey}, `{"a":1}`, ErrWrong},
		"for a receiver without keys":        {timestamp, signed, signedAt, nil, `{"a":1}`, ErrWrong},
		"too long ago":                       {timestamp, signed, signedAt.Add(Tolerance + time.Second), [][]byte{newKey}, `{"a":1}`, ErrOld},
		"ahead of time":                      {timestamp, signed, signedAt.Add(-Tolerance - time.Second), [][]byte{newKey}, `{"a":1}`, ErrOld},
		"without a time":                     {"", signed, signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
		"with a time in another spelling":    {"+1800000000", signed, signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
		"at the end of all time":             {"-9223372036854775808", signed, signedAt, [][]byte{newKey}, `{"a":1}`, ErrOld},
		"without a signature":                {timestamp, "", signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
		"by another method":                  {timestamp, "sha1=00", signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
		"with a part of a signature":         {timestamp, signed[:20], signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
		"with more signatures than are read": {timestamp, strings.Repeat(signed+",", maxSignatures) + signed, signedAt, [][]byte{newKey}, `{"a":1}`, ErrMissing},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := Read(tt.timestamp, tt.signature, tt.now)
			if err == nil {
				err = c.Check(tt.keys, []byte(tt.body))
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	file, empty := write("key", string(newKey)+"\n"), write("empty", "")
	longest, longer := write("longest", strings.Repeat("k", MaxKey)+"\r\n"), write("longer", strings.Repeat("k", MaxKey+1))
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"KEY": string(oldKey) + "\n", "SHORT": "hunter2"}[name]
		return v, ok
	}
	for name, tt := range map[string]struct {
		refs string
		want int
	}{
		"a file":               {file, 1},
		"the environment":      {"env:KEY", 1},
		"both, one after":      {file + ", env:KEY", 2},
		"the longest":          {longest, 1},
		"a key too long":       {longer, 0},
		"no file":              {"file:" + dir + "/none", 0},
		"an empty file":        {empty, 0},
		"no variable":          {"env:NONE", 0},
		"a key too short":      {"env:SHORT", 0},
		"the key itself":       {"hunter2hunter2hunter2", 0},
		"one good and one not": {"env:KEY,env:NONE", 0},
		"nothing":              {"", 0},
		"keys without end":     {strings.Repeat("env:KEY,", 4) + "env:KEY", 0},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := Keys(tt.refs, lookup)
			if len(keys) != tt.want || (err == nil) != (tt.want > 0) {
				t.Errorf("%d keys and error %v, want %d", len(keys), err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has the key: %v", err)
			}
		})
	}
	keys, err := Keys(file+",env:KEY", lookup)
	if err != nil || string(keys[0]) != string(newKey) || string(keys[1]) != string(oldKey) {
		t.Errorf("keys %q, %v", keys, err)
	}
}

func FuzzRead(f *testing.F) {
	timestamp, signed := Sign([][]byte{newKey, oldKey}, signedAt, []byte("x"))
	f.Add(timestamp, signed, "x")
	f.Add("1", "sha256=,", "")
	f.Fuzz(func(t *testing.T, timestamp, signatures, body string) {
		c, err := Read(timestamp, signatures, signedAt)
		if err != nil {
			return
		}
		if err := c.Check([][]byte{newKey}, []byte(body)); err == nil {
			if _, want := Sign([][]byte{newKey}, signedAt, []byte(body)); timestamp == "1800000000" && !strings.Contains(strings.ToLower(signatures), want) {
				t.Errorf("accepted %q without the signature", signatures)
			}
		}
	})
}
