package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// version is set by the linker (-X main.version=..); without it the module's
// version is shown.
var version = ""

// versionTimeout bounds the question to the daemon.
const versionTimeout = 10 * time.Second

// versionResult is what version prints with -o json.
type versionResult struct {
	Object string          `json:"object"` // "version"
	Client clientVersion   `json:"client"`
	URL    *string         `json:"url"`    // where the daemon was asked; null when it was not
	Daemon *microvm.Health `json:"daemon"` // null when it was not asked or did not answer
	Error  *string         `json:"error"`  // why it did not answer
}

type clientVersion struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCommand(g *globals) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of the daemon",
		Long: `Shows the versions of this program and of the daemon that it would talk to. A
daemon that does not answer is said, and is no error.`,
		Example: `  microvm version
  microvm version --client -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := versionResult{Object: "version", Client: clientVersion{ownVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH}}
			if !clientOnly {
				if err := g.askVersion(cmd.Context(), &r); err != nil {
					r.Error = new(err.Error())
				}
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			text := fmt.Sprintf("client  %s (%s, %s/%s)\n", r.Client.Version, r.Client.Go, r.Client.OS, r.Client.Arch)
			switch {
			case r.Error != nil:
				text += "daemon  not reached: " + clean(*r.Error) + "\n"
			case r.Daemon != nil && !r.Daemon.OK:
				text += fmt.Sprintf("daemon  %s (cannot serve requests, %s)\n", clean(r.Daemon.Version), orDash(r.URL))
			case r.Daemon != nil:
				text += fmt.Sprintf("daemon  %s (%s)\n", clean(r.Daemon.Version), orDash(r.URL))
			}
			return printAll(cmd.OutOrStdout(), text)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "do not ask the daemon")
	return cmd
}

func (g *globals) askVersion(ctx context.Context, r *versionResult) error {
	e, err := g.find(os.Getenv)
	if err != nil {
		return err
	}
	r.URL = new(e.String())
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	r.Daemon, err = e.client(microvm.WithMaxRetries(0)).Health(ctx)
	return err
}

func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return strings.TrimPrefix(info.Main.Version, "v")
	}
	return "development"
}
