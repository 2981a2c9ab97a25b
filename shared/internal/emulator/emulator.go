// Package emulator runs Google's own Firestore and Pub/Sub emulators, for tests and for a cloud on one machine. They
// are Java programs that the Google Cloud CLI installs; this package finds them, starts them on free ports of the
// loopback address, and sees to it that they end with the process that started them.
//
// It imports the standard library only.
package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is one of the emulated services.
type Kind string

const (
	KindFirestore Kind = "Firestore"
	KindPubSub    Kind = "Pub/Sub"
)

// ErrMissing: Java or the emulator's jar is not on this machine. The message says what was looked for and how to get it.
var ErrMissing = errors.New("emulator is not installed")

// Bounds of a start.
const (
	startTries   = 3 // another process may take a port between its choice and its use
	startTimeout = 60 * time.Second
	pollEvery    = 25 * time.Millisecond
	outputKept   = 64 << 10 // bytes of the emulator's last output
)

// program is how the emulator of a kind is found and started.
type program struct {
	jarEnv  string   // names the jar
	globs   []string // where the CLI's packages put it
	main    string   // class
	pack    string   // Debian package
	part    string   // component of the CLI
	hostEnv string   // what clients read the address from
	args    func(port, other string) []string
	flags   []string
}

var programs = map[Kind]program{
	KindFirestore: {
		jarEnv:  "ERRAND_FIRESTORE_EMULATOR_JAR",
		globs:   places("cloud-firestore-emulator/cloud-firestore-emulator*.jar"),
		main:    "com.google.cloud.datastore.emulator.firestore.CloudFirestore",
		pack:    "google-cloud-cli-firestore-emulator",
		part:    "cloud-firestore-emulator",
		hostEnv: "FIRESTORE_EMULATOR_HOST",
		args: func(port, other string) []string {
			return []string{"--host", "127.0.0.1", "--port", port, "--websocket_port", other}
		},
		flags: []string{"-Xmx512m"}, // it holds every document in memory, and requests are up to 10 MiB
	},
	KindPubSub: {
		jarEnv:  "ERRAND_PUBSUB_EMULATOR_JAR",
		globs:   places("pubsub-emulator/lib/cloud-pubsub-emulator*.jar"),
		main:    "com.google.cloud.pubsub.testing.v1.Main",
		pack:    "google-cloud-cli-pubsub-emulator",
		part:    "pubsub-emulator",
		hostEnv: "PUBSUB_EMULATOR_HOST",
		args:    func(port, _ string) []string { return []string{"--host=127.0.0.1", "--port=" + port} },
		flags:   []string{"-Xmx256m"},
	},
}

// cheap keeps the virtual machine small and its start quick: an emulator lives for seconds.
var cheap = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Duser.language=en"}

// places are the folders of the Google Cloud CLI, as packages and archives install it.
func places(glob string) []string {
	roots := []string{"/usr/lib/google-cloud-sdk", "/usr/lib64/google-cloud-sdk", "/usr/local/google-cloud-sdk", "/opt/google-cloud-sdk", "/snap/google-cloud-cli/current"}
	if root := os.Getenv("CLOUDSDK_ROOT_DIR"); root != "" {
		roots = append([]string{root}, roots...)
	}
	for i := range roots {
		roots[i] = filepath.Join(roots[i], "platform", glob)
	}
	return roots
}

// Emulator is a running emulator.
type Emulator struct {
	// Addr is the host and port of its gRPC service, without TLS or credentials.
	Addr string

	kind   Kind
	output tail
	cancel context.CancelFunc
	done   chan struct{} // closed when the process has ended
	err    error         // of its end; read after done
}

// Start runs an emulator and returns when it answers. ctx bounds the start alone, which takes 60 s at most; the
// emulator runs until Stop, and no longer than this process (on Linux; elsewhere a process that is killed leaves it).
// The error wraps ErrMissing when there is no Java or no jar.
func Start(ctx context.Context, kind Kind) (*Emulator, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, ok := programs[kind]
	if !ok {
		return nil, fmt.Errorf("start emulator: no kind %q", kind)
	}
	java, jar, err := p.find()
	if err != nil {
		return nil, fmt.Errorf("start %s emulator: %w", kind, err)
	}
	for try := 1; ; try++ {
		e, err := start(ctx, kind, p, java, jar)
		if err == nil {
			return e, nil
		}
		if try == startTries || ctx.Err() != nil {
			return nil, fmt.Errorf("start %s emulator with %s, try %d of %d: %w", kind, jar, try, startTries, err)
		}
	}
}

func (p program) find() (java, jar string, err error) {
	java, err = exec.LookPath("java")
	if err != nil {
		return "", "", fmt.Errorf("%w: no java on the path; install a Java runtime, version 17 or newer", ErrMissing)
	}
	if jar = os.Getenv(p.jarEnv); jar != "" {
		if _, err := os.Stat(jar); err != nil {
			return "", "", fmt.Errorf("%w: %s names %s: %w", ErrMissing, p.jarEnv, jar, err)
		}
		return java, jar, nil
	}
	for _, glob := range p.globs {
		if found, _ := filepath.Glob(glob); len(found) > 0 {
			slices.Sort(found)
			return java, found[len(found)-1], nil
		}
	}
	return "", "", fmt.Errorf("%w: no %s; install the Debian package %s, or \"gcloud components install %s\" where the Google Cloud CLI "+
		"came as an archive, or name the jar in %s",
		ErrMissing, strings.Join(p.globs, ", "), p.pack, p.part, p.jarEnv)
}

func start(ctx context.Context, kind Kind, p program, java, jar string) (*Emulator, error) {
	// 1. Two free ports: Firestore's emulator listens on a second one.
	port, other, err := freePorts()
	if err != nil {
		return nil, err
	}
	// 2. The process. It outlives ctx.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &Emulator{Addr: net.JoinHostPort("127.0.0.1", port), kind: kind, cancel: cancel, done: make(chan struct{})}
	args := slices.Concat(p.flags, cheap, []string{"-cp", jar, p.main}, p.args(port, other))
	cmd := exec.CommandContext(life, java, args...)
	cmd.Stdout, cmd.Stderr = &e.output, &e.output
	cmd.WaitDelay = 5 * time.Second
	endWithParent(cmd)
	started := make(chan error, 1)
	go func() {
		defer close(e.done)
		// The kernel ends the child with the thread that started it, so that thread has to last as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			e.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, err
	}
	// 3. Until it answers.
	if err := e.await(ctx); err != nil {
		e.Stop()
		return nil, fmt.Errorf("%w; its output:\n%s", err, e.Output())
	}
	return e, nil
}

// await asks until the emulator answers: both say Ok at their root once they serve.
func (e *Emulator) await(ctx context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Addr+"/", http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 64))
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK && strings.TrimSpace(string(body)) == "Ok" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer on %s: %w", e.Addr, ctx.Err())
		case <-e.done:
			return fmt.Errorf("it ended before it answered on %s: %w", e.Addr, e.err)
		case <-tick.C:
		}
	}
}

// Env returns the environment variable, as NAME=VALUE, by which Google's clients find this emulator.
func (e *Emulator) Env() string { return programs[e.kind].hostEnv + "=" + e.Addr }

// Output returns the last 64 KiB of what the emulator wrote.
func (e *Emulator) Output() string { return e.output.String() }

// Done is closed when the emulator's process has ended, by Stop or by itself.
func (e *Emulator) Done() <-chan struct{} { return e.done }

// Stop kills the emulator and waits for its end. What it held is gone. Stopping again does nothing.
func (e *Emulator) Stop() {
	e.cancel()
	<-e.done
}

// freePorts returns two ports of the loopback address that nothing listens on.
func freePorts() (a, b string, err error) {
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer l.Close() // both are held until both are known, so that they differ
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports[0], ports[1], nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - outputKept; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
