// Package cost counts what a run costs: machine instructions and allocations on the paths that every run takes, which
// unlike times are the same on a busy machine. docs/cost.tsv has what they were when they were last recorded; its tests
// fail when they have risen since. What the cloud bills is counted likewise, with Google's emulators, in docs/cost.md. It
// has no code of its own and may test everything.
package cost
