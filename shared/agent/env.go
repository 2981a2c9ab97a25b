package agent

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Environment of a process that runs a handler. Whoever starts the process sets it.
const (
	// EnvProtocol says how runs come: [ProtocolWorker], [ProtocolHTTP], [ProtocolStdio] or [ProtocolJob]. When empty, a
	// container of a job and a process with EnvTicket are of a job, a process with EnvAttempt alone speaks stdio, a
	// container of a service and one of a worker pool with a port listen, and a process with EnvURL and EnvAgent is a
	// worker.
	EnvProtocol = "ERRAND_PROTOCOL"
	// EnvURL is where attempts report to.
	EnvURL = "ERRAND_URL"

	// EnvWorker is the worker's id, unique while it lives; host, process and chance make one when empty.
	EnvWorker = "ERRAND_WORKER"
	// EnvWorkerToken is the bearer token with which a worker asks for runs; none on loopback. On Cloud Run a process
	// without one calls with identity tokens of its service account, and so does one that calls a server by https: an instance
	// of Cloud Run has no variable that would tell it from any other process.
	EnvWorkerToken = "ERRAND_WORKER_TOKEN"
	// EnvAudience is whom identity tokens are made out to; EnvURL when empty.
	EnvAudience = "ERRAND_AUDIENCE"
	// EnvTarget is the target that the worker belongs to; the server chooses when empty.
	EnvTarget = "ERRAND_TARGET"
	// EnvAgent names the agents that the process serves, with commas between.
	EnvAgent = "ERRAND_AGENT"
	// EnvSlots is how many runs the process executes at a time; 1 when empty.
	EnvSlots = "ERRAND_SLOTS"
	// EnvGrace is how long running handlers may go on after SIGTERM, such as 7s.
	EnvGrace = "ERRAND_GRACE"

	// EnvPort is the port of the http protocol.
	EnvPort = "PORT"
	// EnvListen is the address to listen on, without a port; every interface when empty, as platforms need it. The
	// local runtime gives the loopback address: what runs on a laptop is nobody else's to call.
	EnvListen = "ERRAND_LISTEN"

	// EnvToken, EnvRun, EnvAttempt and EnvKey tell a stdio process its attempt's bearer token, run, attempt (RUN.N) and
	// unit of work.
	EnvToken   = "ERRAND_TOKEN"
	EnvRun     = "ERRAND_RUN"
	EnvAttempt = "ERRAND_ATTEMPT"
	EnvKey     = "ERRAND_KEY"

	// EnvTicket lets a container of a job claim the attempt of EnvAttempt. Both, and EnvURL, may be lists with commas
	// between: the container takes the element of its task.
	EnvTicket = "ERRAND_TICKET"
	// EnvInput is the input, as JSON, of a job that somebody started by hand; the only argument when empty, else null.
	EnvInput = "ERRAND_INPUT"
	// EnvTenant is the tenant of runs that the process begins by itself.
	EnvTenant = "ERRAND_TENANT"

	// EnvIndex and EnvTaskIndex carry the completion index of a job, EnvTaskCount its completions.
	EnvIndex     = "JOB_COMPLETION_INDEX"
	EnvTaskIndex = "CLOUD_RUN_TASK_INDEX"
	EnvTaskCount = "CLOUD_RUN_TASK_COUNT"
)

// Values of EnvProtocol.
const (
	ProtocolWorker = "worker" // the process pulls leases and reports by itself
	ProtocolHTTP   = "http"   // POST /run carries an api.Document and is answered with an api.DocumentResult
	ProtocolStdio  = "stdio"  // one run: an api.Document on standard input, an api.DocumentResult on standard output
	ProtocolJob    = "job"    // one run, that the process claims with a ticket or begins by itself
)

// DefaultGrace is how long running handlers may go on after SIGTERM. Platforms kill after ten seconds, and handing back
// what is left takes some of them.
const DefaultGrace = 7 * time.Second

const usage = `This program is an Errand agent. It takes its runs from an Errand server and does nothing by itself.

  In development     errand dev -f agent.yaml         starts it, with the manifest's run.command
  As a worker        ERRAND_URL=http://127.0.0.1:8080 ERRAND_AGENT=NAME %[1]s
  Behind HTTP        ERRAND_PROTOCOL=http PORT=9001 %[1]s
  On Cloud Run       ERRAND_URL=https://…, in the environment of the service or job
  One run by hand    ERRAND_PROTOCOL=stdio %[1]s < document.json
`

// environment is what a process was told.
type environment struct {
	protocol    string
	url         string
	worker      string
	workerToken string
	tokens      api.TokenSource // for calls without a token; nil for none
	audience    string
	tenant      string
	task        task
	target      string
	agents      []string
	slots       int
	grace       time.Duration
	port        int
	listen      string // address to listen on, "" for every interface
	token       string
	connect     connect
	faults      []error // what is wrong with it
}

// errNoProtocol: nothing tells how runs come; somebody started the program by hand.
var errNoProtocol = errors.New("no protocol")

// readEnvironment checks everything at once, so that one look at the error mends it all. The names are those of the agents
// that the program is; none where it is whatever it is asked to be.
func readEnvironment(getenv func(string) string, names []string) (*environment, error) {
	e := new(environment)
	fault := func(name, format string, args ...any) {
		e.faults = append(e.faults, fmt.Errorf("%s=%.80q: "+format, append([]any{name, getenv(name)}, args...)...))
	}
	*e = environment{
		protocol: getenv(EnvProtocol), url: getenv(EnvURL), worker: getenv(EnvWorker), workerToken: getenv(EnvWorkerToken),
		audience: getenv(EnvAudience), tenant: getenv(EnvTenant), target: getenv(EnvTarget), slots: 1, grace: DefaultGrace,
		token: getenv(EnvToken),
	}
	for name := range strings.SplitSeq(getenv(EnvAgent), ",") {
		if name = strings.TrimSpace(name); name != "" {
			e.agents = append(e.agents, name)
			if len(names) > 0 && !slices.Contains(names, name) {
				fault(EnvAgent, "%w", notOne(name, names))
			}
		}
	}
	// 1. How runs come, and what the platform says of who the process is.
	if e.protocol == "" {
		if e.protocol = protocolOf(getenv, e); e.protocol == "" {
			return nil, errNoProtocol
		}
	}
	e.identify(getenv)
	// 2. Numbers and times.
	if text := getenv(EnvSlots); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > api.MaxSlots {
			fault(EnvSlots, "want a number from 1 to %d", api.MaxSlots)
		}
		e.slots = n
	}
	if text := getenv(EnvGrace); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > time.Hour {
			fault(EnvGrace, "want a time from 0s to 1h, such as 7s")
		}
		e.grace = d
	}
	// 3. What the protocol needs.
	switch e.protocol {
	case ProtocolWorker:
		if e.url == "" {
			fault(EnvURL, "want the server's URL, such as http://127.0.0.1:8080")
		}
		if len(e.agents) == 0 {
			fault(EnvAgent, "want the names of the agents to serve, with commas between")
		}
		e.worker = cmp.Or(e.worker, newWorkerID())
	case ProtocolJob:
		e.readTask(getenv, fault)
	case ProtocolHTTP:
		n, err := strconv.Atoi(getenv(EnvPort))
		if err != nil || n < 0 || n > 65535 {
			fault(EnvPort, "want the port to listen on, 0 to 65535")
		}
		e.port, e.listen, e.worker = n, getenv(EnvListen), cmp.Or(e.worker, newWorkerID())
	case ProtocolStdio:
	default:
		fault(EnvProtocol, "want worker, http, stdio or job")
	}
	return e, errors.Join(e.faults...)
}

// control says how to call the server as the process itself.
func (e *environment) control() api.Options {
	return api.Options{URL: e.url, Token: e.workerToken, Tokens: e.tokens, Audience: e.audience, Tenant: e.tenant}
}

// newWorkerID is readable first and unique in any case: containers share host names and process ids.
func newWorkerID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "worker"
	}
	if len(host) > 40 {
		host = host[:40]
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}
