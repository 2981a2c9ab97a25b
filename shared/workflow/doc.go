// Package workflow executes workflows on paper: from what is declared, the input and what has ended so far it says what
// is to be done next. It does nothing itself, keeps nothing, and gives the same for the same, in whatever order things
// ended and however often it is asked.
//
// A run's progress is its outcomes: small documents, each written once, named after the stage and its visit. There is no
// other state, so a process that ends anywhere is followed by one that reads the outcomes and goes on.
//
//	STAGE#VISIT           the stage has ended
//	STAGE#VISIT/items     all calls of a fan-out have, and an agent is to merge them
//	STAGE#VISIT/3         the third round of a loop has; /3/critic: its critic has
//	STAGE#VISIT/gate      a person has said what becomes of a loop at its limit
//	STAGE#VISIT/input     a person has given the stage something else to work on
//
// What expressions see of a stage that has ended:
//
//	stages.NAME.output    what it gave; null if it was skipped
//	stages.NAME.state     succeeded or skipped
//	stages.NAME.visits    how often it has been entered
//	stages.NAME.choice    of a route: the branch; stages.NAME.answer: the answer, shortened
//	stages.NAME.calls     of a fan-out: how many there were; stages.NAME.failed: how many of them failed
//	stages.NAME.rounds    of a loop: how many there were
//
// Layer 1: it imports fleet and run. Expressions are compiled by whoever asks, see Language.
package workflow
