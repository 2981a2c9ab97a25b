// Package cloudbox is the cloud deployment of Errand on one machine: Google's own emulators of Firestore and Pub/Sub, the
// twin of Cloud Run with its metadata server and its issuer of identities, several control processes behind a balancer,
// the functions, and a workload with an identity of its own for each agent of a fleet. Every part is a process of its
// own and talks to the others by the protocols of the cloud.
//
// It is for tests, demonstrations and measurements, and "errand dev --twin" is made of it; docs/guides/cloud-in-a-box.md
// says what it shows and what it cannot.
package cloudbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/pubsub"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
	"github.com/errand-run/errand/shared/twin"
)

// Options of a Box. Dir and Programs are needed.
type Options struct {
	// Dir is where keys, configuration and the output of processes are kept.
	Dir string
	// Programs are the commands that the box starts, by name: control and worker, which are needed, and functions. Without
	// functions the box ticks the control plane itself, and dead letters stay in their topic.
	Programs map[string][]string
	// Fleet is what is declared at the start. Every agent gets a workload, a target and an identity.
	Fleet []fleet.Object
	// Processes is how many control processes run; 3 when 0.
	Processes int
	// Restart starts a control process again that ends by itself, or is killed from outside, as the platform does.
	Restart bool
	// Door is where people of this machine get in without login, as operators; there is none when nil. Workloads and
	// control processes use another address, where nobody is let in without a token. The box closes it.
	Door net.Listener
	// Cloud lets a test change the twin.
	Cloud func(*twin.Options)
	// Lines takes what processes print, by their name; nil drops what is not kept in Dir.
	Lines  func(process, text string)
	Logger *slog.Logger
}

// Names of the box.
const (
	project  = "errand-box"
	region   = "europe-west1"
	database = "errand"
	// patience bounds the wait for a process that starts.
	patience = 60 * time.Second
)

// Box is a cloud under way.
type Box struct {
	o         Options
	log       *slog.Logger
	firestore *emulator.Emulator
	messages  *emulator.Emulator
	twin      *twin.Twin
	bus       *pubsub.Bus
	balancer  *balancer
	control   []*Control
	applied   *api.ApplyResult
	addresses []Address
	failure   failure
	life      context.Context // ends when Close is called
	end       context.CancelFunc
	token     string // of whoever operates the box
	closers   []func() error
}

// Start starts a box and returns once its fleet is declared and every control process answers. The program has to call
// process.Warden first thing in its main. An error wraps emulator.ErrMissing where an emulator is not installed.
func Start(ctx context.Context, o Options) (_ *Box, err error) {
	b := &Box{o: o, log: o.Logger, token: rand.Text(), failure: failure{failed: make(chan struct{})}}
	b.life, b.end = context.WithCancel(context.WithoutCancel(ctx))
	if o.Door != nil {
		b.onClose(func() error {
			if err := o.Door.Close(); !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.o.Processes <= 0 {
		b.o.Processes = 3
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the cloud in a box: %w", err), b.Close())
		}
	}()
	for _, step := range []func(context.Context) error{
		b.check, b.startEmulators, b.startTwin, b.startBalancer, b.declareTopics, b.configure, b.startControl, b.deploy, b.startFunctions, b.declare, b.open,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// check looks at the options before anything starts.
func (b *Box) check(context.Context) error {
	var faults []error
	for _, name := range []string{"control", "worker"} {
		if len(b.o.Programs[name]) == 0 {
			faults = append(faults, fmt.Errorf("no program %s is given", name))
		}
	}
	for _, a := range b.agents() {
		if _, err := commandOf(a); err != nil {
			faults = append(faults, err)
		}
		if _, function := functionRoles[a.Name()]; function || a.Name() == "control" {
			faults = append(faults, fmt.Errorf("agent %s: the workload %s of the box has that name and identity", a.Name(), a.Name()))
		}
	}
	return errors.Join(faults...)
}

func (b *Box) startEmulators(ctx context.Context) error {
	for kind, into := range map[emulator.Kind]**emulator.Emulator{emulator.KindFirestore: &b.firestore, emulator.KindPubSub: &b.messages} {
		e, err := emulator.Start(ctx, kind)
		if err != nil {
			return err
		}
		*into = e
		closing := make(chan struct{})
		go func() {
			<-e.Done()
			select {
			case <-closing:
			default:
				b.failure.set(fmt.Errorf("the emulator of %s has ended, and with it all that it held", kind))
			}
		}()
		b.onClose(func() error { close(closing); e.Stop(); return nil })
	}
	return nil
}

func (b *Box) startTwin(ctx context.Context) error {
	o := twin.Options{
		Project: project, Region: region, Image: b.image, Logger: b.log,
		Through: []string{"ERRAND_URL"}, Invokers: []string{"serviceAccount:" + account("control")},
		Env: map[string]string{"PUBSUB_EMULATOR_HOST": b.messages.Addr, "ERRAND_LISTEN": "127.0.0.1"},
		Lines: func(l twin.Line) {
			if b.o.Lines != nil {
				b.o.Lines(filepath.Base(l.Resource)+"/"+l.Instance, l.Text)
			}
		},
	}
	if b.o.Cloud != nil {
		b.o.Cloud(&o)
	}
	var err error
	// It outlives the start: Close ends it.
	if b.twin, err = twin.Start(context.WithoutCancel(ctx), o); err != nil {
		return err
	}
	b.onClose(b.twin.Close)
	return nil
}

func (b *Box) startBalancer(context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the balancer: %w", err)
	}
	b.balancer = newBalancer(l, b.log)
	b.onClose(b.balancer.close)
	return nil
}

func (b *Box) declareTopics(ctx context.Context) error {
	if err := os.Setenv("PUBSUB_EMULATOR_HOST", b.messages.Addr); err != nil {
		return err
	}
	var err error
	if b.bus, err = pubsub.Open(ctx, pubsub.Options{Project: project, Prefix: "errand", Log: b.log}); err != nil {
		return err
	}
	b.onClose(b.bus.Close)
	topics := []bus.Topic{bus.Control, bus.Events}
	for _, a := range b.agents() {
		if a.Shape == fleet.Pool {
			topics = append(topics, bus.Pool(a.Name()))
		}
	}
	return b.bus.Declare(ctx, topics...)
}

// configure writes what control processes read: who may ask, and the keys of tokens.
func (b *Box) configure(context.Context) error {
	type principal struct {
		Email   string   `json:"email"`
		Role    string   `json:"role"`
		Agents  []string `json:"agents,omitempty"`
		Tenants []string `json:"tenants,omitempty"`
	}
	auth := struct {
		Issuers    []map[string]any    `json:"issuers"`
		Principals []principal         `json:"principals"`
		Tokens     []map[string]string `json:"tokens"`
	}{
		Issuers: []map[string]any{{"issuer": b.twin.Issuer(), "audiences": []string{b.URL()}}},
		Tokens:  []map[string]string{{"name": "operator", "sha256": server.HashToken(b.token), "role": string(server.Admin)}},
	}
	for _, a := range b.agents() {
		auth.Principals = append(auth.Principals, principal{Email: account(a.Name()), Role: string(server.Worker), Agents: []string{a.Name()}})
	}
	for name, role := range functionRoles {
		auth.Principals = append(auth.Principals, principal{Email: account(name), Role: string(role)})
	}
	body, err := json.Marshal(auth)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.Dir, 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(b.path("auth.json"), body, 0o600),
		os.WriteFile(b.path("signing-key"), []byte(rand.Text()+rand.Text()), 0o600),
	)
}

// declare applies the fleet with a target for each agent.
func (b *Box) declare(ctx context.Context) error {
	objects := slices.Clone(b.o.Fleet)
	for _, a := range b.agents() {
		objects = append(objects, b.target(a))
	}
	var body []byte
	for _, o := range objects {
		text, err := manifest.ToYAML(o)
		if err != nil {
			return err
		}
		body = append(append(body, "---\n"...), text...)
	}
	client, err := b.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	if b.applied, err = client.Apply(ctx, body, api.ApplyOptions{}); err != nil {
		return fmt.Errorf("declare the fleet: %w", err)
	}
	return nil
}

// agents are those of the fleet.
func (b *Box) agents() []*fleet.Agent {
	var out []*fleet.Agent
	for _, o := range b.o.Fleet {
		if a, ok := o.(*fleet.Agent); ok {
			out = append(out, a)
		}
	}
	return out
}

// account is the identity of a workload.
func account(name string) string { return name + "@" + project + ".iam.gserviceaccount.com" }

func (b *Box) path(name string) string { return filepath.Join(b.o.Dir, name) }

// URL is the address of the control plane: that of the balancer.
func (b *Box) URL() string { return "http://" + b.balancer.addr() }

// Door is the address of Options.Door, "" where there is none.
func (b *Box) Door() string {
	if b.o.Door == nil {
		return ""
	}
	return "http://" + b.o.Door.Addr().String()
}

// Applied is what came of declaring the fleet, with its warnings.
func (b *Box) Applied() *api.ApplyResult { return b.applied }

// Failed is closed when the box cannot go on: an emulator has ended. Err then says so.
func (b *Box) Failed() <-chan struct{} { return b.failure.failed }

// Err is why the box failed.
func (b *Box) Err() error { return b.failure.get() }

// failure is the first of its errors.
type failure struct {
	failed chan struct{}
	mu     sync.Mutex
	err    error
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		close(f.failed)
	}
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Token is the operator's API token.
func (b *Box) Token() string { return b.token }

// Client speaks to the control plane as its operator.
func (b *Box) Client() (*api.Client, error) {
	return api.NewClient(api.Options{URL: b.URL(), Token: b.token, UserAgent: "errand-box"})
}

// Twin is the box's Cloud Run.
func (b *Box) Twin() *twin.Twin { return b.twin }

// Store opens the store of the control processes, past them: to look at what they have written. The caller closes it.
func (b *Box) Store(ctx context.Context) (store.Store, error) {
	return firestore.Open(ctx, firestore.Options{Project: project, Database: database, Endpoint: b.firestore.Addr})
}

// Control are the control processes.
func (b *Box) Control() []*Control { return b.control }

func (b *Box) onClose(f func() error) { b.closers = append(b.closers, f) }

// Close ends everything, in the reverse of the order in which it was started.
func (b *Box) Close() error {
	b.end()
	var faults []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		faults = append(faults, b.closers[i]())
	}
	b.closers = nil
	return errors.Join(faults...)
}

// await polls an address until it answers 200.
func await(ctx context.Context, url string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		select {
		case <-ended:
			return errors.New("the process has ended")
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", url, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
