// Command microvm is the command line of Microvm. It owns how a daemon is
// found, how results are shown and what exit codes mean; what it does with
// sandboxes goes through sdk/go, as any other client's work does. It must not
// know a wire type of its own nor touch the daemon's state.
//
// One verb is one file. A verb that runs a program exits with the program's own
// code, and with 124 to 127 when the program did not get to answer.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(runMain()) }

// runMain is main without its exit, for tests.
func runMain() int {
	ctx, stop := interruptible(context.Background())
	defer stop()
	root, g := newRootCommand()
	root.SetArgs(os.Args[1:])
	cmd, err := root.ExecuteContextC(ctx)
	return finish(cmd, err, g.began, os.Stderr)
}

// interruption is the cause of a context that a signal ended.
type interruption struct{ signal syscall.Signal }

func (i *interruption) Error() string {
	names := map[syscall.Signal]string{syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP"}
	return "interrupted by " + names[i.signal]
}

// interruptible ends the context at the first SIGINT, SIGTERM or SIGHUP, so
// that verbs can clean up. The second one ends the program as it always would.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			number, _ := s.(syscall.Signal)
			cancel(&interruption{number})
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}
