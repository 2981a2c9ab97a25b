package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/server/oidc"
)

// maxAuthFile bounds what ERRAND_AUTH names, in bytes.
const maxAuthFile = 1 << 20

// Authenticator makes what Auth names; nil for AuthLoopback. What becomes of issuers is told to the log.
func (s *Server) Authenticator(log *slog.Logger) (server.Authenticator, error) {
	kind, file, _ := strings.Cut(s.Auth, ":")
	if kind == AuthLoopback {
		return nil, nil
	}
	data, err := readFile(file, maxAuthFile)
	if err != nil {
		return nil, fmt.Errorf("read ERRAND_AUTH=%s: %w", s.Auth, err)
	}
	if kind == "oidc" {
		f, err := oidc.Read(file, bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("read ERRAND_AUTH=%s:\n%w", s.Auth, err)
		}
		return oidc.New(f, oidc.Options{Logger: log})
	}
	var tokens []server.Token
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&tokens); err != nil {
		// The decoder's words may repeat what is in the file, but only names of fields and types, never values.
		return nil, fmt.Errorf("read API tokens: %s: %w; want [{\"name\": …, \"sha256\": …, \"role\": …, \"tenants\": […]}]", file, err)
	}
	auth, err := server.NewTokens(tokens)
	if err != nil {
		return nil, fmt.Errorf("read API tokens: %s: %w", file, err)
	}
	return auth, nil
}

// readFile reads a file of at most that many bytes.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, most)
	}
	return data, nil
}
