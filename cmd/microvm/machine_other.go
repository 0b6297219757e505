//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newMachineCommand says that the emulated host needs Linux.
func newMachineCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "machine",
		Short: "An emulated host (Linux only)",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("start emulated host: it needs Linux")
		},
	}
}
