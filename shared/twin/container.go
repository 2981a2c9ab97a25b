package twin

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds on what a container declares, as Cloud Run's where it has some.
const (
	maxContainers = 10
	maxEnv        = 1000
	maxEnvName    = 32768
	maxEnvBytes   = 512 << 10 // of all variables of a container
	maxArgs       = 1000
	maxArgBytes   = 128 << 10
	maxAttempts   = 10 // retries of a task
)

// reserved are the variables that the platform sets and a declaration may not.
var reserved = map[string]bool{
	"PORT": true, "K_SERVICE": true, "K_REVISION": true, "K_CONFIGURATION": true,
	"CLOUD_RUN_JOB": true, "CLOUD_RUN_EXECUTION": true, "CLOUD_RUN_TASK_INDEX": true, "CLOUD_RUN_TASK_ATTEMPT": true,
	"CLOUD_RUN_TASK_COUNT": true, "CLOUD_RUN_WORKER_POOL": true, "CLOUD_RUN_WORKER_POOL_REVISION": true,
}

var (
	containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	quantity      = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([kMGT]i?|Ki)?$`)
)

// checkContainers refuses declarations that cannot run. ingress says that one of them takes requests.
func checkContainers(where string, cs []*runpb.Container, volumes int, ingress bool) error {
	bad := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, "%s: %s", where, fmt.Sprintf(format, args...))
	}
	if len(cs) == 0 || len(cs) > maxContainers {
		return bad("%d containers, want 1 to %d", len(cs), maxContainers)
	}
	if volumes > 0 {
		return bad("the twin of Cloud Run mounts no volumes; give files by path, secrets by variable")
	}
	names, ports := make(map[string]bool), 0
	for i, c := range cs {
		at := fmt.Sprintf("container %d", i)
		if c.GetName() != "" {
			at = fmt.Sprintf("container %q", c.GetName())
		}
		switch {
		case c.GetName() != "" && !containerName.MatchString(c.GetName()):
			return bad("%s: the name has other than lower-case letters, digits and hyphens, or over 63 of them", at)
		case c.GetName() == "" && len(cs) > 1 && len(c.GetDependsOn()) > 0, names[c.GetName()] && c.GetName() != "":
			return bad("%s: the name is missing or taken", at)
		case c.GetImage() == "":
			return bad("%s: it has no image", at)
		case len(c.GetPorts()) > 1:
			return bad("%s: %d ports, want at most 1", at, len(c.GetPorts()))
		case len(c.GetVolumeMounts()) > 0:
			return bad("%s: the twin of Cloud Run mounts no volumes", at)
		}
		names[c.GetName()] = true
		ports += len(c.GetPorts())
		if err := checkEnv(c.GetEnv()); err != nil {
			return bad("%s: %s", at, err)
		}
		if err := checkArgs(append(c.GetCommand(), c.GetArgs()...)); err != nil {
			return bad("%s: %s", at, err)
		}
		if m := c.GetResources().GetLimits()["memory"]; m != "" {
			if _, err := parseBytes(m); err != nil {
				return bad("%s: memory: %s", at, err)
			}
		}
	}
	if ingress && len(cs) > 1 && ports != 1 {
		return bad("%d containers have a port, want exactly 1: it takes the requests", ports)
	}
	if _, err := startOrder(cs); err != nil {
		return bad("%s", err)
	}
	return nil
}

func checkEnv(env []*runpb.EnvVar) error {
	if len(env) > maxEnv {
		return fmt.Errorf("%d variables, want at most %d", len(env), maxEnv)
	}
	bytes, seen := 0, make(map[string]bool)
	for _, v := range env {
		name := v.GetName()
		switch {
		case name == "" || len(name) > maxEnvName || strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("a variable is named %.100q", name)
		case strings.ContainsRune(v.GetValue(), 0):
			return fmt.Errorf("variable %.100q: the value has a NUL byte", name)
		case seen[name]:
			return fmt.Errorf("variable %.100q: it is there twice", name)
		case reserved[name]:
			return fmt.Errorf("variable %.100q: the platform sets it: the name is reserved", name)
		}
		seen[name] = true
		bytes += len(name) + len(v.GetValue())
	}
	if bytes > maxEnvBytes {
		return fmt.Errorf("%d bytes of variables, want at most %d", bytes, maxEnvBytes)
	}
	return nil
}

func checkArgs(args []string) error {
	bytes := 0
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("an argument has a NUL byte")
		}
		bytes += len(a)
	}
	if len(args) > maxArgs || bytes > maxArgBytes {
		return fmt.Errorf("%d arguments of %d bytes, want at most %d of %d", len(args), bytes, maxArgs, maxArgBytes)
	}
	return nil
}

// parseBytes reads a quantity such as 512Mi.
func parseBytes(s string) (int64, error) {
	m := quantity.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%.40q: want a quantity such as 512Mi", s)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q: want a quantity such as 512Mi", s)
	}
	unit, base := m[2], 1000.0
	if strings.HasSuffix(unit, "i") {
		base = 1024
	}
	if unit != "" {
		n *= math.Pow(base, float64(1+strings.IndexByte("kMGT", strings.Replace(unit, "K", "k", 1)[0])))
	}
	if n < 1 || n > 1<<50 {
		return 0, fmt.Errorf("%.40q: out of range", s)
	}
	return int64(n), nil
}

// startOrder is the containers' indexes such that each comes after those it depends on.
func startOrder(cs []*runpb.Container) ([]int, error) {
	at := make(map[string]int, len(cs))
	for i, c := range cs {
		if c.GetName() != "" {
			at[c.GetName()] = i
		}
	}
	var order []int
	state := make([]int, len(cs)) // 1 while its dependencies are visited, 2 when it is placed
	var visit func(i int) error
	visit = func(i int) error {
		switch state[i] {
		case 1:
			return fmt.Errorf("container %q: it depends on itself, be it through others", cs[i].GetName())
		case 2:
			return nil
		}
		state[i] = 1
		for _, name := range cs[i].GetDependsOn() {
			j, ok := at[name]
			if !ok {
				return fmt.Errorf("container %q: it depends on %.80q, which is not there", cs[i].GetName(), name)
			}
			if err := visit(j); err != nil {
				return err
			}
		}
		state[i] = 2
		order = append(order, i)
		return nil
	}
	for i := range cs {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// ingressOf is the index of the container that takes requests.
func ingressOf(cs []*runpb.Container) int {
	for i, c := range cs {
		if len(c.GetPorts()) > 0 {
			return i
		}
	}
	return 0
}

// resolve is the command that an image stands for.
func (t *Twin) resolve(image string) ([]string, error) {
	if command, ok := t.opts.Images[image]; ok {
		return command, nil
	}
	bare, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndexByte(bare, ':'); i > strings.LastIndexByte(bare, '/') {
		bare = bare[:i]
	}
	if command, ok := t.opts.Images[bare]; ok {
		return command, nil
	}
	if t.opts.Image != nil {
		command, err := t.opts.Image(image)
		switch {
		case err != nil:
			return nil, status.Errorf(codes.NotFound, "Image '%.300s' not found: %s", image, err)
		case len(command) > 0:
			return command, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Image '%.300s' not found.", image)
}

// haveImages refuses containers whose image is not known.
func (t *Twin) haveImages(cs []*runpb.Container) error {
	for _, c := range cs {
		if _, err := t.resolve(c.GetImage()); err != nil {
			return err
		}
	}
	return nil
}

// commandOf is what a container runs: its command, or else the image's, and its arguments.
func (t *Twin) commandOf(c *runpb.Container) ([]string, error) {
	command := c.GetCommand()
	if len(command) == 0 {
		var err error
		if command, err = t.resolve(c.GetImage()); err != nil {
			return nil, err
		}
	}
	return append(command[:len(command):len(command)], c.GetArgs()...), nil
}

// declaredEnv is the environment that a container declares, with the values of secrets.
func (t *Twin) declaredEnv(c *runpb.Container) (map[string]string, error) {
	env := make(map[string]string, len(c.GetEnv()))
	for _, v := range c.GetEnv() {
		ref := v.GetValueSource().GetSecretKeyRef()
		if ref == nil {
			env[v.GetName()] = v.GetValue()
			continue
		}
		name := lastID(ref.GetSecret())
		value, ok := t.opts.Secrets[name+"/"+ref.GetVersion()]
		if !ok {
			value, ok = t.opts.Secrets[name]
		}
		if !ok {
			return nil, status.Errorf(codes.FailedPrecondition, "variable %.100q: there is no secret %.100q", v.GetName(), name)
		}
		env[v.GetName()] = value
	}
	return env, nil
}

// dirOf is where a container runs.
func (t *Twin) dirOf(c *runpb.Container) string {
	if dir := c.GetWorkingDir(); filepath.IsAbs(dir) || t.opts.Dir == "" {
		return dir
	}
	return filepath.Join(t.opts.Dir, c.GetWorkingDir())
}

// seconds is a duration as the API's messages tell it.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + "s" }
