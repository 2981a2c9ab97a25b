package model

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
)

// Bounds of a script.
const (
	maxRules   = 1_000
	maxPattern = 2_000 // bytes of one pattern
)

// Script is a model that answers by rules. It keeps nothing from one question to the next: the same conversation gets
// the same answer.
type Script struct{ rules []rule }

// rule answers conversations that fit all its patterns.
type rule struct {
	// System fits the first system message, User the last user message; an empty one fits any.
	System string `json:"system"`
	User   string `json:"user"`
	// Answer may hold $1 or ${name} of what User captured.
	Answer string `json:"answer"`

	system, user *regexp.Regexp
}

// ReadScript reads {"rules": [{"system", "user", "answer"}]}. The first rule that fits a conversation answers it. The
// error names the rule that is wrong.
func ReadScript(text []byte) (*Script, error) {
	if len(text) > maxBody {
		return nil, fmt.Errorf("script of %d bytes: at most %d", len(text), maxBody)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var file struct {
		Rules []rule `json:"rules"`
	}
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if len(file.Rules) == 0 || len(file.Rules) > maxRules {
		return nil, fmt.Errorf("script: it has %d rules; want 1 to %d", len(file.Rules), maxRules)
	}
	for i := range file.Rules {
		if err := file.Rules[i].compile(); err != nil {
			return nil, fmt.Errorf("script: rules[%d].%w", i, err)
		}
	}
	return &Script{file.Rules}, nil
}

func (r *rule) compile() error {
	if r.Answer == "" || len(r.Answer) > MaxText {
		return fmt.Errorf("answer: it has %d bytes; want 1 to %d", len(r.Answer), MaxText)
	}
	var err error
	if r.system, err = pattern(r.System); err != nil {
		return fmt.Errorf("system: %w", err)
	}
	if r.user, err = pattern(r.User); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	return nil
}

func pattern(text string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes: at most %d", len(text), maxPattern)
	}
	return regexp.Compile("(?s)" + text)
}

// Answer gives the answer of the first rule that fits. Without one the error has status 422: no rule will fit later.
func (s *Script) Answer(_ context.Context, conversation []Message) (Answer, error) {
	if err := check(conversation); err != nil {
		return Answer{}, &Error{Status: http.StatusBadRequest, Problem: err.Error()}
	}
	// 1. What the rules look at.
	var system, user string
	read := 0
	for _, m := range conversation {
		read += len(m.Content)
		switch {
		case m.Role == "system" && system == "":
			system = m.Content
		case m.Role == "user":
			user = m.Content
		}
	}
	// 2. The first that fits.
	for i := range s.rules {
		r := &s.rules[i]
		if !r.system.MatchString(system) {
			continue
		}
		found := r.user.FindStringSubmatchIndex(user)
		if found == nil {
			continue
		}
		text := string(r.user.ExpandString(nil, r.Answer, user, found))
		if len(text) > MaxText {
			return Answer{}, &Error{Status: http.StatusUnprocessableEntity, Problem: fmt.Sprintf("rules[%d] of the script answers with %d bytes; at most %d", i, len(text), MaxText)}
		}
		return Answer{Text: text, InputTokens: tokens(read), OutputTokens: tokens(len(text)), Model: "script"}, nil
	}
	return Answer{}, &Error{Status: http.StatusUnprocessableEntity, Problem: "no rule of the script fits the conversation; set " + EnvURL + " to ask a model"}
}

// tokens is the usual estimate: four bytes each.
func tokens(bytes int) int64 { return int64(bytes+3) / 4 }
