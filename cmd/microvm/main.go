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
