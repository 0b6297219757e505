package main

import "github.com/spf13/cobra"

func newSandboxGetCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "get SANDBOX",
		Short: "Show a sandbox",
		Long:  `Shows one sandbox. One that has stopped is found by its id for a while.`,
		Example: `  microvm sandbox get work
  microvm sandbox get sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4 -o json`,
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
			sb, err := client.Sandboxes.Retrieve(cmd.Context(), id)
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), sb)
			}
			return printSandbox(cmd, sb)
		},
	}
}
