package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newMachineDelete(name *string) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "delete",
		Short: "Remove the machine with everything on its disk",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			if !force {
				if !isTerminal(cmd.InOrStdin()) {
					return errors.New("delete machine: nobody to ask here; --force deletes without asking")
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "Delete machine %s with everything on its disk? Type its name: ", *name)
				answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
				if err != nil || strings.TrimSpace(answer) != *name {
					return errors.New("delete machine: not confirmed, nothing deleted")
				}
			}
			if err := m.Delete(cmd.Context(), force); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "machine %s is deleted\n", *name)
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "do not ask; stop it first if it runs")
	return c
}
