// Ledger is the instance of the worked example: the single writer of a book
// that enters each invoice once.
//
// The book is the state of the run's session. It is saved with each turn, in
// one write with the turn's result, so the process can be killed at any instant:
// either the turn counts and its entry is in the book, or neither. Nothing is
// kept between turns, which leaves nothing to snapshot when the process stops.
package main

import (
	"context"
	"errors"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice/book"
)

func main() { agent.Main(turn) }

// turn answers one request from the session's book, and leaves there what it
// posts. A turn that is run again, its first attempt lost, posts nothing twice.
func turn(_ context.Context, r *agent.Run, in book.Request) (book.Reply, error) {
	b, err := agent.SessionOf[book.Book](r)
	if err != nil {
		return book.Reply{}, err
	}
	reply, err := b.Do(in)
	switch {
	case errors.Is(err, book.ErrInvalid):
		return reply, agent.Fail("PostingInvalid", err)
	case errors.Is(err, book.ErrConflict):
		return reply, agent.Fail("EntryConflict", err)
	case errors.Is(err, book.ErrFull):
		return reply, agent.Fail("BookFull", err)
	}
	return reply, err
}
