package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// deleteTimeout bounds the deletion of a sandbox that nobody wants any more,
// which no signal cuts short.
const deleteTimeout = 2 * time.Minute

func newSandboxCreateCommand(g *globals) *cobra.Command {
	var o sandboxFlags
	var env variables
	cmd := &cobra.Command{
		Use:   "create IMAGE",
		Short: "Create a sandbox",
		Long: `Creates a sandbox and prints its id when it is running. It ends by microvm sandbox
rm, when its TTL is over, or when it was not used for its idle time. A program
that microvm exec runs, a file that microvm cp moves and microvm sandbox touch are
use; a program left in the background with & is not.

Variables of --env are put into each program that is started in it, over the
image's and under the program's own; the node keeps them encrypted, and shows them
to nobody.`,
		Example: `  microvm sandbox create python
  microvm sandbox create python --name work --vcpus 2 --mem-mib 512 --ttl 2h --tag job=42
  microvm sandbox create python --name lab --ttl 8h --idle never
  microvm sandbox create python --cold
  microvm sandbox create python --env API_TOKEN --env STAGE=test
  id=$(microvm sandbox create base)`,
		Args:              oneArg("IMAGE"),
		ValidArgsFunction: g.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec := o.spec(cmd.Flags(), args[0])
			var err error
			if spec.Env, err = env.env(os.LookupEnv); err != nil {
				return err
			}
			client, err := g.client()
			if err != nil {
				return err
			}
			ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
			sb, err := createSandbox(ctx, client, spec, newProgress(stderr, g.verbose), stderr)
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), deleteAfter(ctx, client, sb.ID))
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), sb)
			}
			return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(sb.ID)))
		},
	}
	o.add(cmd)
	env.add(cmd.Flags())
	return cmd
}

// createSandbox makes a sandbox. A signal does not cut it short, as then nobody
// would know of a sandbox to delete: the caller looks at the context afterwards.
func createSandbox(ctx context.Context, client *microvm.Client, spec microvm.SandboxCreate, progress *progress, stderr io.Writer) (*microvm.Sandbox, error) {
	stop := context.AfterFunc(ctx, func() {
		say(stderr, "interrupted: waiting for the sandbox, to delete it; once more leaves it to its TTL\n")
	})
	defer stop()
	defer progress.wait("a sandbox of " + clean(spec.Image))()
	sb, err := client.Sandboxes.Create(context.WithoutCancel(ctx), spec)
	var lost *microvm.ConnectionError
	if errors.As(err, &lost) && lost.Sent {
		return nil, hint(fmt.Errorf("%w; a sandbox may have been left behind, which ends with its TTL", err), "microvm sandbox ls shows it, microvm sandbox rm deletes it")
	}
	return sb, err
}

// deleteAfter deletes a sandbox although the context has ended.
func deleteAfter(ctx context.Context, client *microvm.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	_, err := client.Sandboxes.Delete(ctx, id)
	return err
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
