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

// terminalTimeout is the default timeout on a terminal, in seconds, where people
// think: the API's maximum. The sandbox's TTL still ends it.
const terminalTimeout = 24 * 60 * 60

// executionFlags are the flags of every verb that starts a program.
type executionFlags struct {
	cwd, user string
	timeout   seconds
	env       variables
}

func (e *executionFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&e.cwd, "cwd", "", "directory to start in (default the image's working directory)")
	flags.StringVar(&e.user, "user", "", "user to run as (default the image's own, usually user)")
	flags.Var(&e.timeout, "timeout", "kill the program after this time: seconds, or 90s, 15m, 2h (default 5m, on a terminal 24h)")
	e.env.add(flags)
}

// attachFlags say how the program's input and output go.
type attachFlags struct{ interactive, tty bool }

func (a *attachFlags) add(flags *pflag.FlagSet) {
	flags.BoolVarP(&a.interactive, "interactive", "i", false, "pass standard input to the program, to its end")
	flags.BoolVarP(&a.tty, "tty", "t", false, "run it on a terminal, which is this one: keys go to it as they are typed")
}

func (e *executionFlags) spec(command []string, how attachFlags) (microvm.ExecutionCreate, error) {
	env, err := e.env.env(os.LookupEnv)
	if err != nil {
		return microvm.ExecutionCreate{}, err
	}
	spec := microvm.ExecutionCreate{Cmd: command[0], Args: command[1:], Env: env, TimeoutSeconds: e.timeout.pointer()}
	if e.cwd != "" {
		spec.Cwd = &e.cwd
	}
	if e.user != "" {
		spec.User = &e.user
	}
	switch {
	case how.tty:
		spec.TTY = new(true)
		if e.timeout == 0 {
			spec.TimeoutSeconds = new(terminalTimeout)
		}
		if kind, set := os.LookupEnv("TERM"); set && kind != "" && env["TERM"] == "" {
			env["TERM"] = kind // what the program prints is for this terminal
		}
	case how.interactive:
		spec.StdinOpen = new(true)
	}
	return spec, nil
}

// execOptions are the flags of exec.
type execOptions struct {
	executionFlags
	attachFlags
	detach bool
}

func newExecCommand(g *globals) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec SANDBOX [flags] -- CMD [ARG]...",
		Short: "Run a program in a sandbox",
		Long: `Runs a program in a running sandbox, given by id or name, and prints what it
prints, as it comes and byte for byte, until it has ended.

No shell is involved: for shell syntax run sh -c. The program has no standard
input; -i passes on this one. With -o json nothing is printed until the end: then
the execution, with the last 1 MiB of each stream as text.

Nobody who reads slowly holds up the program: the node keeps 1 MiB of each stream,
and should more than that wait to be read, a note on standard error says how much
is missing. For files of any size there is microvm cp.

-it makes it feel like ssh: keys, Ctrl-C too, go to the program as they are typed,
and the terminal's size follows. At the beginning of a line, ~. detaches: the
program goes on, and microvm execution attach comes back to it. ~? shows this, and
~~ is one ~. The sandbox's TTL goes on, too; microvm sandbox extend moves its end.

-d starts the program and prints the execution's id; microvm execution shows its
output and its end, attaches to it and cancels it.

Ctrl-C without -t sends the program SIGINT, and what is left of it after 10 s
SIGKILL; a second Ctrl-C sends SIGKILL at once, a third one ends the waiting only.
SIGTERM and SIGHUP to microvm do the same with their own signal; with -t they
detach. When the reader of its output goes away the program gets SIGPIPE. A
connection that is lost ends nothing: the program runs on, and for half a minute
microvm tries to come back to where it was.

The exit code is the program's own; 124 to 127 say that it did not get to answer.
See microvm help exit-codes.`,
		Example: `  microvm exec work -- python3 main.py
  microvm exec work --user root --cwd /tmp -- sh -c 'id; pwd'
  microvm exec work --timeout 10s -o json -- sleep 60
  microvm exec -it work -- bash
  tar c src | microvm exec -i work -- tar x
  microvm exec work -e API_TOKEN -- python3 main.py
  microvm exec -d work -- make test`,
		Args:              commandArgs("SANDBOX"),
		ValidArgsFunction: g.completeOneSandbox,
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExec(cmd, g, &o, args[0], args[1:])
		},
	}
	o.executionFlags.add(cmd.Flags())
	o.attachFlags.add(cmd.Flags())
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "start it, print the execution's id, and leave it running (--timeout still ends it)")
	cmd.SetFlagErrorFunc(missingDash("SANDBOX"))
	return cmd
}

func runExec(cmd *cobra.Command, g *globals, o *execOptions, ref string, command []string) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a reader that went away is an error, see outputError
	if o.detach {
		return startExec(cmd, g, o, ref, command)
	}
	p, err := newProgram(cmd, g, o.attachFlags)
	if err != nil {
		return err
	}
	spec, err := o.spec(command, o.attachFlags)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if p.sandbox, err = resolve(ctx, p.client, ref); err != nil {
		return err
	}
	exe, err := p.run(ctx, spec)
	if outputGone(err) {
		// As on one machine: who writes to a pipe that nobody reads gets SIGPIPE.
		_, _ = p.client.Executions.Cancel(ctx, p.sandbox, exe.ID, microvm.ExecutionCancel{Signal: new(microvm.ExecutionCancelSignalSIGPIPE)})
		return err
	}
	if err != nil {
		sayWhatIsLeft(p.stderr, p.sandbox, exe, err)
		return unlessDetached(err)
	}
	if p.json {
		if err := printJSON(cmd.OutOrStdout(), exe); err != nil {
			return outputError(err)
		}
	}
	return p.end(exe)
}

// startExec starts a program and leaves it.
func startExec(cmd *cobra.Command, g *globals, o *execOptions, ref string, command []string) error {
	if o.interactive && !o.tty {
		return hint(usage("-d passes no input on, so -i does not go with it"), "with -t, microvm execution attach gives it one later; or put the input into a file by microvm cp")
	}
	spec, err := o.spec(command, o.attachFlags)
	if err != nil {
		return err
	}
	client, err := g.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	id, err := resolve(ctx, client, ref)
	if err != nil {
		return err
	}
	exe, err := client.Executions.Create(ctx, id, spec)
	if err != nil {
		sayWhatIsLeft(cmd.ErrOrStderr(), id, nil, err)
		return err
	}
	if g.output == outputJSON {
		err = printJSON(cmd.OutOrStdout(), exe)
	} else if exe.Status != microvm.ExecutionStatusFailed {
		err = printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(exe.ID)))
	}
	if err != nil {
		return outputError(err)
	}
	if exe.Status == microvm.ExecutionStatusFailed {
		return programEnd(cmd.ErrOrStderr(), exe)
	}
	return nil
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
	return err
}

// leaving is err, or no more than its exit code when a signal made this program
// leave another one that goes on: that is no failure.
func leaving(err error) error {
	var interrupted *interruption
	if errors.As(err, &interrupted) {
		return &codeError{code: exitSignalShift + int(interrupted.signal)}
	}
	return unlessDetached(err)
}

// unlessDetached is err, or nil when leaving was what the user wanted.
func unlessDetached(err error) error {
	if errors.Is(err, errDetached) {
		return nil
	}
	return err
}

// outputGone reports whether err is outputError's for a reader that went away.
func outputGone(err error) bool {
	var coded *codeError
	return errors.As(err, &coded) && coded.code == exitSignalShift+int(syscall.SIGPIPE)
}
