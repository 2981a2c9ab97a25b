// Package config reads what a control process is told by its environment, checks all of it at once, and opens what it
// names: store, authentication. Names and forms are those of the documentation; a form that this build does not know is
// refused by name.
package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
	"github.com/errand-run/errand/shared/store/memory"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// Server is the configuration of a control process.
type Server struct {
	// Port to listen on: of all interfaces, or of this machine alone when Auth is AuthLoopback.
	Port string `env:"PORT, default=8080"`
	// Store: sqlite:FILE, memory, or firestore:PROJECT/DATABASE, which any number of control processes share.
	Store string `env:"ERRAND_STORE, default=sqlite:errand.db"`
	// Bus carries messages between processes: local, for one that is alone, or pubsub:PROJECT, pubsub:PROJECT/PREFIX.
	Bus string `env:"ERRAND_BUS, default=local"`
	// Runtime lists what this process can start attempts on: local, cloudrun:PROJECT/REGION. Workers that pull need none
	// of it.
	Runtime []string `env:"ERRAND_RUNTIME, default=local"`
	// RunEndpoint is HOST:PORT of another Cloud Run Admin API, in plain gRPC; Google's when empty.
	RunEndpoint string `env:"ERRAND_RUN_ENDPOINT"`
	// URL is this control plane's address for agents in the cloud, and the audience of their identity tokens.
	URL string `env:"ERRAND_URL"`
	// Events is the name of this cell, under which what happens to runs is told on the bus as CloudEvents; empty tells
	// nothing.
	Events string `env:"ERRAND_EVENTS"`
	// Advertise is the URL under which other control processes of the same store reach this one; empty where they cannot.
	Advertise string `env:"ERRAND_ADVERTISE"`
	// Metrics is HOST:PORT of a loopback address where figures are served without login, to a collector beside this process;
	// /metrics of the port itself needs one.
	Metrics string `env:"ERRAND_METRICS"`
	// Auth: loopback, which needs no login and serves this machine alone; tokens:FILE, a JSON list of API tokens; or
	// oidc:FILE, issuers and principals as in package server/oidc, and API tokens beside them.
	Auth string `env:"ERRAND_AUTH, default=loopback"`
	// SigningKeys are files of the keys of attempt tokens, the one that signs first; one is kept in the store when empty.
	SigningKeys []string `env:"ERRAND_SIGNING_KEYS"`
	// RetainMax bounds how long any finished run is kept, whatever its agent says: a duration such as 30d; no bound when
	// empty.
	RetainMax string `env:"ERRAND_RETAIN_MAX"`
	// Ledger is the file that remembers local processes, so that the next server ends what a killed one left.
	Ledger string `env:"ERRAND_LEDGER, default=.errand/processes"`
}

// AuthLoopback serves this machine alone, without login.
const AuthLoopback = "loopback"

// Load reads the environment through lookup, such as os.LookupEnv. The error names every variable that is wrong.
func Load(ctx context.Context, lookup func(string) (string, bool)) (*Server, error) {
	s := new(Server)
	err := envconfig.ProcessWith(ctx, &envconfig.Config{Target: s, Lookuper: lookuper(lookup)})
	if err != nil {
		return nil, fmt.Errorf("read the environment: %w", err)
	}
	var faults []error
	fault := func(name, value, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s=%.100q: %s", name, value, fmt.Sprintf(format, args...)))
	}
	if n, err := strconv.Atoi(s.Port); err != nil || n < 0 || n > 65535 {
		fault("PORT", s.Port, "want a port, 0 to 65535")
	}
	if _, err := ParseStore(s.Store); err != nil {
		fault("ERRAND_STORE", s.Store, "%v", err)
	}
	if _, err := parseBus(s.Bus); err != nil {
		fault("ERRAND_BUS", s.Bus, "%v", err)
	}
	clouds := 0
	for _, r := range s.Runtime {
		if r == "none" && len(s.Runtime) > 1 {
			fault("ERRAND_RUNTIME", strings.Join(s.Runtime, ","), "none stands alone")
		}
		if strings.HasPrefix(r, cloudPrefix) {
			if clouds++; clouds == 2 {
				fault("ERRAND_RUNTIME", strings.Join(s.Runtime, ","), "one cloudrun:PROJECT/REGION at most: more are control planes of their own")
			}
			if _, _, err := parseCloud(r); err != nil {
				fault("ERRAND_RUNTIME", r, "%v", err)
			}
			if s.URL == "" {
				fault("ERRAND_URL", "", "agents on Cloud Run need this control plane's address, such as https://errand.example.com")
			}
		} else if err := oneOf(r, "local", "none", "cloudrun:PROJECT/REGION"); err != nil {
			fault("ERRAND_RUNTIME", r, "%v", err)
		}
	}
	for name, address := range map[string]string{"ERRAND_URL": s.URL, "ERRAND_ADVERTISE": s.Advertise} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || !isPort(u.Port(), true)) {
			if u != nil { // it may hold a password
				address = u.Redacted()
			}
			fault(name, address, "want a URL of scheme, host and port alone, such as https://errand.example.com")
		}
	}
	if _, port, err := net.SplitHostPort(s.RunEndpoint); s.RunEndpoint != "" && (err != nil || !isPort(port, false)) {
		fault("ERRAND_RUN_ENDPOINT", s.RunEndpoint, "want HOST:PORT")
	}
	if host, _, err := net.SplitHostPort(s.Metrics); s.Metrics != "" && (err != nil || !net.ParseIP(host).IsLoopback()) {
		fault("ERRAND_METRICS", s.Metrics, "want HOST:PORT of a loopback address, such as 127.0.0.1:9464")
	}
	if _, err := ParseRetain(s.RetainMax); err != nil {
		fault("ERRAND_RETAIN_MAX", s.RetainMax, "%v", err)
	}
	if kind, file, named := strings.Cut(s.Auth, ":"); !named || file == "" || kind != "tokens" && kind != "oidc" {
		if err := oneOf(s.Auth, AuthLoopback, "tokens:FILE", "oidc:FILE"); err != nil {
			fault("ERRAND_AUTH", s.Auth, "%v", err)
		}
	}
	if clouds > 0 && s.Auth == AuthLoopback {
		fault("ERRAND_AUTH", s.Auth, "agents on Cloud Run call from other machines and are let in by their identity, while loopback serves this machine "+
			"alone and lets everybody in; want oidc:FILE with the issuer https://accounts.google.com, or tokens:FILE")
	}
	if len(s.SigningKeys) > maxKeyFiles || slices.Contains(s.SigningKeys, "") {
		fault("ERRAND_SIGNING_KEYS", strings.Join(s.SigningKeys, ","), "want FILE[,FILE], %d at most, the one that signs first", maxKeyFiles)
	}
	return s, errors.Join(faults...)
}

type lookuper func(string) (string, bool)

// Lookup treats a variable that is set to nothing as one that is not set.
func (l lookuper) Lookup(name string) (string, bool) {
	v, ok := l(name)
	return v, ok && v != ""
}

func oneOf(value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("want %s", strings.Join(known, " or "))
}

const cloudPrefix = "cloudrun:"

// isPort reports whether a text is a port that can be connected to, or nothing where that is optional.
func isPort(text string, optional bool) bool {
	n, err := strconv.Atoi(text)
	return optional && text == "" || err == nil && n > 0 && n <= 65535
}

// parseCloud reads cloudrun:PROJECT/REGION.
func parseCloud(text string) (project, region string, err error) {
	place, ok := strings.CutPrefix(text, cloudPrefix)
	project, region, slash := strings.Cut(place, "/")
	if !ok || !slash || project == "" || region == "" || strings.Contains(region, "/") {
		return "", "", errors.New("want cloudrun:PROJECT/REGION")
	}
	return project, region, nil
}

// LocalRuntime reports whether attempts are started on this machine.
func (s *Server) LocalRuntime() bool { return slices.Contains(s.Runtime, "local") }

// Retain is the bound that RetainMax sets; 0 for none.
func (s *Server) Retain() time.Duration {
	d, _ := ParseRetain(s.RetainMax) // Load has checked it
	return d
}

// ParseRetain reads what ERRAND_RETAIN_MAX says: a duration of a second or more; 0 where it is empty or forever.
func ParseRetain(text string) (time.Duration, error) {
	var d fleet.Duration
	if text == "" {
		return 0, nil
	}
	switch err := d.UnmarshalText([]byte(text)); {
	case err != nil:
		return 0, err
	case d == fleet.Forever:
		return 0, nil
	case d.Std() < time.Second:
		return 0, errors.New("want a second or more, or nothing for no bound")
	}
	return d.Std(), nil
}

// AuthKind names the authentication without its details.
func (s *Server) AuthKind() string {
	kind, _, _ := strings.Cut(s.Auth, ":")
	return kind
}

// Address is what to listen on.
func (s *Server) Address() string {
	if s.Auth == AuthLoopback {
		return "127.0.0.1:" + s.Port
	}
	return ":" + s.Port
}

// StorePlace is a store as configuration names it.
type StorePlace struct {
	Memory            bool
	File              string // of SQLite
	Project, Database string // of Firestore
}

// ParseStore reads the form of ERRAND_STORE.
func ParseStore(text string) (StorePlace, error) {
	if file, ok := strings.CutPrefix(text, "sqlite:"); ok && file != "" {
		return StorePlace{File: file}, nil
	}
	if text == "memory" {
		return StorePlace{Memory: true}, nil
	}
	if place, ok := strings.CutPrefix(text, "firestore:"); ok {
		project, database, _ := strings.Cut(place, "/")
		if project == "" || database == "" || strings.ContainsAny(database, "/ ") {
			return StorePlace{}, errors.New("want firestore:PROJECT/DATABASE; a project's first database is named " + firestore.DefaultDatabase)
		}
		return StorePlace{Project: project, Database: database}, nil
	}
	return StorePlace{}, oneOf(text, "sqlite:FILE", "memory", "firestore:PROJECT/DATABASE")
}

// Open opens the store, and makes the folder of its file. Firestore's emulator is used where FIRESTORE_EMULATOR_HOST
// names one.
func (p StorePlace) Open(ctx context.Context) (store.Store, error) {
	switch {
	case p.Memory:
		return memory.Open(), nil
	case p.Project != "":
		s, err := firestore.Open(ctx, firestore.Options{Project: p.Project, Database: p.Database})
		if err != nil {
			return nil, err // not a store that is nil within
		}
		return s, nil
	}
	if dir := filepath.Dir(p.File); dir != "." {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store %s: %w", p.File, err)
		}
	}
	s, err := sqlite.Open(ctx, p.File, sqlite.Options{})
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("%w; stop the other process, or use another file", err)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}
