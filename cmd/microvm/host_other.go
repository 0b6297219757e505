//go:build !linux

package main

import "github.com/spf13/cobra"

// hostCommands are the verbs that make and judge a host; most need Linux.
func hostCommands() []*cobra.Command {
	return []*cobra.Command{newMachineCommand()}
}
