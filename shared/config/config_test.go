package config

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
)

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func TestLoad(t *testing.T) {
	tests := map[string]struct {
		env         map[string]string
		wantAddress string
		wantErrors  []string // all of them, each in the message
	}{
		"nothing set serves this machine alone": {wantAddress: "127.0.0.1:8080"},
		"a variable set to nothing is not set":  {env: map[string]string{"PORT": ""}, wantAddress: "127.0.0.1:8080"},
		"with tokens all interfaces are served": {
			env: map[string]string{"PORT": "9000", "ERRAND_AUTH": "tokens:t.json"}, wantAddress: ":9000",
		},
		"every fault is told at once": {
			env: map[string]string{
				"PORT": "http", "ERRAND_STORE": "postgres:x", "ERRAND_BUS": "nats", "ERRAND_RUNTIME": "local,k8s", "ERRAND_AUTH": "none",
			},
			wantErrors: []string{`PORT="http"`, `ERRAND_STORE="postgres:x": want sqlite:FILE or memory or firestore:PROJECT/DATABASE`, `ERRAND_BUS="nats"`, `ERRAND_RUNTIME="k8s"`, `ERRAND_AUTH="none"`},
		},
		"Cloud Run beside this machine": {
			env:         map[string]string{"ERRAND_RUNTIME": "local,cloudrun:p/europe-west1", "ERRAND_URL": "https://errand.example.com", "ERRAND_RUN_ENDPOINT": "127.0.0.1:9", "ERRAND_AUTH": "oidc:auth.yaml"},
			wantAddress: ":8080",
		},
		"Cloud Run without a login is refused": {
			env:        map[string]string{"ERRAND_RUNTIME": "cloudrun:p/europe-west1", "ERRAND_URL": "https://errand.example.com"},
			wantErrors: []string{`ERRAND_AUTH="loopback"`, "oidc:FILE"},
		},
		"what is there twice, or contradicts itself, or names no place": {
			env: map[string]string{
				"ERRAND_RUNTIME": "cloudrun:a/r,cloudrun:b/s,none", "ERRAND_URL": "http://u:secret@h", "ERRAND_ADVERTISE": "http://h:99999", "ERRAND_RUN_ENDPOINT": "foo:bar",
			},
			wantErrors: []string{"one cloudrun:PROJECT/REGION at most", "none stands alone", "ERRAND_URL=\"http://u:xxxxx@h\"", "ERRAND_ADVERTISE=", "ERRAND_RUN_ENDPOINT="},
		},
		"Cloud Run without a region, an address or an endpoint": {
			env:        map[string]string{"ERRAND_RUNTIME": "cloudrun:p", "ERRAND_RUN_ENDPOINT": "here", "ERRAND_ADVERTISE": "10.0.0.1:80"},
			wantErrors: []string{"cloudrun:PROJECT/REGION", "ERRAND_URL", "HOST:PORT", "ERRAND_ADVERTISE"},
		},
		"figures for a collector beside the process": {env: map[string]string{"ERRAND_METRICS": "127.0.0.1:9464"}, wantAddress: "127.0.0.1:8080"},
		"figures for everybody are refused":          {env: map[string]string{"ERRAND_METRICS": ":9464"}, wantErrors: []string{"ERRAND_METRICS", "loopback"}},
		"a bound of retention that is no duration is refused": {
			env:        map[string]string{"ERRAND_RETAIN_MAX": "30"},
			wantErrors: []string{`ERRAND_RETAIN_MAX="30"`, "30s"},
		},
		"a bound of retention of nothing is refused": {
			env: map[string]string{"ERRAND_RETAIN_MAX": "0s"}, wantErrors: []string{"ERRAND_RETAIN_MAX", "a second or more"},
		},
		"a database of Firestore is a store": {
			env: map[string]string{"ERRAND_STORE": "firestore:p/(default)"}, wantAddress: "127.0.0.1:8080",
		},
		"a project without a database is refused": {
			env: map[string]string{"ERRAND_STORE": "firestore:p"}, wantErrors: []string{"firestore:PROJECT/DATABASE", "(default)"},
		},
		"a database that is a path is refused": {
			env: map[string]string{"ERRAND_STORE": "firestore:p/d/e"}, wantErrors: []string{"firestore:PROJECT/DATABASE"},
		},
		"a form without its value is refused": {
			env:        map[string]string{"ERRAND_STORE": "sqlite:", "ERRAND_AUTH": "tokens:"},
			wantErrors: []string{"ERRAND_STORE", "ERRAND_AUTH"},
		},
		"with issuers all interfaces are served": {
			env: map[string]string{"PORT": "9000", "ERRAND_AUTH": "oidc:auth.yaml", "ERRAND_SIGNING_KEYS": "new,old"}, wantAddress: ":9000",
		},
		"issuers in no file are refused": {
			env: map[string]string{"ERRAND_AUTH": "oidc:"}, wantErrors: []string{`ERRAND_AUTH="oidc:"`, "oidc:FILE"},
		},
		"a key in no file, and too many of them, are refused": {
			env: map[string]string{"ERRAND_SIGNING_KEYS": "a,b,c,d,e,f,g,h,i"}, wantErrors: []string{"ERRAND_SIGNING_KEYS", "8 at most"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := Load(context.Background(), environment(tt.env))
			for _, want := range tt.wantErrors {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Load: error %v, want it to say %q", err, want)
				}
			}
			if tt.wantErrors != nil {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Address(); got != tt.wantAddress {
				t.Errorf("Address() = %q, want %q", got, tt.wantAddress)
			}
		})
	}
}

func TestTheBoundOfRetentionIsADuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "forever": 0, "90d": 90 * 24 * time.Hour, "36h": 36 * time.Hour} {
		s, err := Load(context.Background(), environment(map[string]string{"ERRAND_RETAIN_MAX": text}))
		if err != nil || s.Retain() != want {
			t.Errorf("%q gives %v, %v; want %v", text, s.Retain(), err, want)
		}
	}
}

func TestStorePlaceOpenMakesTheFolderAndNamesTheOtherProcess(t *testing.T) {
	place, err := ParseStore("sqlite:" + filepath.Join(t.TempDir(), "new", "errand.db"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := place.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = place.Open(context.Background())
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "stop the other process") {
		t.Errorf("second Open: %v, want ErrLocked with what to do", err)
	}
}

func TestStorePlaceOpensFirestore(t *testing.T) {
	t.Setenv("FIRESTORE_EMULATOR_HOST", emulator.Firestore(t))
	place, err := ParseStore("firestore:config-test/first")
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.Describe(); !strings.HasPrefix(got, "firestore:config-test/first") || s.Exclusive() {
		t.Errorf("opened %q, exclusive: %v", got, s.Exclusive())
	}
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
	if s, err := place.Open(t.Context()); s != nil || err == nil || !strings.Contains(err.Error(), "firestore:config-test/first") {
		t.Errorf("opened %v, %v where nobody listens", s, err)
	}
}

func TestAuthenticator(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{Auth: "tokens:" + file}

	if _, err := s.Authenticator(slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing file is no error")
	}
	write(`[{"name": "ada", "sha256": "` + server.HashToken("secret") + `", "role": "viewer"}]`)
	auth, err := s.Authenticator(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer secret")
	if p, err := auth.Authenticate(r); err != nil || p.Name != "ada" {
		t.Errorf("Authenticate = %+v, %v, want ada", p, err)
	}
	write(`[{"name": "ada", "token": "secret"}]`)
	if _, err := s.Authenticator(slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("unknown field: error %v, want one that keeps the secret", err)
	}
	s.Auth = "oidc:" + file
	write(`{"issuers": [{"issuer": "https://id.example"}], "principals": [{"email": "ada@example.com", "role": "viewer"}]}`)
	if _, err := s.Authenticator(nil); err == nil || !strings.Contains(err.Error(), file+":1:14: issuers[0].audiences: required") {
		t.Errorf("an issuer without audiences: %v, want where that is", err)
	}
	write(`{"issuers": [{"issuer": "https://id.example", "audiences": ["errand"]}], "principals": [{"email": "ada@example.com", "role": "viewer"}], "tokens": [{"name": "ada", "sha256": "` + server.HashToken("secret") + `", "role": "viewer"}]}`)
	if auth, err = s.Authenticator(slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if p, err := auth.Authenticate(r); err != nil || p.Name != "ada" {
		t.Errorf("an API token beside issuers: %+v, %v, want ada", p, err)
	}
	if auth, err := (&Server{Auth: AuthLoopback}).Authenticator(nil); auth != nil || err != nil {
		t.Errorf("loopback: %v, %v, want none", auth, err)
	}
}
