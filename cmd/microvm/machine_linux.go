package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/machine"
)

// machineFiles names the artifacts that "machine start" puts into the emulated host.
var machineFiles func(context.Context) ([]machine.File, error)

// newMachineCommand is "microvm machine": the emulated host.
func newMachineCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "machine",
		Short: "An emulated host, for where there is no KVM",
		Long: `A machine is a whole host in software emulation, with KVM inside it: sandboxes run in it where this machine has no
hardware virtualisation. It is slow (guest code at about 1/20 of native speed), needs root, and nothing gets out of it.`,
		Args: cobra.NoArgs,
	}
	c.PersistentFlags().StringVar(&name, "name", machine.DefaultName, "name of the machine")
	c.AddCommand(newMachineStart(&name), newMachineStop(&name), newMachineStatus(&name), newMachineShell(&name), newMachinePush(&name), newMachineLogs(&name), newMachineDelete(&name), newMachineKeeper())
	return c
}

// machineConfig is what every verb shares. The directories come from the environment, where they are set.
func machineConfig(name string, progress io.Writer) machine.Config {
	cache, _ := cacheDir("") // without one machine.Open says what is wanted
	return machine.Config{Name: name, Dir: os.Getenv("MICROVM_MACHINE_DIR"), Cache: cache, Progress: progress}
}

func openMachine(cmd *cobra.Command, name string) (*machine.Machine, error) {
	return machine.Open(machineConfig(name, cmd.ErrOrStderr()))
}

// machineExit carries the exit code of a command that ran in the host; main exits with it and prints nothing.
type machineExit int

func (e machineExit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitCode is the code to exit with.
func (e machineExit) ExitCode() int { return int(e) }
