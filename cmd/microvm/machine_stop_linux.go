package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newMachineStop(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Shut the machine down; its data disk stays",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			was, err := m.Stop(cmd.Context())
			if err != nil {
				return err
			}
			if was {
				fmt.Fprintf(cmd.OutOrStdout(), "machine %s is stopped\n", *name)
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "machine %s was not running\n", *name)
			}
			return nil
		},
	}
}
