package local

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime/process"
)

// build is the one build of a revision. Guarded by Runtime.mu.
type build struct {
	agent    string
	makes    string // folder and command: two at once would write the same file
	running  bool
	done     bool
	proc     *process.Process
	err      error     // of the last try
	retryAt  time.Time // when another may begin
	failures int
	tail     []byte // the last of its output
}

// maxBuilds bounds how many builds are remembered; a forgotten one is done again.
const maxBuilds = 1000

// built reports whether the unit's agent is built, and begins it if it is not. An error says that building failed a
// moment ago. Needs the lock.
func (rt *Runtime) built(u *unit) (bool, error) {
	if len(u.agent.Run.Build) == 0 {
		return true, nil
	}
	key := u.agent.Name() + "\x00" + u.agent.Hash()
	b := rt.builds[key]
	switch {
	case b != nil && b.done:
		return true, nil
	case b != nil && b.running:
		return false, nil
	case b != nil && time.Now().Before(b.retryAt):
		return false, b.err
	case b == nil:
		if len(rt.builds) >= maxBuilds {
			for key, other := range rt.builds {
				if !other.running {
					delete(rt.builds, key)
					break
				}
			}
		}
		b = &build{agent: u.agent.Name(), makes: u.agent.Run.Dir + "\x00" + strings.Join(u.agent.Run.Build, "\x00")}
		rt.builds[key] = b
	}
	// Agents may share a program. Whose turn it is next is seen when the build that runs has ended.
	for _, other := range rt.builds {
		if other.running && other.makes == b.makes {
			return false, nil
		}
	}
	r := u.agent.Run
	rt.log.Info("building an agent", "agent", b.agent, "command", r.Build, "dir", r.Dir)
	b.running, b.tail = true, nil
	var err error
	b.proc, err = rt.host.Start(process.Spec{
		Command: r.Build, Dir: r.Dir, Env: process.Environment(r.Env), Limit: rt.opts.BuildLimit, Grace: 5 * time.Second,
		Lines: func(stream, text string) {
			rt.opts.Output(b.agent, "build", stream, text)
			rt.mu.Lock()
			b.keep(text)
			rt.mu.Unlock()
		},
		OnExit: func(e process.Exit) {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			rt.buildEnded(b, e)
		},
	})
	if err != nil {
		b.running = false
		b.failed(rt, fmt.Errorf("run.build %s: %w", strings.Join(r.Build, " "), err))
		return false, b.err
	}
	return false, nil
}

func (rt *Runtime) buildEnded(b *build, e process.Exit) {
	b.running, b.proc = false, nil
	switch {
	case errors.Is(e.Cause, process.ErrTime):
		b.failed(rt, fmt.Errorf("run.build took longer than %s: %s", rt.opts.BuildLimit, b.tail))
	case e.Cause != nil:
		b.failed(rt, errors.New("run.build was stopped"))
	case e.Signal != 0:
		b.failed(rt, fmt.Errorf("run.build was ended by signal %d: %s", int(e.Signal), b.tail))
	case e.Code != 0:
		b.failed(rt, fmt.Errorf("run.build failed with exit code %d: %s", e.Code, b.tail))
	default:
		b.done, b.err = true, nil
	}
	for _, u := range rt.units {
		u.proceed()
	}
}

func (b *build) failed(rt *Runtime, err error) {
	b.err = err
	b.retryAt = time.Now().Add(rt.opts.BuildRetry << min(b.failures, 6))
	b.failures++
	rt.log.Warn("an agent could not be built", "agent", b.agent, "error", err)
}

// keep appends a line to the tail, which goes into messages to people.
func (b *build) keep(text string) {
	const room = run.MaxMessage - 512
	b.tail = append(append(b.tail, text...), '\n')
	if len(b.tail) > 2*room {
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-room:]...)
	}
}

func (b *build) stop(grace time.Duration) {
	if b.proc != nil {
		b.proc.Stop(grace)
	}
}
