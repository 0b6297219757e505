package main

import "github.com/spf13/cobra"

// hostCommands are the verbs that make and judge a host.
func hostCommands() []*cobra.Command {
	return []*cobra.Command{newUpCommand(), newDownCommand(), newSetupCommand(), newDoctorCommand(), newBenchCommand(), newMachineCommand()}
}
