// Package placement decides where a run goes.
//
// A [World] is what there is: nodes (a target, or one worker of a polled target) and the runs on them. The control loop
// keeps one World and tells it what changes. A [Profile] is how to choose: filters that refuse a node with a reason,
// and scorers that rank the rest. [Profile.Place] chooses, [Profile.Explain] does the same without any shortcut and
// keeps every verdict and score.
//
// What a plugin may look at decides how often it is asked, so a profile lists plugins by that. Filters over
// declarations are asked once per agent and node, not once per run; scores over use are kept up to date where use
// changes; and a decision looks at few nodes, by bounds over blocks of 64. The result is the same as that of asking
// every plugin about every node, ties going to the node whose name comes first.
//
// Declarations (agents, targets, tenants) are immutable here: a changed one is another pointer.
//
// The package imports no clock, context or I/O. A World is for one goroutine.
package placement
