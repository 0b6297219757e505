package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// executionFlags are the flags of every verb that starts a program.
type executionFlags struct {
	cwd, user string
	timeout   seconds
}

func (e *executionFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&e.cwd, "cwd", "", "directory to start in (default the image's working directory)")
	flags.StringVar(&e.user, "user", "", "user to run as (default the image's own, usually user)")
	flags.Var(&e.timeout, "timeout", "kill the program after this time: seconds, or 90s, 15m, 2h (default 5m)")
}

func (e *executionFlags) spec(command []string) microvm.ExecutionCreate {
	spec := microvm.ExecutionCreate{Cmd: command[0], Args: command[1:], TimeoutSeconds: e.timeout.pointer()}
	if e.cwd != "" {
		spec.Cwd = &e.cwd
	}
	if e.user != "" {
		spec.User = &e.user
	}
	return spec
}

func newExecCommand(g *globals) *cobra.Command {
	var o executionFlags
	cmd := &cobra.Command{
		Use:   "exec SANDBOX [flags] -- CMD [ARG]...",
		Short: "Run a program in a sandbox",
		Long: `Runs a program in a running sandbox, given by id or name, waits until it has ended
and prints what it printed.

No shell is involved: for shell syntax run sh -c. The program has no standard
input. Its output is printed when it has ended: the last 1 MiB of each stream,
as text (bytes that are no UTF-8 are replaced).

Ctrl-C ends the waiting, not the program: that goes on until it ends by itself,
its timeout is over or its sandbox is deleted.

The exit code is the program's own; 124 to 127 say that it did not get to answer.
See microvm help exit-codes.`,
		Example: `  microvm exec work -- python3 main.py
  microvm exec work --user root --cwd /tmp -- sh -c 'id; pwd'
  microvm exec work --timeout 10s -o json -- sleep 60`,
		Args:              commandArgs("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExec(cmd, g, &o, args[0], args[1:])
		},
	}
	o.add(cmd.Flags())
	cmd.SetFlagErrorFunc(missingDash("SANDBOX"))
	return cmd
}

func runExec(cmd *cobra.Command, g *globals, o *executionFlags, ref string, command []string) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a reader that went away is an error, see outputError
	client, err := g.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	id, err := resolve(ctx, client, ref)
	if err != nil {
		return err
	}
	done := newProgress(cmd.ErrOrStderr(), g.verbose).wait("the end of " + clean(command[0]))
	exe, err := client.Executions.Run(ctx, id, o.spec(command))
	done()
	if err != nil && exe != nil {
		say(cmd.ErrOrStderr(), "%s may still run in sandbox %s; microvm sandbox rm ends both\n", clean(exe.ID), clean(id))
	}
	var lost *microvm.ConnectionError
	if errors.As(err, &lost) && lost.Sent && exe == nil {
		say(cmd.ErrOrStderr(), "the program may have been started in sandbox %s\n", clean(id))
	}
	if err != nil {
		return err
	}
	if g.output == outputJSON {
		if err := printJSON(cmd.OutOrStdout(), exe); err != nil {
			return outputError(err)
		}
	} else if err := printOutput(cmd, exe); err != nil {
		return err
	}
	return programEnd(cmd.ErrOrStderr(), exe)
}

// commandArgs wants one argument before -- and a command after it.
func commandArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		switch {
		case len(args) == 0 || dash == 0:
			return usage("%s is missing", what)
		case dash < 0 && len(args) > 1:
			return hint(usage("-- is missing between %s and the command", what), fmt.Sprintf("%s %s -- %s ...", cmd.CommandPath(), args[0], args[1]))
		case dash < 0 || dash == len(args):
			return hint(usage("the command is missing"), fmt.Sprintf("%s %s -- CMD [ARG]...", cmd.CommandPath(), args[0]))
		case dash > 1:
			return usage("only one %s can stand before --", what)
		default:
			return nil
		}
	}
}

// missingDash explains a flag that is not one of ours: most often it is the
// command's own, and -- was forgotten before the command.
func missingDash(what string) func(*cobra.Command, error) error {
	return func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); len(args) > 1 {
			return hint(usage("%w; -- is missing between %s and the command", err, what), fmt.Sprintf("%s %s -- %s ...", cmd.CommandPath(), args[0], args[1]))
		}
		return err
	}
}

// outputError tells a reader that went away, which is no fault of anybody's,
// from an output that could not be written.
func outputError(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return &codeError{code: exitSignalShift + int(syscall.SIGPIPE)}
	}
	return &codeError{code: exitUnanswered, err: err}
}
