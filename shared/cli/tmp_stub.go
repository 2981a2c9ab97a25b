package cli

import "github.com/spf13/cobra"

const defaultData = ".errand/dev.db"
const memoryData = ":memory:"

func (a *app) devCommand() *cobra.Command   { return &cobra.Command{Use: "dev"} }
func (a *app) benchCommand() *cobra.Command { return &cobra.Command{Use: "bench"} }
