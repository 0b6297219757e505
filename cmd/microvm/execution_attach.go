package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newExecutionAttachCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "attach SANDBOX EXECUTION",
		Short: "Go back to a program that runs, and stay to its end",
		Long: `Joins an execution and ends as microvm exec would: with the program's exit code.

One that was started with -t goes on on this terminal: its last 64 KiB of output
are shown, keys go to it, and ~. at the beginning of a line detaches again. Several
terminals may be attached at once. A program that draws on the whole screen draws
anew when the terminal's size changes; most do on Ctrl-L, too.

Of one without -t, what is kept of its output is shown, and what comes. Its input
cannot be joined. Ctrl-C leaves, with exit code 130; microvm execution cancel ends it.`,
		Example:           `  microvm execution attach work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5`,
		Args:              executionArgs,
		ValidArgsFunction: g.completeExecution(runningExecution),
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // see outputError
			return runExecutionAttach(cmd, g, args)
		},
	}
}

func runExecutionAttach(cmd *cobra.Command, g *globals, args []string) error {
	client, sandbox, id, err := oneExecution(cmd, g, args)
	if err != nil {
		return err
	}
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	exe, err := client.Executions.Retrieve(ctx, sandbox, id)
	if err != nil {
		return err
	}
	onTTY := exe.TTY && !exe.Ended() && g.output != outputJSON
	switch {
	case onTTY:
		local, terminalErr := openTerminal(cmd.InOrStdin(), stdout, stderr)
		if terminalErr != nil {
			return hint(errors.New("it runs on a terminal, and standard input is none"), "microvm execution logs -f "+sandbox+" "+id+" follows its output")
		}
		exe, err = attach(ctx, client, exe, local, -1)
	case g.output == outputJSON:
		exe, err = client.Executions.Wait(ctx, sandbox, id)
	default:
		exe, err = copyOutput(ctx, client, exe, microvm.Position{}, stdout, stderr, func() {})
	}
	if err != nil {
		if !outputGone(err) {
			sayWhatIsLeft(stderr, sandbox, exe, err)
		}
		return leaving(err)
	}
	if g.output == outputJSON {
		if err := printJSON(stdout, exe); err != nil {
			return outputError(err)
		}
	}
	return programEnd(stderr, exe)
}
