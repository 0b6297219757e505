package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
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
		RunE: oneSandbox(g, func(ctx context.Context, c *microvm.Client, id string) (*microvm.Sandbox, error) {
			return c.Sandboxes.Touch(ctx, id)
		}, func(cmd *cobra.Command, sb *microvm.Sandbox) error {
			return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(sb.ID)))
		}),
	}
}
