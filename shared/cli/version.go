package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/version"
)

// versions are this program's and, where one answers, the server's.
type versions struct {
	Client version.Info `json:"client"`
	Server *api.Version `json:"server,omitempty"`
	// Unreachable says why there is no server.
	Unreachable string `json:"unreachable,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and of the server",
		Args:  args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: version.Get()}
			if !clientOnly {
				c, err := a.client()
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
				defer cancel()
				// A server that is away is worth a word, not a failure: the question was about versions.
				if v.Server, err = c.Version(ctx); err != nil {
					v.Server, v.Unreachable = nil, a.explain(err)[0]
				}
			}
			view := render.View[versions]{
				Name:   func(v versions) string { return v.Client.Version },
				Detail: a.describeVersions,
			}
			return render.One(a.printer(), view, v)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "do not ask the server")
	return cmd
}

func (a *app) describeVersions(w io.Writer, v versions) error {
	line := v.Client.Version
	if v.Client.Revision != "" {
		line += fmt.Sprintf(" (%.12s%s)", v.Client.Revision, map[bool]string{true: ", modified"}[v.Client.Modified])
	}
	d := render.NewDetail(w)
	d.Field("Client", fmt.Sprintf("%s, %s, %s", line, v.Client.Go, v.Client.Platform))
	if s := v.Server; s != nil {
		d.Field("Server", fmt.Sprintf("%s, %s, at %s", s.Version, s.Go, a.serverURL()))
		d.Field("Store", s.Store)
		d.Field("Started", instant(&s.Started))
		d.Field("Leader", fmt.Sprintf("%s, epoch %d", yesNo(s.Leader), s.Epoch))
	}
	if v.Unreachable != "" {
		a.say("errand: %s", v.Unreachable)
	}
	return d.Err()
}
