package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// path of the endpoint, below the base address.
const path = "/v1/chat/completions"

// callLimit bounds one question, its answer included.
const callLimit = 2 * time.Minute

// maxAfter is the longest Retry-After that is passed on.
const maxAfter = time.Hour

type completionRequest struct {
	Model       string    `json:"model"`
	Messages    []Message `json:"messages"`
	Temperature float64   `json:"temperature"`
}

type completionResponse struct {
	Object  string   `json:"object"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   usage    `json:"usage"`
}

type choice struct {
	Index        int     `json:"index"`
	Message      Message `json:"message"`
	FinishReason string  `json:"finish_reason"`
}

type usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// client asks a model over HTTP.
type client struct {
	url, name, key string
	http           *http.Client
}

func newClient(base, name, key string) *client {
	return &client{base + path, name, key, &http.Client{Timeout: callLimit}}
}

// Answer asks once: whether to ask again is for the caller, who knows its budget.
func (c *client) Answer(ctx context.Context, conversation []Message) (Answer, error) {
	if err := check(conversation); err != nil {
		return Answer{}, &Error{Problem: err.Error()}
	}
	// 1. Ask, for the same answer each time as far as the model allows.
	body, err := json.Marshal(completionRequest{Model: c.name, Messages: conversation})
	if err != nil {
		return Answer{}, &Error{Problem: err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, &Error{Problem: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return Answer{}, context.Cause(ctx)
		}
		return Answer{}, &Error{Passing: true, Problem: err.Error()}
	}
	defer resp.Body.Close()
	// 2. What it says. The text of a refusal may repeat the conversation, and stays out of errors.
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return Answer{}, &Error{Status: resp.StatusCode, Passing: true, Problem: "read the answer: " + err.Error()}
	}
	if resp.StatusCode != http.StatusOK {
		return Answer{}, refusal(resp)
	}
	var out completionResponse
	switch err := json.Unmarshal(text, &out); {
	case len(text) > maxBody:
		return Answer{}, &Error{Status: resp.StatusCode, Problem: fmt.Sprintf("its answer has more than %d bytes", maxBody)}
	case err != nil:
		return Answer{}, &Error{Status: resp.StatusCode, Passing: true, Problem: "its answer is no JSON of a chat completion"}
	case len(out.Choices) == 0 || out.Choices[0].Message.Content == "":
		return Answer{}, &Error{Status: resp.StatusCode, Passing: true, Problem: "its answer has no choice with a text"}
	case len(out.Choices[0].Message.Content) > MaxText:
		return Answer{}, &Error{Status: resp.StatusCode, Problem: fmt.Sprintf("its text has %d bytes; at most %d", len(out.Choices[0].Message.Content), MaxText)}
	}
	name := out.Model
	if name == "" {
		name = c.name
	}
	return Answer{
		Text: out.Choices[0].Message.Content, Model: name,
		InputTokens: max(out.Usage.PromptTokens, 0), OutputTokens: max(out.Usage.CompletionTokens, 0),
	}, nil
}

func refusal(resp *http.Response) *Error {
	e := &Error{
		Status:  resp.StatusCode,
		Passing: resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500,
		Problem: "it answers " + resp.Status,
	}
	if seconds, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		e.After = min(time.Duration(seconds)*time.Second, maxAfter)
	}
	return e
}

// Handler serves a model at POST /v1/chat/completions.
func Handler(m Model) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in completionRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in); err != nil {
			refuse(w, http.StatusBadRequest, "read the request: "+err.Error())
			return
		}
		answer, err := m.Answer(r.Context(), in.Messages)
		var known *Error
		switch {
		case errors.As(err, &known) && known.Status >= 400:
			refuse(w, known.Status, known.Problem)
			return
		case err != nil:
			refuse(w, http.StatusBadGateway, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(completionResponse{ // the client may have gone
			Object: "chat.completion", Model: answer.Model,
			Choices: []choice{{Message: Message{Role: "assistant", Content: answer.Text}, FinishReason: "stop"}},
			Usage:   usage{answer.InputTokens, answer.OutputTokens, answer.InputTokens + answer.OutputTokens},
		})
	})
	return mux
}

func refuse(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": problem, "code": status}})
}
