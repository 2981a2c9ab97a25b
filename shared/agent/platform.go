package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/identity"
)

// What Cloud Run tells its containers.
const (
	envService      = "K_SERVICE"
	envPool         = "CLOUD_RUN_WORKER_POOL"
	envJob          = "CLOUD_RUN_JOB"
	envExecution    = "CLOUD_RUN_EXECUTION"
	envTaskRestarts = "CLOUD_RUN_TASK_ATTEMPT"
)

const (
	maxTasks = 10_000 // of an execution
	// serviceSlots is the platform's own default for requests that a container is sent at a time; what it is set to is
	// enforced there.
	serviceSlots = 80
)

// protocolOf is the protocol of an environment that names none, "" if nothing tells it.
func protocolOf(getenv func(string) string, e *environment) string {
	has := func(name string) bool { return getenv(name) != "" }
	switch {
	case has(envJob), has(EnvAttempt) && has(EnvTicket):
		return ProtocolJob
	case has(EnvAttempt):
		return ProtocolStdio
	case has(envService), has(envPool) && has(EnvPort):
		return ProtocolHTTP
	case e.url != "" && len(e.agents) > 0:
		return ProtocolWorker
	}
	return ""
}

// identify fills in what the platform knows: the name of the workload where no agent is named, and whose tokens to show.
func (e *environment) identify(getenv func(string) string) {
	if name := cmp.Or(getenv(envJob), getenv(envService)); name != "" && len(e.agents) == 0 {
		e.agents = []string{name}
	}
	if getenv(envService) != "" {
		e.slots = serviceSlots
	}
	if e.workerToken == "" && identity.OnPlatform(getenv, e.url) {
		e.tokens = identity.Metadata(identity.Options{Host: getenv(identity.EnvHost)})
	}
}

// task is the part of a job that a container is.
type task struct {
	execution   string
	index       int
	completions int // 0 where the platform does not tell
	restarts    int // of this task by the platform
	// attempt and ticket are of the run to claim; both are empty where the container must begin its run by itself.
	attempt, ticket string
	// spare: the lists of attempts end before this task; there is nothing to do.
	spare bool
	input json.RawMessage // of a run that is begun; nil for the argument
}

// readTask reads what a job's container is to do.
func (e *environment) readTask(getenv func(string) string, fault func(name, format string, args ...any)) {
	t := &e.task
	number := func(name string, least, most int) int {
		text := getenv(name)
		if text == "" {
			return least
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			fault(name, "want a number from %d to %d", least, most)
		}
		return n
	}
	// 1. Which task this is.
	t.execution = path.Base(cmp.Or(getenv(envExecution), "."))
	if t.execution == "." {
		t.execution = ""
	}
	t.index = number(EnvTaskIndex, 0, maxTasks-1)
	t.completions = number(EnvTaskCount, 0, maxTasks)
	t.restarts = number(envTaskRestarts, 0, 1000)
	if t.execution != "" {
		e.worker = cmp.Or(e.worker, fmt.Sprintf("%s-%d", t.execution, t.index))
	}
	e.worker = cmp.Or(e.worker, newWorkerID())
	if e.url == "" {
		fault(EnvURL, "want the server's URL, such as https://errand.example.com")
	}
	// 2. The element that is this task's.
	attempts, tickets := elements(getenv(EnvAttempt)), elements(getenv(EnvTicket))
	if urls := elements(e.url); len(urls) > 1 {
		e.url = urls[min(t.index, len(urls)-1)]
	}
	switch {
	case len(attempts) == 0 && len(tickets) == 0:
		e.readInput(getenv, fault)
	case len(attempts) != len(tickets):
		fault(EnvAttempt, "a list of %d, and %s has %d; want a ticket for each attempt", len(attempts), EnvTicket, len(tickets))
	case t.index >= len(attempts), attempts[t.index] == "", tickets[t.index] == "":
		t.spare = true
	default:
		t.attempt, t.ticket = attempts[t.index], tickets[t.index]
	}
}

// readInput reads the input of a run that the container begins by itself. What it holds is not shown.
func (e *environment) readInput(getenv func(string) string, fault func(name, format string, args ...any)) {
	if len(e.agents) != 1 {
		fault(EnvAgent, "want the name of the one agent whose run this is")
	}
	text := getenv(EnvInput)
	if text == "" {
		return
	}
	if err := checkInput([]byte(text)); err != nil {
		e.faults = append(e.faults, fmt.Errorf("%s: %w", EnvInput, err))
	}
	e.task.input = json.RawMessage(text)
}

// argument is the input that the command line carries: nothing, or one JSON document, also one that gcloud took apart at
// its commas, as it does with every list.
func argument(args []string) (json.RawMessage, error) {
	if len(args) == 0 {
		return nil, nil
	}
	text := strings.Join(args, ",")
	switch err := checkInput([]byte(text)); {
	case err == nil:
		return json.RawMessage(text), nil
	case len(args) == 1:
		return nil, fmt.Errorf("argument: %w", err)
	}
	return nil, fmt.Errorf("%d arguments; want one, which is the run's input as JSON, or the input in %s", len(args), EnvInput)
}

// checkInput says what is wrong with an input, without what it holds.
func checkInput(raw []byte) error {
	if len(raw) > api.MaxPayload {
		return fmt.Errorf("an input of %d bytes; at most %d", len(raw), api.MaxPayload)
	}
	var v any
	err := json.Unmarshal(raw, &v)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf(`the input is not JSON at byte %d of %d; want one document such as {"name":"you"}`, syntax.Offset, len(raw))
	}
	return errors.New("the input is not JSON")
}

// elements takes a list apart; nothing is an empty list.
func elements(list string) []string {
	if list == "" {
		return nil
	}
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
