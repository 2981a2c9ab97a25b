// Package chaos proves, through the real server and real agents, that a run survives the death of everything at any
// instant: none is lost, no effect is doubled, every history folds to its record, and no process is left behind. It
// holds tests only.
package chaos
