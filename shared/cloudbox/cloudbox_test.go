package cloudbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/node"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/store/memory"
)

const (
	top      = "../.."
	invoices = "examples/invoices"
	// envInvoices names a folder of documents to use instead of the example's.
	envInvoices = "ERRAND_INVOICES"
	patience    = 3 * time.Minute
)

func TestMain(m *testing.M) {
	process.Warden()
	if shop := os.Getenv(envShop); shop != "" {
		buyer(shop)
	}
	if at := os.Getenv(envBook); at != "" {
		agent.Main(carry(at))
		return
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// built is the folder of the binaries, once there is one.
var built string

// binaries builds every command once.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "errand-box-bin-")
	if err != nil {
		return "", err
	}
	built = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "./services/...", "./jobs/...", "./functions/...")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// programs are those of the box among the commands.
func programs(bin string) map[string][]string {
	out := make(map[string][]string)
	for _, name := range []string{"control", "worker", "functions"} {
		out[name] = []string{filepath.Join(bin, name)}
	}
	return out
}

// example is the invoices' fleet with its commands built.
func example(t *testing.T, bin string) []fleet.Object {
	t.Helper()
	set, err := manifest.Load([]string{filepath.Join(top, invoices, "fleet.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	var out []fleet.Object
	for _, o := range set.Objects {
		out = append(out, o.Object)
		if a, ok := o.Object.(*fleet.Agent); ok {
			a.Run.Command = []string{filepath.Join(bin, filepath.Base(a.Run.Command[0]))}
			a.Run.Build, a.Run.Dir = nil, ""
		}
	}
	return out
}

// open starts a box with the example's fleet.
func open(t *testing.T, change func(*cloudbox.Options)) *cloudbox.Box {
	t.Helper()
	emulator.Need(t)
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	o := cloudbox.Options{Dir: t.TempDir(), Programs: programs(bin), Fleet: example(t, bin)}
	if testing.Verbose() {
		o.Lines = func(process, text string) { t.Logf("%s: %s", process, text) }
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := cloudbox.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the box: %v", err)
		}
		if t.Failed() {
			logs(t, o.Dir)
		}
	})
	return b
}

// logs shows the last of what the processes said.
func logs(t *testing.T, dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		t.Logf("%s:\n%s", filepath.Base(file), strings.Join(lines[max(len(lines)-15, 0):], "\n"))
	}
}

// documents are the files to work on, as inputs.
func documents(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	dir := os.Getenv(envInvoices)
	if dir == "" {
		dir = filepath.Join(top, invoices, "data")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.xml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents in %s: %v", dir, err)
	}
	docs := make(map[string]json.RawMessage, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		body, err := json.Marshal(map[string]any{"name": name, "contentType": "application/xml", "text": string(text)})
		if err != nil {
			t.Fatal(err)
		}
		docs[name] = body
	}
	return docs
}

// verdict is what is compared of a run.
type verdict struct {
	State, Reason, Code string
	Output              any
}

// work lets the fleet do its work on the documents, in all four shapes, and returns what came of each run by its key.
func work(t *testing.T, client *api.Client, docs map[string]json.RawMessage) map[string]verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := make(map[string]verdict)
	do := func(submits []api.Submit) {
		t.Helper()
		for part := range slices.Chunk(submits, 200) {
			items, err := client.SubmitBatch(ctx, part)
			if err != nil {
				t.Fatal(err)
			}
			for i, item := range items {
				if item.Error != nil {
					t.Fatalf("submit %s: %v", part[i].Key, item.Error)
				}
				r, err := client.WaitRun(ctx, item.Run.ID)
				if err != nil {
					t.Fatalf("%s: %v", part[i].Key, err)
				}
				v := verdict{State: r.State, Reason: r.Reason}
				if len(r.Attempts) > 0 {
					v.Code = r.Attempts[len(r.Attempts)-1].Code
				}
				if len(r.Output) > 0 {
					if err := json.Unmarshal(r.Output, &v.Output); err != nil {
						t.Fatal(err)
					}
				}
				out[part[i].Key] = v
			}
		}
	}
	names := slices.Sorted(maps.Keys(docs))
	// 1. Pool: each document is checked. Service: it is asked about.
	var submits []api.Submit
	for _, name := range names {
		question, err := json.Marshal(map[string]any{"question": "Who pays whom how much, and when is it due?", "document": docs[name]})
		if err != nil {
			t.Fatal(err)
		}
		submits = append(submits, api.Submit{Agent: "invoice-check", Key: "check/" + name, Input: docs[name]},
			api.Submit{Agent: "concierge", Key: "ask/" + name, Input: question})
	}
	do(submits)
	// 2. Instance: what is valid is entered in the book, twice.
	submits = nil
	var good []json.RawMessage
	for _, name := range names {
		checked, _ := out["check/"+name].Output.(map[string]any)
		if checked == nil {
			continue
		}
		good = append(good, docs[name])
		if checked["valid"] != true {
			continue
		}
		post, err := json.Marshal(map[string]any{"post": map[string]any{"id": name, "currency": checked["currency"], "amount": checked["payable"]}})
		if err != nil {
			t.Fatal(err)
		}
		submits = append(submits, api.Submit{Agent: "ledger", Key: "post/" + name, Input: post}, api.Submit{Agent: "ledger", Key: "again/" + name, Input: post})
	}
	do(submits)
	do([]api.Submit{{Agent: "ledger", Key: "balance", Input: json.RawMessage(`{"balance":"EUR"}`)}})
	// 3. Job: all of them are reconciled.
	input, err := json.Marshal(map[string]any{"documents": good, "shards": 4})
	if err != nil {
		t.Fatal(err)
	}
	do([]api.Submit{{Agent: "invoice-reconcile", Key: "reconcile", Input: input}})
	return out
}

// laptop is the same fleet in one process, as errand dev runs it.
func laptop(t *testing.T, objects []fleet.Object) *api.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Start(t.Context(), node.Options{Store: memory.Open(), Listener: l, Local: true, Ledger: filepath.Join(t.TempDir(), "processes")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Close(ctx, 5*time.Second); err != nil {
			t.Errorf("close the laptop: %v", err)
		}
	})
	client, err := api.NewClient(api.Options{URL: n.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var body []byte
	objects = append(slices.Clone(objects), &fleet.Target{
		Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Shapes: fleet.Shapes(), Capacity: fleet.Capacity{Runs: 8},
	})
	for _, o := range objects {
		text, err := manifest.ToYAML(o)
		if err != nil {
			t.Fatal(err)
		}
		body = append(append(body, "---\n"...), text...)
	}
	if _, err := client.Apply(t.Context(), body, api.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTheCloudDoesWhatTheLaptopDoes(t *testing.T) {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	docs := documents(t)
	b := open(t, nil)
	client, err := b.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	inCloud := work(t, client, docs)
	t.Logf("%d runs in the cloud took %s", len(inCloud), time.Since(began).Round(time.Millisecond))
	began = time.Now()
	onLaptop := work(t, laptop(t, example(t, bin)), docs)
	t.Logf("%d runs on the laptop took %s", len(onLaptop), time.Since(began).Round(time.Millisecond))
	if diff := cmp.Diff(onLaptop, inCloud); diff != "" {
		t.Errorf("the cloud's results differ (-laptop +cloud):\n%s", diff)
	}
	shapes := make(map[string]bool)
	for key, v := range inCloud {
		kind, _, _ := strings.Cut(key, "/")
		shapes[kind] = shapes[kind] || v.State == "succeeded"
	}
	for _, kind := range []string{"check", "ask", "post", "balance", "reconcile"} {
		if !shapes[kind] {
			t.Errorf("no run of %s has succeeded", kind)
		}
	}
}
