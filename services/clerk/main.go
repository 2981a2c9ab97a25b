// Clerk is the agents of the invoice-intake workflow of the worked example: which one it is, each run says.
package main

import (
	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/clerk"
)

func main() { agent.MainOf(clerk.Agents()) }
