package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

type logsOptions struct {
	follow bool
	after  string
}

func newExecutionLogsCommand(g *globals) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs SANDBOX EXECUTION",
		Short: "Print the output of an execution",
		Long: `Prints what is kept of a program's output (the last 1 MiB of each stream), byte for
byte, each stream to its own; with -f also what comes, to the end of the program.
What is missing is said on standard error. It works after the sandbox' end, too.

With -o json it prints one object a line: the events of the API's stream, each
with its type, its position (for --after), and the bytes of output in base64.

The exit code is 0 however the program ended: microvm execution attach has its.
Ctrl-C ends the following, not the program, with exit code 130.`,
		Example: `  microvm execution logs work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5
  microvm execution logs -f work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5
  microvm execution logs work exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5 --after 4096.0 -o json`,
		Args:              executionArgs,
		ValidArgsFunction: g.completeExecution(anyExecution),
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // see outputError
			return runExecutionLogs(cmd, g, &o, args)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what the program prints, to its end")
	cmd.Flags().StringVar(&o.after, "after", "", "leave out what lies before this position, STDOUT.STDERR in bytes, such as 4096.0")
	return cmd
}

func runExecutionLogs(cmd *cobra.Command, g *globals, o *logsOptions, args []string) error {
	var from microvm.Position
	if o.after != "" {
		var err error
		if from, err = microvm.ParsePosition(o.after); err != nil {
			return usage("--after: %w", err)
		}
	}
	client, sandbox, id, err := oneExecution(cmd, g, args)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	to := microvm.Position{Stdout: -1}
	if !o.follow {
		exe, err := client.Executions.Retrieve(ctx, sandbox, id)
		if err != nil {
			return err
		}
		if !exe.Ended() { // else to the end, which is told as well
			to = microvm.Position{Stdout: exe.StdoutBytes, Stderr: exe.StderrBytes}
		}
	}
	show := showEvent
	if g.output == outputJSON {
		show = showEventJSON
	}
	return leaving(printLogs(ctx, client, sandbox, id, from, to, func(e microvm.Event) error {
		return show(cmd.OutOrStdout(), cmd.ErrOrStderr(), e)
	}))
}

// printLogs shows the output between two positions; a negative end is the
// program's.
func printLogs(ctx context.Context, client *microvm.Client, sandbox, id string, from, to microvm.Position, show func(microvm.Event) error) error {
	reached := func(at microvm.Position) bool {
		return to.Stdout >= 0 && at.Stdout >= to.Stdout && at.Stderr >= to.Stderr
	}
	if reached(from) {
		return nil
	}
	for event, err := range client.Executions.Stream(ctx, sandbox, id, from) {
		if err != nil {
			return err
		}
		if err := show(event); err != nil {
			return err
		}
		if reached(event.Position) {
			return nil
		}
	}
	return nil
}

func showEvent(stdout, stderr io.Writer, e microvm.Event) error {
	w := stdout
	switch e.Type {
	case microvm.EventStderr:
		w = stderr
	case microvm.EventStdout:
	case microvm.EventTruncated:
		sayMissing(stderr, e.Stream, e.To-e.Offset)
		return nil
	default:
		return nil
	}
	return printEvent(w, e.Data)
}

func printEvent(w io.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return outputError(fmt.Errorf("print output: %w", err))
	}
	return nil
}

// showEventJSON prints an event as the API has it, with its type and position.
func showEventJSON(stdout, _ io.Writer, e microvm.Event) error {
	var fields any
	switch e.Type {
	case microvm.EventStarted:
		fields = microvm.StreamStarted{PID: e.PID}
	case microvm.EventStdout, microvm.EventStderr:
		fields = microvm.StreamOutput{Data: e.Data, Offset: e.Offset}
	case microvm.EventTruncated:
		fields = microvm.StreamTruncated{Stream: e.Stream, From: e.Offset, To: e.To}
	case microvm.EventExit:
		fields = e.Exit
	}
	head, err := json.Marshal(struct {
		Type     microvm.EventType `json:"type"`
		Position string            `json:"position"`
	}{e.Type, e.Position.String()})
	if err != nil {
		return err
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	// One object of the two.
	line := append(append(head[:len(head)-1], ','), rest[1:]...)
	return printEvent(stdout, append(line, '\n'))
}
