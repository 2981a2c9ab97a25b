package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	raw := bytes.Repeat([]byte{0xfb, 0xff, 0x00, '\n'}, 12) // 48 bytes, the last of which looks like a line end
	for name, c := range map[string]struct {
		data string
		want []byte // nil: refused
		says string
	}{
		"bytes, whatever the last of them":    {string(raw), raw, ""},
		"bytes of the least length":           {string(raw[:32]), raw[:32], ""},
		"hexadecimal":                         {hex.EncodeToString(raw), raw, ""},
		"hexadecimal with a line end":         {hex.EncodeToString(raw) + "\n", raw, ""},
		"base64 with padding and line end":    {base64.StdEncoding.EncodeToString(raw[:32]) + "\r\n", raw[:32], ""},
		"base64 without padding":              {base64.RawStdEncoding.EncodeToString(raw[:32]), raw[:32], ""},
		"base64 of addresses":                 {base64.URLEncoding.EncodeToString(raw), raw, ""},
		"base64 in lines":                     {base64.StdEncoding.EncodeToString(raw)[:40] + "\n" + base64.StdEncoding.EncodeToString(raw)[40:] + "\n", raw, ""},
		"a text that is neither":              {"thirty-two characters, at the least!\n", []byte("thirty-two characters, at the least!"), ""},
		"nothing":                             {"", nil, "0 bytes"},
		"a line end":                          {"\n", nil, "0 bytes"},
		"too few bytes":                       {string(raw[:31]), nil, "31 bytes"},
		"too few in hexadecimal":              {hex.EncodeToString(raw[:16]), nil, "16 bytes in hexadecimal"},
		"too few in base64":                   {base64.StdEncoding.EncodeToString(raw[:24]), nil, "24 bytes in base64"},
		"a short text, which is not repeated": {"open, sesame!", nil, "13 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseKey([]byte(c.data))
			if !bytes.Equal(got, c.want) {
				t.Errorf("got %x, want %x", got, c.want)
			}
			if (err != nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			if err != nil && len(c.data) > 4 && strings.Contains(err.Error(), strings.TrimSpace(c.data)) {
				t.Error("the error repeats the key")
			}
		})
	}
}

func TestKeysAreReadWheneverTheyAreAskedFor(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "2"), filepath.Join(dir, "1")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := strings.Repeat("aa", 32), strings.Repeat("bb", 32)
	s, err := Load(t.Context(), environment(map[string]string{"ERRAND_SIGNING_KEYS": first + "," + second}))
	if err != nil {
		t.Fatal(err)
	}
	keys := s.Keys()
	if _, err := keys(); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("a missing file: %v, want an error that names it", err)
	}
	write(first, a)
	write(second, b+"\n")
	got, err := keys()
	if err != nil || len(got) != 2 || got[0][0] != 0xaa || got[1][0] != 0xbb {
		t.Errorf("got %x, %v, want both in their order", got, err)
	}
	write(first, b)
	if got, err = keys(); err != nil || got[0][0] != 0xbb {
		t.Errorf("got %x, %v, want what the file has now", got, err)
	}
	write(second, "sesame")
	if _, err = keys(); err == nil || !strings.Contains(err.Error(), second) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a short key: %v, want an error that names the file alone", err)
	}
	write(second, strings.Repeat("a", maxKeyFile+1))
	if _, err = keys(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
	if s := (&Server{}); s.Keys() != nil {
		t.Error("keys without files")
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add([]byte("00"))
	f.Add([]byte("+/-_=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if key, err := ParseKey(data); err == nil && len(key) < minKey {
			t.Errorf("a key of %d bytes", len(key))
		}
	})
}
