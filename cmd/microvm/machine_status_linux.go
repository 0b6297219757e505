package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/machine"
)

func newMachineStatus(name *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Say what state the machine is in, and why",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: want table or json", output)
			}
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			s, err := m.Status(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return printMachineStatus(cmd, s)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func printMachineStatus(cmd *cobra.Command, s machine.Status) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(w, "%s\t%s\n", label, text)
		}
	}
	state := string(s.State)
	if s.Reason != "" {
		state += ": " + s.Reason
	}
	row("name", "%s", s.Name)
	row("state", "%s", state)
	if s.State == machine.StateRunning {
		row("pid", "%d (keeper %d)", s.PID, s.KeeperPID)
		row("uptime", "%s", (time.Duration(s.UptimeSeconds) * time.Second))
		row("ports", "127.0.0.1:%d to SSH, 127.0.0.1:%d to the API", s.SSHPort, s.APIPort)
	} else if s.Ended != nil {
		row("ended", "%s", s.Ended.Format(time.RFC3339))
	}
	if s.State != machine.StateAbsent {
		row("memory", "%d MiB", s.MemoryMiB)
		row("cores", "%d", s.Cores)
		row("disk", "%d GiB, %d MiB of them used here", s.DiskGiB, s.DiskUsedBytes>>20)
	}
	row("qemu", "%s", s.QEMURelease)
	row("host kernel", "%s", s.HostKernel)
	row("url", "%s", s.URL)
	row("directory", "%s", s.Directory)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Console) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", strings.Join(s.Console, "\n"))
	}
	return nil
}
