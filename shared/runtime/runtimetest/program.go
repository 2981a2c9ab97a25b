package runtimetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// EnvProgram makes a test binary an agent: see Program.
const EnvProgram = "TEST_AGENT"

// Order is the input that Program understands.
type Order struct {
	// Do is one of
	//
	//	echo      answer with an Echo
	//	fail      fail with code BAD
	//	park      wait for the signal paid
	//	large     answer more than may be answered
	//	wait      wait to be told to end, then fail with code TOLD
	//	stubborn  never end, and never let a child end; both note in File that they live
	//	crash     end the process with exit code 7
	//	giveBack  over http: wait for the process to be told to end, then answer 503
	Do string `json:"do"`
	// File gets a line with the process id, appended when the order begins; a stubborn one goes on appending.
	File string `json:"file,omitempty"`
	Text string `json:"text,omitempty"`
}

// Echo is the output of an echo.
type Echo struct {
	Text    string          `json:"text"`
	Attempt string          `json:"attempt"`
	PID     int             `json:"pid"`
	State   json.RawMessage `json:"state,omitempty"`
}

// Program is an agent that does what its input orders, in all protocols. It must be called first thing in TestMain, and
// returns at once unless EnvProgram is set. EnvProgram is "agent", "deaf" for one that never listens or asks, or "broken"
// for one that ends at once.
func Program() {
	switch os.Getenv(EnvProgram) {
	case "":
		return
	case "beat":
		beatFor(os.Args[1])
	case "deaf":
		select {}
	case "broken":
		fmt.Fprintln(os.Stderr, "cannot read configuration")
		os.Exit(3)
	}
	switch protocol := os.Getenv("ERRAND_PROTOCOL"); protocol {
	case "stdio":
		speakStdio()
	case "http":
		speakHTTP()
	case "worker":
		pull()
	default:
		fmt.Fprintf(os.Stderr, "protocol %q is none\n", protocol)
		os.Exit(2)
	}
	os.Exit(0)
}

type document struct {
	URL     string `json:"url"`
	Attempt string `json:"attempt"`
	Input   Order  `json:"input"`
	Session struct {
		State json.RawMessage `json:"state"`
	} `json:"session"`
}

// answer is what a program says at the end.
func answer(ctx context.Context, d *document) (frame []byte, failed bool) {
	if d.Input.Do == "large" {
		return bytes.Repeat([]byte{'x'}, 10<<20+1), false
	}
	fields := obey(ctx, d)
	frame, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return frame, fields["error"] != nil
}

// obey carries out an order and returns the frame that answers it. ctx ends when it is told to end.
func obey(ctx context.Context, d *document) map[string]any {
	o := d.Input
	if o.File != "" {
		note(o.File)
	}
	switch o.Do {
	case "echo":
		return map[string]any{"output": Echo{Text: o.Text, Attempt: d.Attempt, PID: os.Getpid(), State: d.Session.State}, "session": o.Text}
	case "park":
		return map[string]any{"park": map[string]any{"on": "input", "name": "paid", "step": "payment"}}
	case "wait":
		<-ctx.Done()
		return map[string]any{"error": map[string]any{"code": "TOLD", "message": "told to end"}}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		child := exec.Command(os.Args[0], o.File)
		child.Env = append(os.Environ(), EnvProgram+"=beat")
		if err := child.Start(); err != nil {
			panic(err)
		}
		beatFor(o.File)
	case "crash":
		fmt.Fprintln(os.Stderr, "about to crash")
		os.Exit(7)
	}
	return map[string]any{"error": map[string]any{"code": "BAD", "message": "ordered to fail", "retryable": false}}
}

func note(file string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, os.Getpid())
}

func beatFor(file string) {
	signal.Ignore(syscall.SIGTERM)
	for {
		note(file)
		time.Sleep(2 * time.Millisecond)
	}
}

func speakStdio() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var d document
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		fmt.Fprintln(os.Stderr, "document:", err)
		os.Exit(2)
	}
	frame, failed := answer(ctx, &d)
	_, _ = os.Stdout.Write(append(frame, '\n'))
	if failed {
		os.Exit(1)
	}
}

// askEvery is how often an attempt or worker asks whether it is to end.
const askEvery = 10 * time.Millisecond

func speakHTTP() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var mu sync.Mutex
	sessions := make(map[string]any)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /snapshot", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"sessions": sessions})
	})
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		var d document
		body, _ := io.ReadAll(r.Body)
		var named struct {
			Session struct {
				Name string `json:"name"`
			} `json:"session"`
		}
		_ = json.Unmarshal(body, &named)
		if err := json.Unmarshal(body, &d); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		told, tell := context.WithCancel(ctx)
		defer tell()
		if d.Input.Do == "wait" {
			go askUntil(told, tell, d.URL+"/v1/attempts/"+d.Attempt+":heartbeat", r.Header.Get("Authorization"))
		}
		if named.Session.Name != "" {
			mu.Lock()
			sessions[named.Session.Name] = "snapshot of " + d.Input.Text
			mu.Unlock()
		}
		frame, _ := answer(told, &d)
		if d.Input.Do == "giveBack" {
			<-ctx.Done()
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(frame)
	})
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	<-ctx.Done()
	_ = server.Shutdown(context.Background())
	<-served
}

// askUntil asks control again and again until it says to end.
func askUntil(ctx context.Context, tell func(), url, authorization string) {
	for ctx.Err() == nil {
		var answer struct {
			Cancel bool `json:"cancel"`
		}
		if err := post(ctx, url, authorization, struct{}{}, &answer); err == nil && answer.Cancel {
			tell()
		}
		time.Sleep(askEvery)
	}
}

// post sends a body, JSON as it is if it is bytes, and reads the answer.
func post(ctx context.Context, url, authorization string, body, answer any) error {
	b, ok := body.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", authorization)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: status %d", url, response.StatusCode)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

type lease struct {
	Attempt string `json:"attempt"`
	Input   Order  `json:"input"`
}

// pull is a worker: it asks for leases, executes them, asks whether they are to end, and hands them back on SIGTERM.
func pull() {
	ending, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	url, worker := os.Getenv("ERRAND_URL"), os.Getenv("ERRAND_WORKER")
	slots, _ := strconv.Atoi(os.Getenv("ERRAND_SLOTS"))
	authorization := "Bearer " + os.Getenv("ERRAND_WORKER_TOKEN")
	var mu sync.Mutex
	running := make(map[string]context.CancelFunc)
	var executing sync.WaitGroup
	execute := func(l lease) {
		ctx, cancel := context.WithCancel(ending)
		mu.Lock()
		running[l.Attempt] = cancel
		mu.Unlock()
		executing.Go(func() {
			frame, _ := answer(ctx, &document{Attempt: l.Attempt, Input: l.Input})
			if ending.Err() != nil {
				frame = []byte(`{"release":"worker is ending"}`)
			}
			mu.Lock()
			delete(running, l.Attempt)
			mu.Unlock()
			_ = post(context.Background(), url+"/v1/attempts/"+l.Attempt+":end?worker="+worker, authorization, frame, new(any))
		})
	}
	for ending.Err() == nil {
		mu.Lock()
		room := slots - len(running)
		held := make([]string, 0, len(running))
		for id := range running {
			held = append(held, id)
		}
		mu.Unlock()
		var answer struct {
			Leases []lease  `json:"leases"`
			Cancel []string `json:"cancel"`
		}
		body := map[string]any{
			"worker": worker, "target": os.Getenv("ERRAND_TARGET"), "agents": []string{os.Getenv("ERRAND_AGENT")}, "max": room, "attempts": held,
		}
		// A request under way is heard out: what it brings would be lost otherwise.
		if err := post(context.Background(), url+"/v1/leases", authorization, body, &answer); err == nil {
			for _, l := range answer.Leases {
				execute(l)
			}
			mu.Lock()
			for _, id := range answer.Cancel {
				if cancel := running[id]; cancel != nil {
					cancel()
				}
			}
			mu.Unlock()
		}
		select {
		case <-ending.Done():
		case <-time.After(askEvery):
		}
	}
	executing.Wait()
}
