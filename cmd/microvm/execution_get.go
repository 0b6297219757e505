package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newExecutionGetCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "get SANDBOX EXECUTION",
		Short: "Show an execution",
		Long: `Shows one execution and how it ended. Its output is shown by microvm execution
logs; -o json has the last 1 MiB of each stream, as text.`,
		Example: `  microvm execution get work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5
  microvm execution get work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5 -o json`,
		Args:              executionArgs,
		ValidArgsFunction: g.completeExecution(anyExecution),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, sandbox, id, err := oneExecution(cmd, g, args)
			if err != nil {
				return err
			}
			exe, err := client.Executions.Retrieve(cmd.Context(), sandbox, id)
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), exe)
			}
			return printExecution(cmd, exe)
		},
	}
}

// printExecution prints one execution for people.
func printExecution(cmd *cobra.Command, exe *microvm.Execution) error {
	kind := "none, or its text of the start"
	switch {
	case exe.TTY:
		kind = "a terminal"
	case exe.StdinOpen:
		kind = "open"
	}
	rows := [][2]string{
		{"id", clean(exe.ID)},
		{"sandbox", clean(exe.Sandbox)},
		{"command", commandOf(*exe)},
		{"cwd", orDash(exe.Cwd)},
		{"user", orDash(exe.User)},
		{"input", kind},
		{"timeout", fmt.Sprintf("%d s", exe.TimeoutSeconds)},
		{"status", clean(string(exe.Status))},
		{"outcome", outcomeOf(*exe)},
		{"stdout", size(exe.StdoutBytes)},
		{"stderr", size(exe.StderrBytes)},
		{"created", moment(exe.Created)},
	}
	if exe.Finished != nil {
		rows = append(rows, [2]string{"finished", moment(*exe.Finished)})
	}
	rows = append(rows, [2]string{"took", tookOf(*exe, time.Now())})
	if err := exe.Err(); err != nil && exe.Ended() {
		rows = append(rows, [2]string{"means", clean(err.Error())})
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%-8s %s\n", row[0], row[1])
	}
	return printAll(cmd.OutOrStdout(), b.String())
}
