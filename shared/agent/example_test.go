package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
)

type Invoice struct {
	Vendor string   `json:"vendor"`
	Lines  []string `json:"lines"`
}

type Report struct {
	Lines int    `json:"lines"`
	Mail  string `json:"mail"`
}

// A whole agent: the program's main is one line.
func ExampleMain() {
	extract := func(ctx context.Context, r *agent.Run, in Invoice) (Report, error) {
		// Recorded before the next line runs; a later attempt gets the record.
		lines, err := agent.Step(ctx, r, "parse", func(context.Context) (int, error) {
			if len(in.Lines) == 0 {
				return 0, agent.Fail("EMPTY_INVOICE", errors.New("no lines"))
			}
			return len(in.Lines), nil
		})
		if err != nil {
			return Report{}, err
		}
		// At most once for the unit of work, over all attempts and retries.
		mail, err := agent.Once(ctx, r, "mail:"+in.Vendor, agent.Effect[string]{
			Request:   map[string]any{"to": in.Vendor, "lines": lines},
			Do:        func(ctx context.Context, key string) (string, error) { return send(ctx, key, in.Vendor) },
			OnUnknown: agent.Ask,
		})
		return Report{Lines: lines, Mail: mail}, err
	}
	_ = func() { agent.Main(extract) } // func main() { agent.Main(extract) }
}

// A program that is two agents: the name in the manifest says which one a run is of.
func ExampleMainOf() {
	count := func(_ context.Context, _ *agent.Run, in Invoice) (int, error) { return len(in.Lines), nil }
	greet := func(_ context.Context, _ *agent.Run, name string) (string, error) { return "Dear " + name, nil }
	_ = func() { // func main()
		agent.MainOf(map[string]agent.Agent{
			"invoice-count": agent.Of(count),
			"invoice-greet": agent.Of(greet),
		})
	}
}

func send(_ context.Context, key, _ string) (string, error) { return "sent with " + key, nil }

// Errors say how the run goes on, however deep they are wrapped.
func ExampleFailed() {
	show := func(err error) {
		e := agent.Failed(err).Err
		final := e.Retryable != nil && !*e.Retryable
		fmt.Printf("class=%s code=%s final=%t message=%s\n", e.Class, e.Code, final, e.Message)
	}
	show(errors.New("disk full"))
	show(fmt.Errorf("read page 3: %w", agent.Fail("BAD_PDF", errors.New("no header"))))
	show(agent.Throttled(0))
	// Output:
	// class= code= final=false message=disk full
	// class= code=BAD_PDF final=true message=read page 3: BAD_PDF: no header
	// class=throttled code= final=false message=throttled
}

// A host runs any function as a worker: what `errand exec` does with a program.
func ExampleHost() {
	server, finished := oneRun()
	defer server.Close()
	client, err := api.NewClient(api.Options{URL: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	host, err := agent.NewHost(client, agent.HostOptions{
		Worker: "w1", Agents: []string{"shout"}, Slots: 4,
		Handle: func(ctx context.Context, a *agent.Attempt) agent.Result {
			fmt.Printf("attempt %s of %s gets %s\n", a.Attempt, a.Agent, a.Input)
			return agent.Result{Output: []byte(`"HELLO"`)}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { fmt.Printf("the server got %s\n", <-finished); stop() }()
	fmt.Println("ended:", host.Run(ctx))
	// Output:
	// attempt r1.1 of shout gets "hello"
	// the server got "HELLO"
	// ended: <nil>
}

// oneRun is a server with one run in its queue.
func oneRun() (*httptest.Server, <-chan string) {
	finished := make(chan string, 1)
	var leased atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/leases", func(w http.ResponseWriter, r *http.Request) {
		// A request's context ends with its connection only once the body has been read.
		_, _ = io.Copy(io.Discard, r.Body)
		if leased.Swap(true) {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"leases":[{"attempt":"r1.1","n":1,"run":"r1","agent":"shout","mode":"run","input":"hello","token":"t"}]}`)
	})
	mux.HandleFunc("POST /v1/attempts:batch", func(w http.ResponseWriter, r *http.Request) {
		var in api.ReportBatch
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, report := range in.Reports {
			if report.Type == api.ReportComplete {
				finished <- string(report.Output)
			}
		}
		_ = json.NewEncoder(w).Encode(api.ReportBatchResult{Results: make([]api.ReportResult, len(in.Reports))})
	})
	mux.HandleFunc("POST /v1/workers/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{}`) })
	return httptest.NewServer(mux), finished
}
