package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// programEnd turns an ending into the exit code of this program: nil, or a
// *codeError that explains what the program could not say itself.
func programEnd(stderr io.Writer, exe *microvm.Execution) error {
	if err := exe.Err(); err != nil {
		return &codeError{code: endingCode(err), err: fmt.Errorf("%s: %w", exe.Cmd, err)}
	}
	if exe.OOMKilled {
		say(stderr, "note: the guest ran out of memory and killed a process of the program; give it more with --mem-mib\n")
	}
	switch {
	case exe.ExitCode != nil && *exe.ExitCode == 0:
		return nil
	case exe.ExitCode != nil:
		return &codeError{code: *exe.ExitCode}
	case exe.Signal != nil:
		number, known := signalNumber(*exe.Signal)
		if !known {
			return &codeError{code: exitUnanswered, err: fmt.Errorf("%s: was ended by %s, which has no number here", exe.Cmd, *exe.Signal)}
		}
		say(stderr, "note: %s was ended by a signal, %s\n", clean(exe.Cmd), clean(*exe.Signal))
		return &codeError{code: exitSignalShift + number}
	default:
		return &codeError{code: exitUnanswered, err: fmt.Errorf("%s: ended without an exit code or a signal", exe.Cmd)}
	}
}

func endingCode(err error) int {
	var ending *microvm.EndingError
	switch {
	case !errors.As(err, &ending):
		return exitUnanswered
	case ending.Status == microvm.ExecutionStatusTimedOut:
		return exitTimeout
	case ending.Status != microvm.ExecutionStatusFailed:
		return exitUnanswered
	case ending.Reason == microvm.ExecutionReasonPermissionDenied:
		return exitNotAllowed
	case ending.Reason == microvm.ExecutionReasonCommandNotFound:
		return exitNotFound
	default:
		return exitUnanswered
	}
}

// fixEnding puts this program's flags into the advice of an ending.
func fixEnding(e *microvm.EndingError) string {
	switch e.Reason {
	case microvm.ExecutionReasonTimeout:
		return "give it a longer --timeout, or less to do"
	case microvm.ExecutionReasonTTL:
		return "run it again in a new sandbox with a longer --ttl"
	case microvm.ExecutionReasonIdle:
		return "run it again in a new sandbox with a longer --idle, or use microvm sandbox touch meanwhile"
	case microvm.ExecutionReasonBadDirectory:
		return "change --cwd, or make the directory first"
	case microvm.ExecutionReasonUserNotFound:
		return "change --user; images have user and root"
	case microvm.ExecutionReasonCommandNotFound:
		return "correct the command, or put the program there first; for shell syntax run sh -c"
	default:
		return e.Remedy
	}
}

// guestSignals are the numbers of a guest's signals, which is Linux on amd64 or
// arm64 (signal(7)); this program may run elsewhere.
var guestSignals = []string{
	1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT",
	"CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
}

// signalNumber is the number of a signal by its name; real-time signals are
// SIGRT0 (32) to SIGRT32 (64).
func signalNumber(name string) (int, bool) {
	short, ok := strings.CutPrefix(name, "SIG")
	if !ok {
		return 0, false
	}
	if text, ok := strings.CutPrefix(short, "RT"); ok {
		n, err := strconv.Atoi(text)
		return 32 + n, err == nil && n >= 0 && n <= 32
	}
	for number, known := range guestSignals {
		if number > 0 && known == short {
			return number, true
		}
	}
	return 0, false
}
