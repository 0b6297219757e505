package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/machine"
)

func newMachineStart(name *string) *cobra.Command {
	var want machine.Config
	c := &cobra.Command{
		Use:   "start",
		Short: "Start the machine, or bring what changed to one that runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := machineConfig(*name, cmd.ErrOrStderr())
			cfg.MemoryMiB, cfg.Cores, cfg.DiskGiB = want.MemoryMiB, want.Cores, want.DiskGiB
			cfg.Packages, cfg.Bare, cfg.Programs, cfg.Files = want.Packages, want.Bare, want.Programs, machineFiles
			for flag, value := range map[string]int{"memory-mib": cfg.MemoryMiB, "cores": cfg.Cores, "disk-gib": cfg.DiskGiB} {
				if value == 0 && cmd.Flags().Changed(flag) {
					return fmt.Errorf("--%s is 0: see the range in --help", flag)
				}
			}
			m, err := machine.Open(cfg)
			if err != nil {
				return err
			}
			started, err := m.Start(cmd.Context())
			if err != nil {
				return err
			}
			printMachineStarted(cmd, m, started)
			return nil
		},
	}
	f := c.Flags()
	f.IntVar(&want.MemoryMiB, "memory-mib", 0, fmt.Sprintf("memory in MiB, %d to %d (a new machine: %d)", machine.MinMemoryMiB, machine.MaxMemoryMiB, machine.DefaultMemoryMiB))
	f.IntVar(&want.Cores, "cores", 0, fmt.Sprintf("emulated processors, %d to %d (a new machine: %d)", machine.MinCores, machine.MaxCores, machine.DefaultCores))
	f.IntVar(&want.DiskGiB, "disk-gib", 0, fmt.Sprintf("data disk in GiB, %d to %d, a sparse file, fixed once made (a new machine: %d)", machine.MinDiskGiB, machine.MaxDiskGiB, machine.DefaultDiskGiB))
	f.StringSliceVar(&want.Packages, "packages", nil, "Debian packages to have in the host beside its own")
	f.StringVar(&want.Programs, "programs", "", "directory of microvmd, microvm and guestd (default: where this program is)")
	f.BoolVar(&want.Bare, "bare", false, "only the host: no programs, no daemon")
	return c
}

func printMachineStarted(cmd *cobra.Command, m *machine.Machine, s machine.Started) {
	w := cmd.OutOrStdout()
	switch {
	case s.Already && len(s.Pushed.Changed) == 0:
		fmt.Fprintf(w, "machine %s is running, nothing changed\n", m.Name())
	case s.Already:
		fmt.Fprintf(w, "machine %s is running: %d files brought up to date, microvmd restarted\n", m.Name(), len(s.Pushed.Changed))
	default:
		fmt.Fprintf(w, "machine %s is running, SSH answered after %.1f s\n", m.Name(), s.BootToSSH.Seconds())
	}
	if s.Endpoint.URL != "" {
		fmt.Fprintf(w, "API: %s\n", s.Endpoint.URL)
	}
}
