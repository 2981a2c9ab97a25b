// Package sim proves the control plane by seeded simulation: the real stages of package control over the memory store,
// on a manual clock, with clients, workers, executors and faults that one seed chooses, all in one goroutine.
//
// A seed makes a script, a list of choices. Each choice is an operation and a roll that fills in its details from what
// the world holds at that moment, so that any part of a script is a script, too: a failing one is shrunk by leaving
// choices out while it still fails. The same script gives the same trace, byte for byte.
//
// What must hold is checked in two places. Every applied write is checked as it happens, against what was there before
// it (check.go); what clients, workers and the outside world were told is kept in a ledger and compared (ledger.go).
// Both are written to be read by eye, with nothing of the product's own bookkeeping. At the end faults stop, workers
// are healthy, and every run must come to an end (heal.go).
//
// In every other world agents call others, ask people and undo what they did, and workflows do; see program.go.
//
// It imports control and what that imports; nothing but tests imports it.
package sim
