// Command microvmd is the daemon: it owns the sandboxes of one host and serves
// the API. It runs as root. See docs/architecture.md.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/daemon"
)

// version is set by the linker.
var version = "dev"

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	s := newSettings()
	var config string
	cmd := &cobra.Command{
		Use:   "microvmd",
		Short: "Run untrusted code in microVMs: the daemon",
		Long: `microvmd owns the sandboxes of this host and serves the API on a Unix socket
(root only, no key) and on a TCP address (always with a key).

The first start makes an admin key and puts it into admin.key in the state
directory, beside secret.key, under which environments are stored. What the
daemon needs on the host is put there by "microvm setup"; "microvm doctor" says
what is missing.

Every flag but --config is a key of the configuration file too. A flag overrides
the environment, which overrides the file. SIGHUP reads the file again: settings
marked [live] change without a restart. See docs/operating.md.`,
		Example: `  microvmd
  microvmd --listen 127.0.0.1:7080 --slots 32 --mem-mib 16384`,
		Args:          cobra.NoArgs,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hangup := make(chan os.Signal, 1)
			signal.Notify(hangup, syscall.SIGHUP) // first: until then it would end us
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			// The heap is small and guests want the memory: collect early.
			debug.SetGCPercent(50)
			return run(ctx, newSources(cmd.Flags()), hangup)
		},
	}
	cmd.Flags().AddFlagSet(s.flags)
	cmd.Flags().StringVar(&config, "config", defaultFile, `configuration file, YAML; "" is none (default $`+variables["config"]+`)`)
	cmd.SetContext(context.Background())
	return cmd
}

// run runs the daemon with what the sources say, and asks them again on each
// hangup.
func run(ctx context.Context, from *sources, hangup <-chan os.Signal) error {
	s, err := from.load()
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(s.level)
	logger := newLogger(level, s.logFormat)
	s.Version, s.Logger, s.Notify = version, logger, from.notify
	r := &reloader{from: from, log: logger, level: level, now: s}
	r.tell(s)
	return daemon.Run(ctx, s.Config, hangup, r.reload)
}

func newLogger(level slog.Leveler, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}
