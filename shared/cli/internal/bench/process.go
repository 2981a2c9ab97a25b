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
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/node"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// Command is the hidden command of the errand program that a measurement starts: errand bench-process ROLE …
const Command = "bench-process"

// word is a line that a process of a measurement says: once when it is ready, and to every line that it is sent.
type word struct {
	URL     string        `json:"url,omitempty"`
	Store   string        `json:"store,omitempty"`
	CPU     time.Duration `json:"cpu"` // user and system, since it began
	Flushes int64         `json:"flushes,omitempty"`
	Handled int64         `json:"handled,omitempty"`
}

// Process is the main of such a process. It ends when its standard input does, and so with the process that measures.
func Process(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) == 3 && args[0] == "server" {
		return serve(ctx, args[1], args[2], in, out)
	}
	if len(args) == 3 && args[0] == "worker" {
		slots, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return work(ctx, args[1], slots, in, out)
	}
	return errors.New("this command is for errand bench to start")
}

// converse says a word now and after each line of input, until that ends.
func converse(in io.Reader, out io.Writer, say func() word) error {
	encoder := json.NewEncoder(out)
	if err := encoder.Encode(say()); err != nil {
		return err
	}
	for scan := bufio.NewScanner(in); scan.Scan(); {
		if err := encoder.Encode(say()); err != nil {
			return err
		}
	}
	return nil
}

// serve is the server: a store that waits for the disk, no local runtime, no login. profile is a file for where its
// time goes, "" for none.
func serve(ctx context.Context, dir, profile string, in io.Reader, out io.Writer) error {
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	db, err := sqlite.Open(ctx, filepath.Join(dir, "bench.db"), sqlite.Options{})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, db.Close())
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n, err := node.Start(ctx, node.Options{Store: db, Listener: listener, Logger: log})
	if err != nil {
		return err
	}
	err = converse(in, out, func() word {
		return word{URL: n.URL(), Store: db.Describe(), CPU: ownCPU(), Flushes: db.Stats().Flushes}
	})
	return errors.Join(err, n.Close(context.WithoutCancel(ctx), 0))
}

// task is the input of a run: what its handler does.
type task struct {
	Steps int `json:"steps,omitempty"` // durable steps to record, one after the other
}

// answer is its output.
type answer struct {
	Began int64 `json:"began"` // when the handler was called, in nanoseconds since 1970
}

// work is the worker.
func work(ctx context.Context, url string, slots int, in io.Reader, out io.Writer) error {
	client, err := api.NewClient(api.Options{URL: url})
	if err != nil {
		return err
	}
	var handled atomic.Int64
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	host, err := agent.NewHost(client, agent.HostOptions{
		Agents: []string{agentName}, Slots: slots, Grace: -1, Log: log,
		Handle: func(ctx context.Context, a *agent.Attempt) agent.Result {
			defer handled.Add(1)
			return handle(ctx, a)
		},
	})
	if err != nil {
		return err
	}
	workCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- host.Run(workCtx) }()
	err = converse(in, out, func() word { return word{CPU: ownCPU(), Handled: handled.Load()} })
	stop()
	return errors.Join(err, <-done)
}

func handle(ctx context.Context, a *agent.Attempt) agent.Result {
	began := time.Now()
	var t task
	if err := json.Unmarshal(a.Input, &t); err != nil {
		return agent.Failed(agent.Fail("BAD_INPUT", err))
	}
	for n := range t.Steps {
		step := &api.Step{Name: "step-" + strconv.Itoa(n+1), Seq: n + 1, Result: json.RawMessage("true")}
		if _, err := a.Report(ctx, api.Report{Type: api.ReportStep, Step: step}); err != nil {
			return agent.Failed(err)
		}
	}
	output, err := json.Marshal(answer{Began: began.UnixNano()})
	if err != nil {
		return agent.Failed(err)
	}
	return agent.Result{Output: output}
}

// ownCPU is what this process has used, user and system.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// child is a process of the measurement, seen from the one that measures.
type child struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// spawn starts this program again in another role, and waits for its first word.
func spawn(ctx context.Context, args ...string) (*child, word, error) {
	var w word
	self, err := os.Executable()
	if err != nil {
		return nil, w, err
	}
	c := &child{role: args[0], cmd: exec.CommandContext(ctx, self, append([]string{Command}, args...)...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, w, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, w, err
	}
	c.out = json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		return nil, w, fmt.Errorf("start the %s: %w", c.role, err)
	}
	if err := c.out.Decode(&w); err != nil {
		return nil, w, errors.Join(fmt.Errorf("start the %s: %w", c.role, err), c.stop())
	}
	return c, w, nil
}

// ask returns the child's word as of now.
func (c *child) ask() (word, error) {
	var w word
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return w, fmt.Errorf("ask the %s: %w", c.role, err)
	}
	if err := c.out.Decode(&w); err != nil {
		return w, fmt.Errorf("ask the %s: %w", c.role, err)
	}
	return w, nil
}

// stop ends the child and waits for it.
func (c *child) stop() error {
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the %s ended: %w", c.role, err)
	}
	return nil
}
