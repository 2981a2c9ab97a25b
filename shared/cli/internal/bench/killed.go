package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Dimensions of W6.
const (
	flightRuns = 2000
	pieceTime  = 250 * time.Millisecond // work of a run
	// gone is how long nothing may be under way before what has not ended counts as lost. A worker that vanishes is
	// noticed sooner, and what it had is under way until then.
	gone = 5 * time.Second
)

func flight(o *Options) int { return min(o.Runs, flightRuns) }

func killing(o *Options) string {
	return fmt.Sprintf("%d runs of %s and an effect each, %d at a time", flight(o), pieceTime, poolSlots)
}

// victim is what dies in W6.
type victim int

const (
	serverDies victim = iota
	workerDies
	localWorkerDies
)

// killed is W6: runs are under way when a process is killed, and it is started again at once.
func (m *measurement) killed(ctx context.Context, n int, who victim) error {
	path := filepath.Join(m.dir, "outside.log")
	// 1. All runs are under way or queued, and a third is over.
	if err := m.underWay(ctx, n, who, path); err != nil {
		return err
	}
	d, err := m.until(ctx, path, n/3)
	if err != nil {
		return err
	}
	// Handlers that began together end together, and between two of them there is nothing to lose.
	if err := pause(ctx, pieceTime/2); err != nil {
		return err
	}
	// 2. Death.
	died := time.Now()
	switch who {
	case serverDies:
		if err := m.server.kill(); err != nil {
			return err
		}
		if err := m.serve(ctx, false); err != nil {
			return err
		}
	case workerDies:
		if err := m.worker.kill(); err != nil {
			return err
		}
		if err := m.work(ctx, poolSlots, path); err != nil {
			return err
		}
	case localWorkerDies:
		if err := syscall.Kill(d.process, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill the agent's process %d: %w", d.process, err)
		}
	}
	back := time.Since(died)
	if d, err = readDiary(path); err != nil {
		return err
	}
	// 3. What was left then would have taken so long; it took longer.
	floor, busy := d.left(died, n, poolSlots, pieceTime), d.busy(died, poolSlots, pieceTime)
	ended, succeeded, err := m.allEnd(ctx, n)
	if err != nil {
		return err
	}
	if d, err = readDiary(path); err != nil {
		return err
	}
	m.figure("beyond the work left", "s", (ended.Sub(died) - floor).Seconds())
	if busy > 0 {
		m.figure("beyond the pace before", "s", (ended.Sub(died) - time.Duration(float64(floor)/busy)).Seconds())
	}
	m.figure("work left", "s", floor.Seconds())
	m.figure("slots at work before", "%", 100*busy)
	if who != localWorkerDies {
		m.figure("started again", "s", back.Seconds())
	}
	m.figure("lost", "runs", float64(n-succeeded))
	m.figure("bodies repeated", "runs", float64(repeated(d.bodies)))
	m.figure("effects twice", "runs", float64(repeated(d.effects)))
	m.figure("effects missing", "runs", float64(n-len(d.effects)))
	return nil
}

// underWay starts everything, and submits.
func (m *measurement) underWay(ctx context.Context, n int, who victim, log string) error {
	local := who == localWorkerDies
	if err := m.serve(ctx, local); err != nil {
		return err
	}
	fleet := manifests("", "{runtime: poll}")
	if local {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		command := fmt.Sprintf("[%q, %s, %q]", self, Command, fmt.Sprintf(`{"role":%q,"log":%q}`, roleAgent, log))
		slots := strconv.Itoa(poolSlots)
		fleet = manifests("\n  run: {protocol: worker, slots: "+slots+", command: "+command+"}",
			"{runtime: local, shapes: [pool], capacity: {runs: "+slots+"}}")
	}
	if _, err := m.client.Apply(ctx, fleet, api.ApplyOptions{}); err != nil {
		return err
	}
	if !local {
		if err := m.work(ctx, poolSlots, log); err != nil {
			return err
		}
	}
	_, err := m.submitAll(ctx, n, batchSize, func(i int) task { return task{Unit: i + 1, Work: pieceTime} })
	return err
}

// until waits until the bodies of this many runs are over.
func (m *measurement) until(ctx context.Context, path string, done int) (*diary, error) {
	over, since := -1, time.Now()
	for {
		d, err := readDiary(path)
		if err != nil || len(d.done) > 0 && len(d.done) >= done {
			return d, err
		}
		if len(d.done) != over {
			over, since = len(d.done), time.Now()
		}
		if time.Since(since) > stall {
			return nil, fmt.Errorf("nothing has moved for %s: %d of %d runs are over", stall, over, done)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// allEnd waits until n runs have ended, and returns when, and how many of them well. It gives up runs that nobody is
// about to run.
func (m *measurement) allEnd(ctx context.Context, n int) (ended time.Time, succeeded int, err error) {
	idle, moved, last := time.Now(), time.Now(), -1
	for {
		left, err := m.held(ctx)
		if err != nil {
			return ended, 0, err
		}
		now := time.Now()
		if left != last {
			moved, last = now, left
		}
		if left > 0 {
			idle = now
			if now.Sub(moved) > stall {
				return ended, 0, fmt.Errorf("nothing has moved for %s: %d runs are left", stall, left)
			}
		} else {
			states, err := m.states(ctx)
			if err != nil {
				return ended, 0, err
			}
			if states["succeeded"]+states["failed"]+states["canceled"] == n || now.Sub(idle) > gone {
				return now, states["succeeded"], nil
			}
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return ended, 0, err
		}
	}
}

// states counts all runs that the server knows.
func (m *measurement) states(ctx context.Context) (map[string]int, error) {
	states := make(map[string]int)
	page := api.Page{Limit: api.MaxPage}
	for {
		list, err := m.client.ListRuns(ctx, api.RunFilter{}, page)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			states[list.Items[i].State]++
		}
		if page.Token = list.NextPageToken; page.Token == "" {
			return states, nil
		}
	}
}
