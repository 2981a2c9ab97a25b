// Model serves a scripted language model for the example fleets, in the chat completions format:
//
//	go run ./services/model -addr 127.0.0.1:8090 -script FILE
//
// Agents that are started with MODEL_URL=http://127.0.0.1:8090 ask it. Without a script it serves the one that the
// examples have built in.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/patterns/model"
)

func main() {
	listen := "127.0.0.1:8090"
	if port := os.Getenv("PORT"); port != "" {
		listen = ":" + port // a container is told where
	}
	addr := flag.String("addr", listen, "address to listen on; every one of the machine's at PORT, where that is set")
	file := flag.String("script", "", "file of rules; the built-in ones when empty")
	flag.Parse()
	if err := serve(*addr, *file); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func serve(addr, file string) error {
	script, err := model.BuiltIn()
	if file != "" {
		var text []byte
		if text, err = os.ReadFile(file); err == nil {
			script, err = model.ReadScript(text)
		}
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{
		Addr: addr, Handler: model.Handler(script), ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
	}
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(ended)
		ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ending) // what is being answered takes milliseconds
	})
	fmt.Fprintln(os.Stderr, "model: on http://"+addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	<-ended
	return nil
}
