// Package model is the language model of the example fleets: what asks one over HTTP, and a scripted one that answers by
// rules, so that the examples run without any and give the same for the same.
//
// Whatever speaks the chat completions format can stand behind it: see [FromEnvironment]. The package imports the
// standard library alone.
package model

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Environment variables that [FromEnvironment] reads.
const (
	EnvURL  = "MODEL_URL"  // base address, such as http://127.0.0.1:8090; without it the built-in script answers
	EnvName = "MODEL_NAME" // which model to ask for; "script" when empty
	EnvKey  = "MODEL_KEY"  // sent as bearer token when it is there
	// EnvKeyFile names a file that holds the key, for where a variable would be read by too many.
	EnvKeyFile = "MODEL_KEY_FILE"
)

// Bounds of a conversation and of its answer.
const (
	MaxMessages = 64
	MaxText     = 64 << 10 // bytes of one message, and of an answer
	maxBody     = 1 << 20  // bytes of a request or of a response
	maxKey      = 4 << 10
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
}

// Answer is what a model says, and what saying it took.
type Answer struct {
	Text         string
	InputTokens  int64
	OutputTokens int64
	Model        string // that answered
}

// A Model answers conversations. Safe for concurrent use.
type Model interface {
	// Answer says what comes next. An error is one of [Error], or that of the context.
	Answer(ctx context.Context, conversation []Message) (Answer, error)
}

// Error says why there is no answer.
type Error struct {
	// Status is that of the response; 0 when there was none.
	Status int
	// Passing is whether asking again may help, and After how long to wait first, 0 when nobody said.
	Passing bool
	After   time.Duration
	Problem string
}

func (e *Error) Error() string { return "ask the model: " + e.Problem }

// ErrConversation is wrapped by errors about what was asked.
var ErrConversation = errors.New("conversation cannot be sent")

func check(conversation []Message) error {
	if len(conversation) == 0 || len(conversation) > MaxMessages {
		return fmt.Errorf("%w: it has %d messages; 1 to %d may be", ErrConversation, len(conversation), MaxMessages)
	}
	for i, m := range conversation {
		switch {
		case m.Role != "system" && m.Role != "user" && m.Role != "assistant":
			return fmt.Errorf("%w: messages[%d].role %.20q; want system, user or assistant", ErrConversation, i, m.Role)
		case len(m.Content) > MaxText:
			return fmt.Errorf("%w: messages[%d] has %d bytes; at most %d", ErrConversation, i, len(m.Content), MaxText)
		case !utf8.ValidString(m.Content):
			return fmt.Errorf("%w: messages[%d] is not UTF-8", ErrConversation, i)
		}
	}
	return nil
}

//go:embed script.json
var builtIn []byte

// FromEnvironment returns the model at MODEL_URL, or the built-in script where that is not set.
func FromEnvironment(getenv func(string) string) (Model, error) {
	address := getenv(EnvURL)
	if address == "" {
		return BuiltIn()
	}
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("%s: want the address of a model, such as http://127.0.0.1:8090, without user or password", EnvURL)
	}
	name := getenv(EnvName)
	if name == "" {
		name = "script"
	}
	key := getenv(EnvKey)
	if file := getenv(EnvKeyFile); key == "" && file != "" {
		if key, err = readKey(file); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", EnvKeyFile, file, err)
		}
	}
	return newClient(strings.TrimRight(address, "/"), name, key), nil
}

func readKey(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	key := strings.TrimSpace(string(text))
	if err == nil && (key == "" || len(text) > maxKey || strings.ContainsAny(key, "\r\n")) {
		err = fmt.Errorf("want one line of at most %d bytes", maxKey)
	}
	return key, err
}

// BuiltIn is the script that the example fleets are shipped with.
func BuiltIn() (*Script, error) { return ReadScript(builtIn) }
