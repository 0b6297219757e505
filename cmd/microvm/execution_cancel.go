package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newExecutionCancelCommand(g *globals) *cobra.Command {
	var name string
	var grace seconds
	cmd := &cobra.Command{
		Use:   "cancel SANDBOX EXECUTION",
		Short: "End an execution",
		Long: `Sends a signal to a program and to all that it has started, kills what is left of
them after the grace, waits for the end and prints the execution's id. Without
--signal it is killed at once. However the program then ends, it is canceled.`,
		Example: `  microvm execution cancel work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5
  microvm execution cancel work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5 --signal TERM --grace 30s`,
		Args:              executionArgs,
		ValidArgsFunction: g.completeExecution(runningExecution),
		RunE: func(cmd *cobra.Command, args []string) error {
			how := microvm.ExecutionCancel{GraceSeconds: grace.pointer()}
			if name != "" {
				full := microvm.ExecutionCancelSignal("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
				if !full.Valid() {
					return usage("--signal must be the name of a signal, such as TERM, INT, HUP or USR1")
				}
				how.Signal = &full
			}
			if grace != 0 && (how.Signal == nil || *how.Signal == microvm.ExecutionCancelSignalSIGKILL) {
				return hint(usage("--grace needs a --signal that a program can answer"), "add --signal TERM")
			}
			client, sandbox, id, err := oneExecution(cmd, g, args)
			if err != nil {
				return err
			}
			shown := newProgress(cmd.ErrOrStderr(), g.verbose).wait("the end of " + clean(id))
			exe, err := client.Executions.Cancel(cmd.Context(), sandbox, id, how)
			if err == nil && !exe.Ended() {
				exe, err = client.Executions.Wait(cmd.Context(), sandbox, id)
			}
			shown() // the line is ours again
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), exe)
			}
			return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(exe.ID)))
		},
	}
	cmd.Flags().StringVar(&name, "signal", "", "the signal, such as TERM or INT (default KILL)")
	cmd.Flags().Var(&grace, "grace", "with a signal other than KILL: kill it after this time: seconds, or 90s, 2m (default 10s)")
	must(cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions(slices.Clone(signalNames), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

var signalNames = []string{"TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"}
