package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newSandboxRemoveCommand(g *globals) *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use:     "rm SANDBOX...",
		Aliases: []string{"delete", "remove"},
		Short:   "Delete sandboxes",
		Long: `Deletes sandboxes: their microVMs are killed at once, and what runs in them is
lost. All that can be deleted are, also when one of them fails. With --all every
sandbox of this key that has not stopped is deleted; that is asked about first,
unless --yes is given.`,
		Example: `  microvm sandbox rm work
  microvm sandbox rm sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4 work
  microvm sandbox rm --all --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return usage("--all and names do not go together")
			case !all && len(args) == 0:
				return usage("SANDBOX is missing")
			default:
				return nil
			}
		},
		ValidArgsFunction: g.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSandboxRemove(cmd, g, args, all, yes)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete all that have not stopped")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func runSandboxRemove(cmd *cobra.Command, g *globals, refs []string, all, yes bool) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
	if all {
		list, err := liveSandboxes(ctx, client, microvm.ListSandboxesParams{}, 1<<30)
		if err != nil {
			return err
		}
		for _, sb := range list.Data {
			refs = append(refs, sb.ID)
		}
		if len(refs) > 0 && !yes {
			if err := confirm(cmd.InOrStdin(), stderr, fmt.Sprintf("Delete %d sandboxes and all that runs in them?", len(refs))); err != nil {
				return err
			}
		}
	}
	progress := newProgress(stderr, g.verbose)
	gone := &microvm.SandboxList{Object: microvm.ListObjectList, URL: "/v1/sandboxes", Data: []microvm.Sandbox{}}
	failed := 0
	for _, ref := range refs {
		done := progress.wait(clean(ref) + " to be deleted")
		sb, err := deleteByRef(cmd, client, ref)
		done()
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			failed++
			message, fix := explain(err)
			say(stderr, "error: %s: %s\n", clean(ref), cleanLines(message))
			if fix != "" {
				say(stderr, "  fix: %s\n", cleanLines(fix))
			}
			continue
		}
		gone.Data = append(gone.Data, *sb)
		if g.output != outputJSON {
			if err := printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(sb.ID))); err != nil {
				return err
			}
		}
	}
	if g.output == outputJSON {
		if err := printJSON(cmd.OutOrStdout(), gone); err != nil {
			return err
		}
	}
	if failed > 0 {
		return &codeError{code: exitError}
	}
	return nil
}

func deleteByRef(cmd *cobra.Command, client *microvm.Client, ref string) (*microvm.Sandbox, error) {
	id, err := resolve(cmd.Context(), client, ref)
	if err != nil {
		return nil, err
	}
	return client.Sandboxes.Delete(cmd.Context(), id)
}

// confirm asks a person. Where there is none, the answer is no.
func confirm(in io.Reader, out io.Writer, question string) error {
	if !onTerminal(in) {
		return hint(usage("this must be confirmed, and standard input is no terminal"), "add --yes")
	}
	say(out, "%s [y/N] ", question)
	line, _ := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	default:
		return fmt.Errorf("nothing was deleted")
	}
}
