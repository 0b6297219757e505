package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"
)

func newMachineShell(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "shell [-- COMMAND [ARGUMENT ...]]",
		Short: "A root shell in the machine, or one command",
		Long:  "Runs a command as root in the machine, a shell when there is none. The exit code is the command's own.",
		RunE: func(cmd *cobra.Command, words []string) error {
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			tty := isTerminal(cmd.InOrStdin()) && isTerminal(cmd.OutOrStdout())
			code, err := m.Shell(cmd.Context(), tty, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words...)
			if err != nil {
				return err
			}
			if code != 0 {
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				return machineExit(code)
			}
			return nil
		},
	}
}

// isTerminal says whether a stream is a character device other than /dev/null.
func isTerminal(stream any) bool {
	f, ok := stream.(interface {
		io.Closer
		Stat() (os.FileInfo, error)
	})
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}
