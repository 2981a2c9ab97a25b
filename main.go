// Command errand runs each execution of an AI agent as a managed workload. See "errand --help".
package main

import (
	"os"

	"github.com/errand-run/errand/shared/cli"
	"github.com/errand-run/errand/shared/runtime/process"
)

func main() {
	process.Warden()
	os.Exit(cli.Main(os.Args[1:]))
}
