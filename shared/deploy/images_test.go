package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envImages is the folder to keep the built images in, as OCI layouts. `make images` sets it; without it nothing is built.
const envImages = "ERRAND_IMAGES"

const ko = "github.com/google/ko@v0.19.1"

// start is how a command shows that its image can start: what it is told, and what it then does.
type start struct {
	args  []string
	env   []string
	path  string // answers 2xx, or serves any answer when it ends with "?"
	says  string // or it ends, having said this
	fails bool   // and its exit code is not 0
}

// starts is by name of the image; every command of the repository stands here.
var starts = map[string]start{
	"errand":    {args: []string{"version"}, says: "errand"},
	"control":   {env: []string{"ERRAND_STORE=memory", "ERRAND_RUNTIME=none"}, path: "/health/ready"},
	"checker":   {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
	"concierge": {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
	"ledger":    {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
	"functions": {env: []string{"FUNCTION_TARGET=tick", "ERRAND_URL=http://127.0.0.1:9"}, path: "/?"},
	"worker":    {says: "ERRAND_TARGET", fails: true}, // it has no door, and names what it is not told
	"reconcile": {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
	"model":     {path: "/?"},
	"clerk":     {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
	"patterns":  {env: []string{"ERRAND_PROTOCOL=http"}, path: "/?"},
}

// commands of the repository, by name of their image. Those below shared/ are parts of tests.
func commands(t *testing.T) map[string]string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, "./...")
	list.Dir = root(t)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]string{}
	for _, path := range strings.Fields(string(out)) {
		if !strings.Contains(path, "/shared/") {
			found[path[strings.LastIndex(path, "/")+1:]] = path
		}
	}
	return found
}

// root is the top of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEveryCommandHasAWayToShowThatItStarts(t *testing.T) {
	for name := range commands(t) {
		if _, ok := starts[name]; !ok {
			t.Errorf("%s: no row in starts says how its image shows that it starts", name)
		}
	}
}

// TestImages builds the image of every command, on a base that needs no network, and starts each as a user that is not
// root, from nothing but what the image has in it.
func TestImages(t *testing.T) {
	folder := os.Getenv(envImages)
	if folder == "" {
		t.Skipf("%s is not set: make images builds them", envImages)
	}
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(root(t), folder)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	// 1. Build. ko makes a reference of the folder's name as it is given, and references have no capitals: as seen from the
	// top of the repository, the path says nothing of where that is.
	found := commands(t)
	layout, err := filepath.Rel(root(t), folder)
	if err != nil || layout != strings.ToLower(layout) {
		t.Fatalf("%s=%s: name a folder in this repository, in small letters (%v)", envImages, folder, err)
	}
	args := []string{"run", ko, "build", "-B", "--push=false", "--sbom=spdx", "--sbom-dir", filepath.Join(folder, "sbom"), "--oci-layout-path", layout}
	for _, name := range sorted(found) {
		args = append(args, found[name])
	}
	build := exec.CommandContext(t.Context(), "go", args...)
	build.Dir = root(t)
	build.Env = append(os.Environ(), "KO_DOCKER_REPO=errand.invalid", "KO_DEFAULTBASEIMAGE="+serveBase(t))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("ko build: %v\n%s", err, out)
	}
	// 2. What is there: every command once.
	images, err := readLayout(folder)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(images); !slices.Equal(got, sorted(found)) {
		t.Fatalf("images of %q were built, want %q", got, sorted(found))
	}
	// 3. Each starts.
	for _, i := range images {
		t.Run(i.name(), func(t *testing.T) {
			if user, _, _ := strings.Cut(i.User, ":"); user != strconv.Itoa(nobody) {
				t.Errorf("the image's user is %q, want %d", i.User, nobody)
			}
			if found, err := filepath.Glob(filepath.Join(folder, "sbom", i.name()+"*.spdx.json")); err != nil || len(found) != 1 {
				t.Errorf("%d bills of materials, %v; want one", len(found), err)
			}
			tryImage(t, i, starts[i.name()])
		})
	}
}

func sorted(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// tryImage unpacks the image and starts it: in its own root and as its own user where this process is root.
func tryImage(t *testing.T, i *image, s start) {
	t.Helper()
	dir := t.TempDir()
	if err := i.unpack(dir); err != nil {
		t.Fatal(err)
	}
	// Folders of a test are for its user alone; the image's user has to pass through them.
	for d := dir; d != filepath.Dir(os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o755) //nolint:gosec // only the image is in it
	}
	port := freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	program := filepath.Join(dir, i.Entrypoint[0])
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		program = i.Entrypoint[0]
		attr.Chroot = dir
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	cmd := exec.CommandContext(ctx, program, s.args...)
	cmd.Path = program // it is not where this process would look
	cmd.Err = nil
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	cmd.Env = slices.Concat(i.Env, []string{"PORT=" + port}, s.env)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", i.Entrypoint, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if s.path == "" {
		err := <-ended
		if exit := new(exec.ExitError); s.fails != errors.As(err, &exit) || !strings.Contains(said.String(), s.says) {
			t.Errorf("it ended with %v and said %q; want it to say %q", err, said.String(), s.says)
		}
		return
	}
	path, anyAnswer := strings.CutSuffix(s.path, "?")
	err := answers(ctx, "http://127.0.0.1:"+port+path, anyAnswer, ended)
	cancel() // which asks it to end
	if err == nil {
		<-ended
	}
	if err != nil {
		t.Errorf("%v; it said %q", err, said.String())
	}
}

// answers waits until the address answers.
func answers(ctx context.Context, url string, anyAnswer bool, ended <-chan error) error {
	last := errors.New("not asked yet")
	for pause := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before it answered: %w", errors.Join(err, last))
		case <-ctx.Done():
			return fmt.Errorf("%s: no answer in time: %w", url, last)
		case <-pause.C:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err
			continue
		}
		_ = res.Body.Close()
		if anyAnswer || res.StatusCode/100 == 2 {
			return nil
		}
		last = errors.New(res.Status)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
