package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newSandboxTouchCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "touch SANDBOX",
		Short: "Keep a sandbox from idling",
		Long: `Counts as use of a running sandbox, so that its idle time begins anew, and prints
its id. Programs that microvm exec runs and files that microvm cp moves do the same
by themselves. The TTL goes on; see microvm sandbox extend.`,
		Example: `  microvm sandbox touch work
  while sleep 60; do microvm sandbox touch work || break; done`,
		Args:              oneArg("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			id, err := resolve(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			sb, err := client.Sandboxes.Touch(cmd.Context(), id)
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), sb)
			}
			return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(sb.ID)))
		},
	}
}
