package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Document is one attempt as a program that does not pull leases is given it: on standard input, or as the body of a
// request. The attempt's token is not in it: it travels in the environment or in the request's header.
type Document struct {
	URL         string            `json:"url,omitempty"` // of the control plane
	Run         string            `json:"run"`
	Attempt     string            `json:"attempt"`
	Agent       string            `json:"agent"`
	Tenant      string            `json:"tenant"`
	Mode        string            `json:"mode"`
	Input       json.RawMessage   `json:"input"`
	Key         string            `json:"key"`
	Deadline    *string           `json:"deadline"` // RFC 3339 in UTC with milliseconds, or null
	Steps       []documentStep    `json:"steps,omitempty"`
	Receipts    []Receipt         `json:"receipts,omitempty"` // mode compensate: what to undo, newest first
	Session     *documentSession  `json:"session,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Traceparent string            `json:"traceparent,omitempty"`
	Index       *int              `json:"index,omitempty"`
	Completions *int              `json:"completions,omitempty"`
}

type documentStep struct {
	Name   string          `json:"name"`
	Seq    int             `json:"seq"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

type documentSession struct {
	Name  string          `json:"name"`
	State json.RawMessage `json:"state,omitempty"`
}

const documentTime = "2006-01-02T15:04:05.000Z"

// Document gives the attempt's document, with the control plane's address.
func (a *Assignment) Document(url string) *Document {
	d := &Document{
		URL: url, Run: a.Run, Attempt: a.ID(), Agent: a.Agent.Name(), Tenant: a.Tenant, Mode: a.Mode, Input: a.Input,
		Key: a.Unit, Labels: a.Labels, Traceparent: a.Trace, Index: a.Index, Completions: a.Completions,
	}
	if d.Mode == "" {
		d.Mode = ModeRun
	}
	if len(d.Input) == 0 {
		d.Input = json.RawMessage("null")
	}
	if a.Deadline != 0 {
		text := a.Deadline.Time().Format(documentTime)
		d.Deadline = &text
	}
	d.Receipts = a.Receipts
	for _, s := range a.Steps {
		d.Steps = append(d.Steps, documentStep(s))
	}
	if a.Session != "" {
		d.Session = &documentSession{Name: a.Session, State: a.State}
	}
	return d
}

// Encode is the document as JSON. It fails only where a value that was handed in is no JSON.
func (d *Document) Encode() ([]byte, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("document of attempt %s: %w", d.Attempt, err)
	}
	return body, nil
}

// Codes of failures that the runtime itself finds.
const (
	CodeResultInvalid = "ResultInvalid" // a result that does not say what it must
	codeTooLarge      = string(run.ResultTooLarge)
)

// MaxAnswer bounds what is read of a program's answer: a full output with a session's state and the frame around them.
const MaxAnswer = MaxResult + 4<<20

// ParseResult reads what a program answered: on standard output, or as the body of a response.
//
// The whole, else its last line, is a frame if it is an object with output, error or park and no other keys but usage,
// score and session; error counts before park before output, and null as absent but for output. Otherwise the whole is
// the output: a JSON document as it is, other text as {"text": …}, nothing as null. An output that could be taken for a
// frame is put in one. What is wrong within a frame is a failure with code ResultInvalid, never an output.
//
// The Report is of type Completed, Failed or Parked, without run and number. before is the text in front of a frame.
func ParseResult(answer []byte) (report Report, before []byte) {
	text := bytes.TrimSpace(answer)
	// 1. A frame.
	if r, ok := parseFrame(text); ok {
		return r.report(), nil
	}
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		if r, ok := parseFrame(bytes.TrimSpace(text[i+1:])); ok {
			return r.report(), text[:i]
		}
	}
	// 2. The bare output.
	switch {
	case len(text) == 0:
		text = []byte("null")
	case len(text) > MaxResult:
		return TooLarge(), nil
	case !json.Valid(text):
		text = wrap(text)
	}
	return completed(text), nil
}

// wrap makes {"text": …}, with < and its kin as they are.
func wrap(text []byte) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(map[string]string{"text": strings.ToValidUTF8(string(text), "\uFFFD")}) // of a string: cannot fail
	return bytes.TrimSpace(b.Bytes())
}

// frame is an answer that says what it is: the wire's DocumentResult, its values still unread.
type frame map[string]json.RawMessage

func parseFrame(text []byte) (frame, bool) {
	if len(text) == 0 || text[0] != '{' {
		return nil, false
	}
	var f frame
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, false
	}
	for key, value := range f {
		switch key {
		case "output":
		case "error", "park", "usage", "score", "session":
			if string(value) == "null" {
				delete(f, key)
			}
		default:
			return nil, false
		}
	}
	return f, f["output"] != nil || f["error"] != nil || f["park"] != nil
}

func completed(output json.RawMessage) Report {
	if len(output) > MaxResult {
		return TooLarge()
	}
	return Report{Type: Completed, Output: output}
}

func (f frame) report() Report {
	// 1. What it says.
	var report Report
	var err error
	switch {
	case f["error"] != nil:
		report, err = f.failed()
	case f["park"] != nil:
		report, err = f.parked()
	default:
		report = completed(f["output"])
		if f["score"] != nil {
			err = f.read("score", &report.Score, "a number")
		}
	}
	// 2. What comes along.
	if report.Type != Failed {
		report.Session = f["session"]
	}
	if f["usage"] != nil && err == nil {
		var u struct {
			InputTokens  int64   `json:"inputTokens"`
			OutputTokens int64   `json:"outputTokens"`
			USD          float64 `json:"usd"`
		}
		err = f.read("usage", &u, "an object of numbers inputTokens, outputTokens and usd")
		report.Usage = &run.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, USD: u.USD}
	}
	if err != nil {
		return Report{Type: Failed, Class: run.ClassUser, Code: CodeResultInvalid, Message: err.Error(), Final: true}
	}
	return report
}

func (f frame) read(key string, into any, want string) error {
	if err := json.Unmarshal(f[key], into); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			key += "." + wrong.Field
		}
		return fmt.Errorf("result: %s does not fit; want %s", key, want)
	}
	return nil
}

// failed reads an error as leniently as can be: what a program says of its failure must not get lost over its form.
func (f frame) failed() (Report, error) {
	report := Report{Type: Failed, Class: run.ClassUser}
	if json.Unmarshal(f["error"], &report.Message) == nil {
		return report, nil
	}
	var e struct {
		Code       any     `json:"code"`
		Message    string  `json:"message"`
		Retryable  *bool   `json:"retryable"`
		RetryAfter seconds `json:"retryAfter"`
	}
	if err := f.read("error", &e, "text, or an object of code, message, retryable and retryAfter (like \"30s\")"); err != nil {
		return Report{}, err
	}
	if e.Code != nil {
		report.Code = run.Clip(fmt.Sprint(e.Code), MaxName)
	}
	report.Message = e.Message
	report.Final = e.Retryable != nil && !*e.Retryable
	report.RetryIn = time.Duration(e.RetryAfter)
	return report, nil
}

// seconds is a wait: text such as "1m30s", or a number of seconds.
type seconds time.Duration

func (s *seconds) UnmarshalJSON(b []byte) error {
	var text fleet.Duration
	if err := json.Unmarshal(b, &text); err == nil {
		*s = seconds(max(text, 0))
		return nil
	}
	var number float64
	if err := json.Unmarshal(b, &number); err != nil {
		return &json.UnmarshalTypeError{Value: "retryAfter", Field: "retryAfter"}
	}
	*s = seconds(min(max(number, 0), maxWait.Seconds()) * float64(time.Second))
	return nil
}

const maxWait = 365 * 24 * time.Hour // bounds a wait that someone asked for, long before it overflows

func (f frame) parked() (Report, error) {
	var p struct {
		On    run.ParkOn      `json:"on"`
		Step  string          `json:"step"`
		Name  string          `json:"name"`
		Until *time.Time      `json:"until"`
		Gate  json.RawMessage `json:"gate"`

		Size     *int   `json:"size"`
		Tolerate int    `json:"tolerate"`
		Need     int    `json:"need"`
		Max      int    `json:"max"`
		Children []Call `json:"children"`
	}
	if err := f.read("park", &p, `an object of on, step, name, until (like "2026-01-31T06:00:00Z"), and for children size, tolerate, need, max and children`); err != nil {
		return Report{}, err
	}
	park := &run.Park{On: p.On, Step: p.Step, Name: p.Name, Tolerate: p.Tolerate, Need: p.Need, Size: len(p.Children)}
	if p.Size != nil && len(p.Children) == 0 {
		park.Size = *p.Size
	}
	if p.Until != nil {
		park.Until = run.At(*p.Until)
	}
	switch {
	case p.On == run.OnTimer && park.Until == 0:
		return Report{}, errors.New(`result: park.until is missing; want the time to wake, like "2026-01-31T06:00:00Z"`)
	case p.On == run.OnInput && p.Name == "":
		return Report{}, errors.New("result: park.name is missing; want the name of the signal to wait for")
	case p.On != run.OnTimer && p.On != run.OnInput && p.On != run.OnChildren && p.On != run.OnGate:
		return Report{}, fmt.Errorf("result: park.on is %.40q; want timer, input, children or gate", p.On)
	case p.On == run.OnChildren && p.Size == nil && p.Children == nil:
		return Report{}, errors.New("result: park.children is missing; want the calls to wait for, or the size of a step whose children were called before")
	case p.On == run.OnChildren && p.Size != nil && len(p.Children) > 0 && *p.Size != len(p.Children):
		return Report{}, fmt.Errorf("result: park.size is %d with %d children; want all of them, or none that were called before", *p.Size, len(p.Children))
	case p.On == run.OnChildren && (park.Size < 0 || park.Size > run.MaxChildren || p.Tolerate < 0 || p.Max < 0 || p.Need < 0 || p.Need > park.Size):
		return Report{}, fmt.Errorf("result: park on %d children, %d to succeed, %d may fail, %d at a time; want up to %d children, and no more than there are to succeed", park.Size, p.Need, p.Tolerate, p.Max, run.MaxChildren)
	case p.Gate != nil && p.On != run.OnGate:
		return Report{}, fmt.Errorf("result: park.gate is given for a park on %s", p.On)
	}
	if park.Step == "" {
		park.Step = "park"
	}
	if p.Gate != nil {
		ask, err := parseGate(p.Gate)
		return Report{Type: Parked, Park: park, Gate: ask}, err
	}
	return Report{Type: Parked, Park: park, Calls: p.Children, Max: p.Max}, nil
}

// TooLarge reports an output over MaxResult.
func TooLarge() Report {
	return Report{
		Type: Failed, Class: run.ClassUser, Code: codeTooLarge,
		Message: fmt.Sprintf("output over %d MiB; write large results to storage and return where they are", MaxResult>>20),
	}
}

// Stopped reports an attempt that ended, or was left, because it was told to stop for the given reason.
func Stopped(reason run.Reason, message string) Report {
	r := Report{Type: Failed, Class: run.ClassCanceled, Code: string(reason), Message: message}
	switch reason {
	case run.AttemptTimeout, run.DeadlineExceeded, run.QueueTimeout:
		r.Class = run.ClassTimeout
	case run.HeartbeatLost:
		r.Class = run.ClassLost
	case run.BudgetExceeded:
		r.Class = run.ClassBudget
	case run.InfrastructureFailure, run.StartFailed:
		r.Class = run.ClassInfrastructure
	}
	return r
}
