// Package devtest is `errand dev` as a process of a test, which can be killed and started again on what it left, and a
// client of it.
//
// It is for tests alone. It imports the client and what tests know of processes.
package devtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Server is an `errand dev` on data of its own, and a client of it.
type Server struct {
	*api.Client
	*outside.Program // the process that serves now
	Addr             string

	t       testing.TB
	command func(addr string) *exec.Cmd
}

// Serve starts a server and returns when it serves, as New and Boot.
func Serve(t testing.TB, command func(addr string) *exec.Cmd) *Server {
	t.Helper()
	s := New(t, command)
	s.Boot()
	return s
}

// New makes a server that does not run yet. The command is asked for each of its processes anew, is to listen on addr, and
// to keep its data where the next one finds it.
func New(t testing.TB, command func(addr string) *exec.Cmd) *Server {
	t.Helper()
	s := &Server{Addr: freeAddr(t), t: t, command: command}
	client, err := api.NewClient(api.Options{URL: "http://" + s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = client
	return s
}

// freeAddr is a loopback address that nobody listens on. Its port is below those that connections are made from: else a
// client that dials a server which is down could be given the server's own port.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.N(12_000))
		if isFree(addr) {
			return addr
		}
	}
	t.Fatal("no port from 20000 to 31999 is free, in a hundred tries")
	return ""
}

func isFree(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		err = l.Close()
	}
	return err == nil
}

// Boot starts the next process of a server that has none, and returns when it serves. It is killed at the end of the test.
func (s *Server) Boot() {
	s.t.Helper()
	s.Program = outside.Start(s.t, s.command(s.Addr))
	const told = "serving http://"
	for end := time.Now().Add(outside.Patience); s.Log.Count(told) == 0; {
		select {
		case <-s.Exited:
			s.t.Fatalf("the server ended:\n%s", s.Log.Tail())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			s.t.Fatalf("the server does not serve within %s:\n%s", outside.Patience, s.Log.Tail())
		}
	}
}

// Reboot kills the server as a power cut would, and starts the next one on what it left.
func (s *Server) Reboot() {
	s.t.Helper()
	s.Kill()
	// A program that the server was just starting holds what the server held until it is a process of its own.
	outside.Eventually(s.t, outside.Patience, s.Addr+" is free again", func() bool { return isFree(s.Addr) })
	s.Boot()
}
