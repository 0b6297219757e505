package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newExecutionCommand(g *globals) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "execution",
		Aliases: []string{"exe"},
		Short:   "List, show, follow, attach to and cancel executions",
		Long: `An execution is one program that was started in a sandbox, by microvm exec or by
any other client. It goes on without anybody who follows it, and it and the end of
its output (1 MiB of each stream) stay readable for a while after its end, and
after its sandbox'. SANDBOX is an id or a name; one that has stopped is found by
its id. EXECUTION is an id.`,
		Example: `  id=$(microvm exec -d work -- make test)
  microvm execution logs -f work $id
  microvm execution cancel work $id --signal TERM`,
	})
	cmd.AddCommand(
		newExecutionListCommand(g), newExecutionGetCommand(g), newExecutionLogsCommand(g),
		newExecutionAttachCommand(g), newExecutionCancelCommand(g),
	)
	return cmd
}

// executionArgs wants a sandbox and an execution.
func executionArgs(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usage("SANDBOX and EXECUTION are missing")
	case 1:
		return hint(usage("EXECUTION is missing"), "microvm execution ls "+args[0])
	case 2:
		return nil
	default:
		return usage("only one EXECUTION can be given; %q is too many", args[2])
	}
}

// completeExecution completes a sandbox, and then an execution of it.
func (g *globals) completeExecution(only func(microvm.Execution) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return g.completeSandboxes(cmd, args, word)
		case 1:
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return g.completions(func(ctx context.Context, client *microvm.Client) []cobra.Completion {
			id, err := resolve(ctx, client, args[0])
			if err != nil {
				return nil
			}
			list, err := client.Executions.List(ctx, id, microvm.ListExecutionsParams{Limit: new(100)})
			if err != nil {
				return nil
			}
			var words []cobra.Completion
			for _, exe := range list.Data {
				if only(exe) {
					words = append(words, cobra.CompletionWithDesc(clean(exe.ID), commandOf(exe)+", "+clean(string(exe.Status))))
				}
			}
			return words
		})
	}
}

func anyExecution(microvm.Execution) bool         { return true }
func runningExecution(exe microvm.Execution) bool { return !exe.Ended() }

// commandOf is the program and its arguments in one line.
func commandOf(exe microvm.Execution) string {
	return clean(strings.Join(append([]string{exe.Cmd}, exe.Args...), " "))
}

// outcomeOf is how an execution ended: the code or signal of the program, or why
// it did not get to answer.
func outcomeOf(exe microvm.Execution) string {
	var parts []string
	switch {
	case exe.ExitCode != nil:
		parts = append(parts, "code "+strconv.Itoa(*exe.ExitCode))
	case exe.Signal != nil:
		parts = append(parts, clean(*exe.Signal))
	}
	if exe.Reason != nil && string(*exe.Reason) != string(exe.Status) {
		parts = append(parts, clean(string(*exe.Reason)))
	}
	if exe.OOMKilled {
		parts = append(parts, "out of memory")
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// oneExecution finds the execution that the arguments name.
func oneExecution(cmd *cobra.Command, g *globals, args []string) (client *microvm.Client, sandbox, id string, err error) {
	if client, err = g.client(); err != nil {
		return nil, "", "", err
	}
	sandbox, err = resolve(cmd.Context(), client, args[0])
	return client, sandbox, args[1], err
}
