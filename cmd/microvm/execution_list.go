package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// shortCommand is how much of a command a table shows, in characters.
const shortCommand = 60

func newExecutionListCommand(g *globals) *cobra.Command {
	var limit int
	var running, quiet bool
	cmd := &cobra.Command{
		Use:     "ls SANDBOX",
		Aliases: []string{"list"},
		Short:   "List the executions of a sandbox",
		Long:    `Lists what was started in a sandbox, newest first, without output.`,
		Example: `  microvm execution ls work
  microvm execution ls work --running -q
  microvm execution ls sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4 -o json`,
		Args:              oneArg("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usage("--limit must be 0 or more")
			}
			client, err := g.client()
			if err != nil {
				return err
			}
			id, err := resolve(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			list := &microvm.ExecutionList{Object: microvm.ListObjectList, URL: "/v1/sandboxes/" + id + "/executions", Data: []microvm.Execution{}}
			for exe, err := range client.Executions.All(cmd.Context(), id, microvm.ListExecutionsParams{}) {
				if err != nil {
					return err
				}
				if running && exe.Ended() {
					continue
				}
				if limit > 0 && len(list.Data) == limit {
					list.HasMore = true
					break
				}
				list.Data = append(list.Data, exe)
			}
			return printExecutions(cmd, g, list, quiet)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&running, "running", false, "only those that have not ended")
	flags.IntVar(&limit, "limit", 0, "at most this many; 0 is all")
	flags.BoolVarP(&quiet, "quiet", "q", false, "print only ids, one a line")
	return cmd
}

func printExecutions(cmd *cobra.Command, g *globals, list *microvm.ExecutionList, quiet bool) error {
	out := cmd.OutOrStdout()
	switch {
	case g.output == outputJSON:
		return printJSON(out, list)
	case quiet:
		var b strings.Builder
		for _, exe := range list.Data {
			fmt.Fprintln(&b, clean(exe.ID))
		}
		return printAll(out, b.String())
	}
	now := time.Now()
	var rows [][]string
	for _, exe := range list.Data {
		command := []rune(commandOf(exe))
		if len(command) > shortCommand {
			command = append(command[:shortCommand-2], '.', '.')
		}
		rows = append(rows, []string{
			clean(exe.ID), clean(string(exe.Status)), outcomeOf(exe), age(now.Sub(exe.Created)), tookOf(exe, now), string(command),
		})
	}
	return printTable(out, []string{"ID", "STATUS", "OUTCOME", "AGE", "TOOK", "COMMAND"}, rows)
}

// tookOf says how long an execution took, or takes so far.
func tookOf(exe microvm.Execution, now time.Time) string {
	switch {
	case exe.DurationMS != nil && *exe.DurationMS < 1000:
		return fmt.Sprintf("%dms", *exe.DurationMS)
	case exe.DurationMS != nil:
		return age(time.Duration(*exe.DurationMS) * time.Millisecond)
	case exe.Ended():
		return "-"
	default:
		return age(now.Sub(exe.Created))
	}
}
