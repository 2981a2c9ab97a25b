package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/host"
)

func TestABusThatIsNone(t *testing.T) {
	for spec, want := range map[string]string{
		"local": `ERRAND_BUS="local": want pubsub:PROJECT`, "nats:x": `ERRAND_BUS="nats:x"`, "pubsub:": "want the id of a Google Cloud project",
		"pubsub:acme-prod/X": "prefix",
	} {
		if err := (&host.Settings{Bus: spec}).Serve(t.Context(), slog.Default()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v; want …%s…", spec, err, want)
		}
	}
}
