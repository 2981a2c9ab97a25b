// Patterns is every agent of the fleets in examples/patterns: which one it is, each run says.
package main

import (
	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/patterns"
)

func main() { agent.MainOf(patterns.Agents()) }
