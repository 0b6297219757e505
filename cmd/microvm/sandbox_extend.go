package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newSandboxExtendCommand(g *globals) *cobra.Command {
	var ttl seconds
	cmd := &cobra.Command{
		Use:   "extend SANDBOX --ttl TIME",
		Short: "Let a sandbox live longer",
		Long: `Moves the end of a running sandbox's TTL to the given time from now, and prints
its id and when it ends. One that ends later already stays as it is. What is beyond
the node's longest life, counted from the sandbox's creation, is refused. The idle
time goes on; see microvm sandbox touch.`,
		Example: `  microvm sandbox extend work --ttl 1h
  microvm sandbox extend sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4 --ttl 90m -o json`,
		Args:              oneArg("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		PreRunE: func(*cobra.Command, []string) error {
			if ttl == 0 {
				return usage("--ttl is missing")
			}
			return nil
		},
		RunE: oneSandbox(g, func(ctx context.Context, c *microvm.Client, id string) (*microvm.Sandbox, error) {
			return c.Sandboxes.Extend(ctx, id, int(ttl))
		}, func(cmd *cobra.Command, sb *microvm.Sandbox) error {
			return printAll(cmd.OutOrStdout(), fmt.Sprintf("%s expires %s\n", clean(sb.ID), moment(sb.Expires)))
		}),
	}
	cmd.Flags().Var(&ttl, "ttl", "time to live from now: seconds, or 90s, 15m, 2h")
	return cmd
}
