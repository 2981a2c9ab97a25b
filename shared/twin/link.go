package twin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// link is a port that leads to another address and can be cut: a container's way to its control plane.
type link struct {
	target   string // host:port
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	ended bool
	conns map[net.Conn]struct{}
}

const maxLinkConns = 1000

// newLink opens a link to where an URL leads, and returns it with the URL that leads through it.
func (t *Twin) newLink(raw string) (*link, string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, "", errors.New("want an http or https URL") // the text may hold a secret: it is not repeated
	}
	target := u.Host
	if u.Port() == "" {
		target = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("open a port to reach %s through: %w", u.Host, err)
	}
	l := &link{target: target, listener: listener, conns: make(map[net.Conn]struct{})}
	t.active.Go(func() { l.serve(&t.active) })
	u.Host = listener.Addr().String()
	return l, u.String(), nil
}

func (l *link) serve(active *sync.WaitGroup) {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		if !l.enter(in) {
			reject(in)
			continue
		}
		active.Go(func() {
			defer l.leave(in)
			out, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", l.target)
			if err != nil {
				return
			}
			if !l.enter(out) {
				reject(out)
				return
			}
			defer l.leave(out)
			var back sync.WaitGroup
			back.Go(func() {
				_, _ = io.Copy(in, out)
				_ = in.(*net.TCPConn).CloseWrite()
			})
			_, _ = io.Copy(out, in)
			_ = out.(*net.TCPConn).CloseWrite()
			back.Wait()
		})
	}
}

// reject closes a connection so that the other end sees a reset.
func reject(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (l *link) enter(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.ended || len(l.conns) >= maxLinkConns {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close()
}

// set cuts or mends the link. Cutting ends the connections that are open.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		l.drop()
	}
}

// drop needs the lock.
func (l *link) drop() {
	for c := range l.conns {
		reject(c)
	}
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.drop()
}

// ports hands out ports for containers to listen on. They lie below those that systems give to clients, so that none is
// taken between the choice and the container's first act.
type ports struct {
	mu   sync.Mutex
	used map[int]bool
}

const (
	firstPort = 20000
	lastPort  = 32000
)

func (p *ports) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		p.used = make(map[int]bool)
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if p.used[port] {
			continue
		}
		// Containers listen on all interfaces.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		p.used[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("find a port for a container: none of 1000 tried between %d and %d is free", firstPort, lastPort)
}

func (p *ports) free(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, port)
}
