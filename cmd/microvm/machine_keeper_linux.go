package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/machine"
)

// newMachineKeeper is the background process that "machine start" leaves: QEMU's parent. Descriptor 3 is its ready pipe.
func newMachineKeeper() *cobra.Command {
	return &cobra.Command{
		Use:    "keeper DIRECTORY",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			syscall.CloseOnExec(3)
			return machine.Keep(ctx, args[0], os.NewFile(3, "ready"))
		},
	}
}
