// Functions is the edges of the control plane in one binary: FUNCTION_TARGET says which of them a process is. Each takes
// what Pub/Sub or Scheduler posts, calls the control plane as the workload that it runs as, and keeps nothing.
package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/GoogleCloudPlatform/functions-framework-go/funcframework"
	"github.com/GoogleCloudPlatform/functions-framework-go/functions"

	"github.com/errand-run/errand/functions/deadletter"
	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/functions/intake"
	"github.com/errand-run/errand/functions/notify"
	"github.com/errand-run/errand/functions/tick"
)

// makers are the functions by name. They are plain HTTP functions: a CloudEvent function would lose what a push says
// beside the message.
var makers = map[string]func(edge.Env, *slog.Logger) (http.HandlerFunc, error){
	"deadletter": deadletter.New,
	"intake":     intake.New,
	"notify":     notify.New,
	"tick":       tick.New,
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := serve(os.LookupEnv, log); err != nil {
		fmt.Fprintf(os.Stderr, "functions: %v\n", err)
		os.Exit(1)
	}
}

// serve serves the function that the environment names, until the process ends.
func serve(env edge.Env, log *slog.Logger) error {
	target := env.Get("FUNCTION_TARGET", "")
	maker, known := makers[target]
	if !known {
		return fmt.Errorf("FUNCTION_TARGET=%.80q: want one of %s", target, strings.Join(slices.Sorted(maps.Keys(makers)), ", "))
	}
	handler, err := maker(env, log)
	if err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	functions.HTTP(target, handler)
	port := env.Get("PORT", "8080")
	log.Info("serving", "function", target, "port", port)
	return funcframework.StartHostPort(env.Get("ERRAND_LISTEN", ""), port)
}
