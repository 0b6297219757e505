package main

import (
	"context"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newSandboxGetCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "get SANDBOX",
		Short: "Show a sandbox",
		Long:  `Shows one sandbox. One that has stopped is found by its id for a while.`,
		Example: `  microvm sandbox get work
  microvm sandbox get sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4 -o json`,
		Args:              oneArg("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		RunE: oneSandbox(g, func(ctx context.Context, c *microvm.Client, id string) (*microvm.Sandbox, error) {
			return c.Sandboxes.Retrieve(ctx, id)
		}, printSandbox),
	}
}
