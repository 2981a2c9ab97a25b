package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/cli/internal/inputs"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/host"
	"github.com/errand-run/errand/shared/manifest"
)

// twinProcesses is how many control processes dev --twin runs: one leads, and two are there when that is killed.
const twinProcesses = 3

// devProcess is the hidden command by which this program plays the parts of the cloud: errand dev-process control, and
// errand dev-process worker -- COMMAND.
const devProcess = "dev-process"

// checkTwin refuses what has no meaning in the twin.
func checkTwin(cmd *cobra.Command, f *devFlags) error {
	switch {
	case !f.twin:
	case cmd.Flags().Changed("data"):
		return usagef("--data: with --twin runs are in Firestore's emulator, which keeps everything in memory; leave --data out")
	case cmd.Flags().Changed("as"):
		return usagef("--as: with --twin everybody has an identity of their own, and whoever gives none is operator; leave --as out")
	}
	return nil
}

// devTwin runs the fleet as in the cloud: emulators, the twin, control processes, and a workload for each agent.
func (a *app) devTwin(ctx context.Context, f *devFlags, set *manifest.Set, runs []inputs.Run, listener net.Listener) error {
	// 1. What the cloud is made of: this program, and what is declared.
	d := a.newDev(f, fmt.Sprintf("the twin (Firestore's and Pub/Sub's emulators, %d control processes)", twinProcesses))
	program, err := os.Executable()
	if err != nil {
		return errors.Join(fmt.Errorf("find this program, which plays the control processes: %w", err), listener.Close())
	}
	dir, release, err := twinFolder(os.TempDir())
	if err != nil {
		return errors.Join(fmt.Errorf("make a folder for the logs: %w", err), listener.Close())
	}
	defer release()
	var closing atomic.Bool
	lines := func(process, text string) {
		if !closing.Load() { // what is said of the end of the others is no news
			d.twinLine(process, text)
		}
	}
	o := cloudbox.Options{
		Dir: dir, Door: listener, Processes: twinProcesses, Restart: true, Logger: d.log, Lines: lines, Fleet: d.twinFleet(set),
		Programs: map[string][]string{"control": {program, devProcess, "control"}, "worker": {program, devProcess, "worker"}},
	}
	// 2. Start it, which takes some seconds.
	d.note("building agents; starting emulators, control processes and workloads; their logs are in %s", dir)
	box, err := cloudbox.Start(ctx, o)
	if err != nil {
		return err // the logs stay
	}
	a.server, a.token = box.Door(), box.Token()
	for _, c := range box.Control() {
		d.note("%s: %s, process %d", c.Name(), c.URL(), c.Pid())
	}
	if err := d.twinAddresses(box, dir); err != nil {
		return errors.Join(err, box.Close())
	}
	// 3. Show it.
	client, err := d.client()
	if err != nil {
		return errors.Join(err, box.Close())
	}
	defer client.Close()
	d.warnings(box.Applied())
	result := d.serve(ctx, twinNode{box}, &remote{client: client, now: d.now, log: d.log}, set, runs)
	// 4. The end.
	closing.Store(true)
	if ctx.Err() != nil {
		d.note("stopping: attempts get %s, and everything that was kept in memory goes; interrupt again to end at once", devGrace)
	}
	if err := box.Close(); err != nil && result == nil {
		return fmt.Errorf("stop: %w", err)
	}
	if box.Err() == nil {
		_ = os.RemoveAll(dir)
	}
	return result
}

// twinAddresses says where the parts of the twin are, and how gcloud is pointed there. What is at these addresses asks who
// calls, as the cloud does; the twin's own interface takes any token.
func (d *develop) twinAddresses(box *cloudbox.Box, dir string) error {
	d.note("Cloud Run Admin API: gRPC %s, REST http://%s", box.Twin().Endpoint(), box.Twin().HTTP())
	for _, a := range box.Addresses() {
		d.note("%s %s: %s", a.Shape, render.Clean(a.Agent), a.URL)
	}
	token := filepath.Join(dir, "gcloud-token")
	if err := os.WriteFile(token, []byte("any"), 0o600); err != nil {
		return fmt.Errorf("write the token that gcloud shows the twin: %w", err)
	}
	host, port, err := net.SplitHostPort(box.Twin().HTTP())
	if err != nil {
		return fmt.Errorf("address of the twin: %w", err)
	}
	project, region := cloudbox.Place()
	d.note("for gcloud run jobs: export CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN=http://run.test/ CLOUDSDK_PROXY_TYPE=http CLOUDSDK_PROXY_ADDRESS=%s CLOUDSDK_PROXY_PORT=%s CLOUDSDK_AUTH_ACCESS_TOKEN_FILE=%s CLOUDSDK_CORE_PROJECT=%s CLOUDSDK_RUN_REGION=%s",
		host, port, token, project, region)
	return nil
}

// twinNode is a box as dev sees a node: at its door.
type twinNode struct{ *cloudbox.Box }

func (n twinNode) URL() string { return n.Door() }

// twinFleet is what is declared in the twin: everything but the targets, of which each agent gets its own.
func (d *develop) twinFleet(set *manifest.Set) []fleet.Object {
	var out []fleet.Object
	var left []string
	for _, o := range set.Objects {
		if o.Kind() == fleet.KindTarget {
			left = append(left, o.Name())
			continue
		}
		out = append(out, o.Object)
	}
	if len(left) > 0 {
		d.note("left out: target %s; in the twin each agent has a target of its own, a workload of its shape", render.Clean(strings.Join(left, ", ")))
	}
	return out
}

// twinLine shows what containers print. What control processes say is for those who ask for it.
func (d *develop) twinLine(process, text string) {
	if d.f.verbose || !slices.Contains(controlNames(), process) {
		resource, instance, _ := strings.Cut(process, "/")
		d.agentOutput("", strings.TrimSuffix(resource+"/"+instance[max(0, len(instance)-6):], "/"), "", text)
	}
}

func controlNames() []string {
	names := make([]string, twinProcesses)
	for i := range names {
		names[i] = fmt.Sprintf("control-%d", i+1)
	}
	return names
}

// devProcessCommand is what dev --twin starts.
func (a *app) devProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:                devProcess,
		Hidden:             true,
		DisableFlagParsing: true, // what follows the part is the part's
		RunE: func(cmd *cobra.Command, words []string) error {
			log := slog.New(slog.NewJSONHandler(a.err, nil))
			switch part := firstOf(append(words, "")[0]); part {
			case "control":
				return config.Serve(cmd.Context(), os.LookupEnv, log)
			case "worker":
				settings, err := host.ReadSettings(a.env, words[1:])
				if err != nil {
					return fmt.Errorf("environment of the worker: %w", err)
				}
				return settings.Serve(cmd.Context(), log)
			default:
				return usagef("%s %q: this command is for errand's own use; it plays control or worker", devProcess, render.Clean(part))
			}
		},
	}
}
