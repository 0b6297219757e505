//go:build linux

// Command guestd is the guest agent. The kernel starts it as PID 1 of a
// microVM, and PID 1 starts it again as the worker. It has no flags: what it
// needs to know the host says over vsock.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/microvmd/microvm/internal/guest"
)

// version is set by the build (-ldflags -X main.version=).
var version = "devel"

func init() {
	// Keeps the process's first thread out of the agent's way: a goroutine that
	// takes on a user's rights ends its thread, and this one cannot end.
	runtime.LockOSThread()
}

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == guest.WorkerArgument:
		err = guest.Work(version)
	case os.Getpid() == 1:
		err = guest.Boot()
	default:
		fmt.Fprintf(os.Stderr, "guestd %s is the guest agent of a microVM: it runs as PID 1 only\n", version)
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "guestd:", err)
	if os.Getpid() == 1 {
		fmt.Fprintln(os.Stderr, "guestd:", guest.Reboot())
	}
	os.Exit(1)
}
