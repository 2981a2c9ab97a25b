// Package trigger makes submissions of what arrives from outside: the messages of Pub/Sub, in each of the forms in which
// they come, and plain HTTP requests. There is this one mapper for all doors: the push routes of the control plane, the
// functions beside it, and the replay of dead letters.
//
// A message that cannot become a run now and never will is refused with a *[Poison]; nothing else is. The same message
// gives the same submission however often it comes, so that its repeats meet the first.
//
// Layer 3: it imports fleet and expr, and does no I/O.
package trigger

import (
	"errors"
	"fmt"
)

// Poison is a message that no repeat will make better.
type Poison struct {
	Path    string // of the part that is wrong, such as message.messageId or spec.run.input
	Message string // repeats nothing of the message's data
}

func (p *Poison) Error() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

func poison(path, format string, args ...any) error {
	return &Poison{path, fmt.Sprintf(format, args...)}
}

// IsPoison returns the Poison in an error, or nil.
func IsPoison(err error) *Poison {
	p, _ := errors.AsType[*Poison](err)
	return p
}
