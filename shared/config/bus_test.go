package config

import (
	"context"
	"log/slog"
	"strings"
	"testing"
)

func TestOpenBus(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1") // nobody is asked for credentials, and nothing is sent
	for text, want := range map[string]string{
		"pubsub:acme-prod":        "project acme-prod, topics errand-*",
		"pubsub:acme-prod/cell-7": "project acme-prod, topics cell-7-*",
	} {
		s, err := Load(context.Background(), environment(map[string]string{"ERRAND_BUS": text}))
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.OpenBus(t.Context(), slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.Describe(), want) {
			t.Errorf("%s opens %q, want %q", text, b.Describe(), want)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := Load(context.Background(), environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := s.OpenBus(t.Context(), slog.Default()); b != nil || err != nil {
		t.Errorf("a process that is alone has the bus %v, %v", b, err)
	}
	for text, want := range map[string]string{
		"pubsub:": "project", "pubsub:acme-prod/": "prefix", "pubsub:acme-prod/a/b": "prefix", "nats": "pubsub:PROJECT", "pubsub": "pubsub:PROJECT",
	} {
		_, err := Load(context.Background(), environment(map[string]string{"ERRAND_BUS": text}))
		if err == nil || !strings.Contains(err.Error(), "ERRAND_BUS=") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", text, err, want)
		}
		if _, err := (&Server{Bus: text}).OpenBus(t.Context(), slog.Default()); err == nil {
			t.Errorf("%s: opened", text)
		}
	}
}
