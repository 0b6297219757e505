package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newSandboxCreateCommand(g *globals) *cobra.Command {
	var o sandboxFlags
	cmd := &cobra.Command{
		Use:   "create IMAGE",
		Short: "Create a sandbox",
		Long: `Creates a sandbox and prints its id when it is running. It ends when its TTL is
over, or by microvm sandbox rm.`,
		Example: `  microvm sandbox create python
  microvm sandbox create python --name work --vcpus 2 --mem-mib 512 --ttl 2h --tag job=42
  id=$(microvm sandbox create base)`,
		Args:              oneArg("IMAGE"),
		ValidArgsFunction: g.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			done := newProgress(cmd.ErrOrStderr(), g.verbose).wait("a sandbox of " + clean(args[0]))
			sb, err := client.Sandboxes.Create(cmd.Context(), o.spec(cmd.Flags(), args[0]))
			done()
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), sb)
			}
			return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(sb.ID)))
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// oneArg wants exactly one argument and names it when it is not there.
func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 1:
			return nil
		case 0:
			return usage("%s is missing", what)
		default:
			return usage("only one %s can be given; %q is too many", what, args[1])
		}
	}
}
