package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// child is a process of the measurement, seen from the one that measures. It ends with that one, however that ends: its
// standard input does.
type child struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// spawn starts this program again in another role, and waits for its first word.
func spawn(ctx context.Context, s spec) (*child, word, error) {
	var w word
	self, err := os.Executable()
	if err != nil {
		return nil, w, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, w, err
	}
	c := &child{role: s.Role, cmd: exec.CommandContext(ctx, self, Command, string(text))}
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
func (c *child) ask() (word, error) { return c.question("") }

// settle makes the child give back the memory that it does not need, and returns its word after that.
func (c *child) settle() (word, error) { return c.question(askSettled) }

func (c *child) question(q string) (word, error) {
	var w word
	if _, err := io.WriteString(c.in, q+"\n"); err != nil {
		return w, fmt.Errorf("ask the %s: %w", c.role, err)
	}
	if err := c.out.Decode(&w); err != nil {
		return w, fmt.Errorf("ask the %s: %w", c.role, err)
	}
	return w, nil
}

// kill ends the child as a machine that fails does, and returns when it has ended.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the %s: %w", c.role, err)
	}
	_ = c.cmd.Wait() // it was killed, and says so
	return nil
}

// stop ends the child and waits for it.
func (c *child) stop() error {
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the %s ended: %w", c.role, err)
	}
	return nil
}

// ownCPU is what this process has used, user and system.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
