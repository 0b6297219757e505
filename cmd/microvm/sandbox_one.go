package main

import (
	"context"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// oneSandbox is what a verb on one sandbox runs: it finds the sandbox that the
// argument names, does something with it, and prints it, as JSON or as print does.
func oneSandbox(g *globals, do func(ctx context.Context, c *microvm.Client, id string) (*microvm.Sandbox, error), print func(*cobra.Command, *microvm.Sandbox) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, err := g.client()
		if err != nil {
			return err
		}
		id, err := resolve(cmd.Context(), client, args[0])
		if err != nil {
			return err
		}
		sb, err := do(cmd.Context(), client, id)
		if err != nil {
			return err
		}
		if g.output == outputJSON {
			return printJSON(cmd.OutOrStdout(), sb)
		}
		return print(cmd, sb)
	}
}
