package main

import (
	"github.com/spf13/cobra"
)

func newMachineLogs(name *string) *cobra.Command {
	var daemon, follow bool
	var lines int
	c := &cobra.Command{
		Use:   "logs",
		Short: "The host's console, or the daemon's journal",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			if daemon {
				return m.Journal(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), lines, follow)
			}
			return m.Console(cmd.Context(), cmd.OutOrStdout(), follow)
		},
	}
	c.Flags().BoolVar(&daemon, "daemon", false, "microvmd's journal instead of the console")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	c.Flags().IntVarP(&lines, "lines", "n", 200, "lines of the journal to begin with")
	return c
}
