package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/node"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// Command is the hidden command of the errand program that a measurement starts: errand bench-process SPEC.
const Command = "bench-process"

// The roles of a process.
const (
	roleServer = "server"
	roleWorker = "worker"
	roleAgent  = "agent" // a worker that the server's local runtime starts, which tells it what it has to know
)

// spec is what a process is to be.
type spec struct {
	Role string `json:"role"`

	// Of a server.
	Dir     string `json:"dir,omitempty"`     // of its store
	Addr    string `json:"addr,omitempty"`    // to listen on; a free port when empty
	Profile string `json:"profile,omitempty"` // file for where its time goes, "" for none
	Local   bool   `json:"local,omitempty"`   // it starts attempts itself

	// Of a worker.
	URL   string `json:"url,omitempty"`
	Slots int    `json:"slots,omitempty"`
	// Log is a file for what handlers do to the world outside; "" for handlers that do nothing to it. Of an agent, too.
	Log string `json:"log,omitempty"`
}

// word is a line that a process of a measurement says: once when it is ready, and to every line that it is sent.
type word struct {
	URL      string        `json:"url,omitempty"`
	Store    string        `json:"store,omitempty"`
	CPU      time.Duration `json:"cpu"` // user and system, since it began
	Flushes  int64         `json:"flushes,omitempty"`
	Pages    int64         `json:"pages,omitempty"` // written to the store's log
	Handled  int64         `json:"handled,omitempty"`
	Resident int64         `json:"resident,omitempty"` // bytes of memory; 0 where it is not known
	Bytes    int64         `json:"bytes,omitempty"`    // of the store
}

// askSettled is a line that asks for memory to be given back before the word is said.
const askSettled = "settle"

// Process is the main of such a process. It ends when its standard input does, and so with the process that measures.
func Process(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	var s spec
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &s) != nil {
		return errors.New("this command is for errand bench to start")
	}
	switch s.Role {
	case roleServer:
		return serve(ctx, s, in, out)
	case roleWorker:
		return work(ctx, s, in, out)
	case roleAgent:
		h, err := newHandler(s.Log)
		if err != nil {
			return err
		}
		agent.Main(h.handle) // it ends the process
	}
	return fmt.Errorf("%s as %q: no such role", Command, s.Role)
}

// converse says a word now and after each line of input, until that ends.
func converse(in io.Reader, out io.Writer, say func() (word, error)) error {
	encoder := json.NewEncoder(out)
	answer := func() error {
		w, err := say()
		if err != nil {
			return err
		}
		w.CPU, w.Resident = ownCPU(), resident()
		return encoder.Encode(w)
	}
	if err := answer(); err != nil {
		return err
	}
	for scan := bufio.NewScanner(in); scan.Scan(); {
		if scan.Text() == askSettled {
			runtime.GC() // what pools hold goes in the second round
			debug.FreeOSMemory()
		}
		if err := answer(); err != nil {
			return err
		}
	}
	return nil
}

// serve is the server: a store that waits for the disk, and no login.
func serve(ctx context.Context, s spec, in io.Reader, out io.Writer) error {
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	file := filepath.Join(s.Dir, storeFile)
	db, err := sqlite.Open(ctx, file, sqlite.Options{})
	if err != nil {
		return err
	}
	if s.Addr == "" {
		s.Addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	o := node.Options{Store: db, Listener: listener, Logger: logger(slog.LevelWarn)}
	if s.Local {
		o.Local, o.Ledger = true, file+".processes"
	}
	n, err := node.Start(ctx, o)
	if err != nil {
		return err
	}
	err = converse(in, out, func() (word, error) {
		size, err := db.Size(ctx)
		stats := db.Stats()
		return word{URL: n.URL(), Store: db.Describe(), Flushes: stats.Flushes, Pages: stats.Pages, Bytes: size}, err
	})
	return errors.Join(err, n.Close(context.WithoutCancel(ctx), 0))
}

func logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// work is a worker that nobody but the measurement starts and ends.
func work(ctx context.Context, s spec, in io.Reader, out io.Writer) error {
	client, err := api.NewClient(api.Options{URL: s.URL})
	if err != nil {
		return err
	}
	defer client.Close()
	h, err := newHandler(s.Log)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if s.Log != "" {
		level = slog.LevelError // that the server goes away is what is being measured
	}
	var handled atomic.Int64
	execute := agent.Handle(client, h.handle)
	host, err := agent.NewHost(client, agent.HostOptions{
		Agents: []string{agentName}, Slots: s.Slots, Grace: -1, Log: logger(level),
		Handle: func(ctx context.Context, a *agent.Attempt) agent.Result {
			defer handled.Add(1)
			return execute(ctx, a)
		},
	})
	if err != nil {
		return err
	}
	workCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- host.Run(workCtx) }()
	err = converse(in, out, func() (word, error) { return word{Handled: handled.Load()}, nil })
	stop()
	return errors.Join(err, <-done)
}
