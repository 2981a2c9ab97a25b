package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxDocument is the size of a Document or a DocumentResult, in bytes: a full input and what earlier attempts recorded.
const MaxDocument = MaxBatchBody

// Document is one attempt as a handler is given it when it does not pull leases itself: one JSON document on standard
// input (stdio protocol), or the body of POST /run (http protocol). The attempt's token is never in it: it comes in
// ERRAND_TOKEN, or as the bearer token of the request.
type Document struct {
	// URL is where the attempt reports to; ERRAND_URL when empty.
	URL     string          `json:"url,omitempty"`
	Run     string          `json:"run"`
	Attempt string          `json:"attempt"` // id: RUN.N
	Agent   string          `json:"agent"`
	Tenant  string          `json:"tenant"`
	Mode    string          `json:"mode"`  // run, settle or compensate; run when empty
	Input   json.RawMessage `json:"input"` // null when the run has none
	// Key is the unit of work that receipts belong to: the same for every attempt and retry.
	Key         string            `json:"key"`
	Deadline    Time              `json:"deadline"`           // when the attempt must have ended
	Steps       []Step            `json:"steps,omitempty"`    // recorded by earlier attempts, in order
	Receipts    []Undoing         `json:"receipts,omitempty"` // mode compensate: what to undo, newest first
	Session     *DocumentSession  `json:"session,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Traceparent string            `json:"traceparent,omitempty"`
	Index       *int              `json:"index,omitempty"`       // completion index of a job
	Completions *int              `json:"completions,omitempty"` // of a job
}

// DocumentSession is the session whose turn the run is: its name, and its state as the last turn left it, which is
// absent on the first turn.
type DocumentSession struct {
	Name  string          `json:"name"`
	State json.RawMessage `json:"state,omitempty"`
}

// DocumentResult is what became of a Document: the last line on standard output (stdio), or the body of the answer
// (http). Exactly one of Output, Error and Park counts, Error before Park before Output; a result without any of them
// is the output null.
type DocumentResult struct {
	Output json.RawMessage `json:"output,omitempty"`
	Error  *AgentError     `json:"error,omitempty"`
	Park   *Park           `json:"park,omitempty"`
	// Usage is all of the attempt.
	Usage *Usage   `json:"usage,omitempty"`
	Score *float64 `json:"score,omitempty"`
	// Session is the state of the session after this turn; absent leaves it as it was.
	Session json.RawMessage `json:"session,omitempty"`
}

// Snapshot answers POST /snapshot, which an instance is asked before it stops: the state of every session that it
// holds, by name.
type Snapshot struct {
	Sessions map[string]json.RawMessage `json:"sessions"`
}

// Document is the lease as a handler is given it that does not pull leases itself; it reports to the server at url.
func (l *Lease) Document(url string) *Document {
	d := &Document{
		URL: url, Run: l.Run, Attempt: l.Attempt, Agent: l.Agent, Tenant: l.Tenant, Mode: l.Mode, Input: l.Input, Key: l.Key,
		Deadline: l.Deadline, Steps: l.Steps, Receipts: l.Receipts, Labels: l.Labels, Traceparent: l.Traceparent, Index: l.Index, Completions: l.Completions,
	}
	if l.Session != "" {
		d.Session = &DocumentSession{Name: l.Session, State: l.State}
	}
	return d
}

// ReadDocument reads one Document of at most MaxDocument bytes. Unknown fields are ignored, so that an older handler
// serves a newer control plane; anything but blanks after the document is an error.
func ReadDocument(r io.Reader) (*Document, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read run document: %w", err)
	}
	if len(b) > MaxDocument {
		return nil, fmt.Errorf("run document: longer than %d bytes", MaxDocument)
	}
	d := new(Document)
	if err := json.Unmarshal(b, d); err != nil {
		return nil, fmt.Errorf("run document: %w; want one JSON object {run, attempt, agent, tenant, input, …}", located(err))
	}
	switch {
	case d.Run == "":
		return nil, errors.New("run document: run: missing; want the id of the run")
	case d.Attempt == "":
		return nil, errors.New("run document: attempt: missing; want the id of the attempt, RUN.N")
	}
	if len(d.Input) == 0 {
		d.Input = json.RawMessage("null")
	}
	if d.Mode == "" {
		d.Mode = "run"
	}
	return d, nil
}

// ParseResult reads what a program wrote on standard output. Its last line is taken as a DocumentResult if it is a
// JSON object that has one of output, error and park, and nothing but the fields of a DocumentResult. Otherwise all of
// it is the output: a JSON document as it is, other text as {"text": …}, nothing as null.
func ParseResult(stdout []byte) DocumentResult {
	text := bytes.TrimSpace(stdout)
	last := text
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		last = bytes.TrimSpace(text[i+1:])
	}
	if r, ok := parseResultLine(last); ok {
		return r
	}
	switch {
	case len(text) == 0:
		return DocumentResult{Output: json.RawMessage("null")}
	case json.Valid(text):
		return DocumentResult{Output: json.RawMessage(text)}
	}
	wrapped, err := json.Marshal(map[string]string{"text": string(text)})
	if err != nil {
		wrapped = []byte("null")
	}
	return DocumentResult{Output: wrapped}
}

func parseResultLine(line []byte) (DocumentResult, bool) {
	if len(line) == 0 || line[0] != '{' {
		return DocumentResult{}, false
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var r DocumentResult
	if err := d.Decode(&r); err != nil {
		return DocumentResult{}, false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return DocumentResult{}, false
	}
	return r, r.Output != nil || r.Error != nil || r.Park != nil
}

// located says where in the document a decoding error is.
func located(err error) error {
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return fmt.Errorf("%s: %s does not fit", wrongType.Field, wrongType.Value)
	case errors.As(err, &wrongType):
		return fmt.Errorf("%s does not fit", wrongType.Value)
	case errors.As(err, &syntax):
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return err
}
