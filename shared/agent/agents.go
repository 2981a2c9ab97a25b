package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// Agent is one of the agents that a program is. [Of] makes it.
type Agent struct{ handle handle }

// Of makes an agent of a handler, whatever its types.
func Of[In, Out any](handler Handler[In, Out]) Agent {
	return Agent{func(ctx context.Context, client *api.Client, a *Attempt) Result { return run(ctx, client, a, handler) }}
}

// MainOf is [Main] for a program that is several agents, by name: each run goes to the agent that it is of. What is built
// and deployed is one program, and each of its agents has a manifest of its own.
//
// Where [EnvAgent] names an agent that the program is not, the process ends with 2 before it takes a run. A run of such an
// agent that comes nevertheless fails with [CodeUnsupported] and is not retried. MainOf panics if there are no agents, or
// one that [Of] did not make.
func MainOf(agents map[string]Agent, opts ...Option) {
	start(dispatch(agents), slices.Sorted(maps.Keys(agents)), opts)
}

// dispatch hands each attempt to the agent that it is of.
func dispatch(agents map[string]Agent) handle {
	if len(agents) == 0 {
		panic("agent.MainOf: want one agent or more, got none")
	}
	for name, a := range agents {
		if a.handle == nil {
			panic(fmt.Sprintf("agent.MainOf: agent %q has no handler; want agent.Of(handler)", name))
		}
	}
	return func(ctx context.Context, client *api.Client, a *Attempt) Result {
		agent, ok := agents[a.Agent]
		if !ok {
			return Failed(failf(CodeUnsupported, "%w; correct the manifest's run, or deploy a program that is it", notOne(a.Agent, slices.Sorted(maps.Keys(agents)))))
		}
		return agent.handle(ctx, client, a)
	}
}

// notOne says that a program is not an agent, and what it is.
func notOne(name string, names []string) error {
	return fmt.Errorf("this program is no agent %.80q, it is %s", name, strings.Join(names, ", "))
}
