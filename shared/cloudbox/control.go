package cloudbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Control is one control process of the box.
type Control struct {
	box  *Box
	name string
	addr string

	mu      sync.Mutex
	process *proc
}

// proc is a process of the box's own: those of workloads are the twin's.
type proc struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// start runs a command whose output goes to a file of the box. It ends with the box's process.
func (b *Box) start(name, program string, env map[string]string) (*proc, error) {
	command := b.o.Programs[program]
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...) // it ends with Close
	// What configures other control processes of this machine does not configure these.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "ERRAND_") && !strings.HasPrefix(v, "ERRAND_RETAIN_MAX=")
	})
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	endWithParent(cmd)
	out, err := os.OpenFile(b.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	p := &proc{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel ends the child with the thread that started it: this one stays until then.
		runtime.LockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		if started <- err; err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		_ = write.Close()
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), out.Close())
	}
	go func() {
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			_, _ = out.Write(append(lines.Bytes(), '\n'))
			if b.o.Lines != nil {
				b.o.Lines(name, lines.Text())
			}
		}
		_, _ = io.Copy(io.Discard, read)
		_ = out.Close()
	}()
	return p, nil
}

// stop ends the process by SIGTERM, and by SIGKILL after the platform's grace.
func (p *proc) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return nil
}

func (b *Box) startControl(ctx context.Context) error {
	for i := range b.o.Processes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		c := &Control{box: b, name: fmt.Sprintf("control-%d", i+1), addr: l.Addr().String()}
		if err := l.Close(); err != nil {
			return err
		}
		b.control = append(b.control, c)
		b.onClose(c.Stop)
		if err := c.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Name is the process's, as in the names of its log.
func (c *Control) Name() string { return c.name }

// URL is the process's own address, past the balancer.
func (c *Control) URL() string { return "http://" + c.addr }

// Pid is the id of the process, 0 while it does not run.
func (c *Control) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.cmd.Process.Pid
}

// Start starts the process, or starts it again, and returns when it answers.
func (c *Control) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start(ctx)
}

// start needs the lock.
func (c *Control) start(ctx context.Context) error {
	b := c.box
	metadata, err := b.twin.Identity(account("control"))
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	p, err := b.start(c.name, "control", map[string]string{
		"PORT": port, "ERRAND_URL": b.URL(), "ERRAND_ADVERTISE": c.URL(),
		"ERRAND_STORE": "firestore:" + project + "/" + database, "FIRESTORE_EMULATOR_HOST": b.firestore.Addr,
		"ERRAND_BUS": "pubsub:" + project, "PUBSUB_EMULATOR_HOST": b.messages.Addr,
		"ERRAND_RUNTIME": "cloudrun:" + project + "/" + region, "ERRAND_RUN_ENDPOINT": b.twin.Endpoint(),
		"ERRAND_AUTH": "oidc:" + b.path("auth.json"), "ERRAND_SIGNING_KEYS": b.path("signing-key"),
		"GCE_METADATA_HOST": metadata,
	})
	if err != nil {
		return err
	}
	c.process = p
	if b.o.Restart {
		go c.keep(p)
	}
	if err := await(ctx, c.URL()+"/health/ready", p.ended); err != nil {
		return fmt.Errorf("%s: %w; its output is in %s", c.name, err, b.path(c.name+".log"))
	}
	b.balancer.add(c.addr)
	return nil
}

// restartDelay is before a process that ended is started again.
const restartDelay = time.Second

// keep starts the process again when it ends and nobody of the box has ended it.
func (c *Control) keep(p *proc) {
	select {
	case <-p.ended:
	case <-c.box.life.Done():
		return
	}
	select {
	case <-time.After(restartDelay):
	case <-c.box.life.Done():
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != p || c.box.life.Err() != nil {
		return
	}
	// What is started is kept in turn, also where it does not answer.
	if err := c.start(c.box.life); err != nil {
		c.box.log.Warn("start a control process again", "error", err)
		return
	}
	c.box.log.Warn("a control process has ended and was started again", "name", c.name, "process", c.process.cmd.Process.Pid)
}

// Kill ends the process as a machine that fails does: with SIGKILL.
func (c *Control) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return
	}
	_ = c.process.cmd.Process.Kill()
	<-c.process.ended
	c.process = nil
}

// Pause stops the process without its knowing, until the function is called: it goes on as if no time had passed.
func (c *Control) Pause() (goOn func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil, fmt.Errorf("%s does not run", c.name)
	}
	p := c.process.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() { _ = p.Signal(syscall.SIGCONT) }, nil
}

// Stop ends the process by SIGTERM.
func (c *Control) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.box.balancer.remove(c.addr)
	if c.process == nil {
		return nil
	}
	err := c.process.stop()
	c.process = nil
	return err
}

// Leads reports whether the process says that it decides, and in which epoch.
func (c *Control) Leads(ctx context.Context) (leads bool, epoch int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/health/ready", nil)
	if err != nil {
		return false, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, 0, err
	}
	defer resp.Body.Close()
	var health struct {
		Leader bool  `json:"leader"`
		Epoch  int64 `json:"epoch"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&health); err != nil {
		return false, 0, fmt.Errorf("health of %s: %w", c.name, err)
	}
	return health.Leader, health.Epoch, nil
}
