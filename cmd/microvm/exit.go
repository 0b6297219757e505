package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// Exit codes. Those of the verbs that stay with a program (programAnnotation)
// leave 0 to 123 to it.
const (
	exitError       = 1   // other verbs: it failed
	exitUsage       = 2   // other verbs: wrong flags or arguments
	exitTimeout     = 124 // passed its timeout and was killed
	exitUnanswered  = 125 // the program did not get to answer
	exitNotAllowed  = 126 // the program may not be executed
	exitNotFound    = 127 // there is no such program
	exitSignalShift = 128 // and the number of the signal that ended the program, or this process
)

// hinted is an error with a next step.
type hinted struct {
	err error
	fix string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

func hint(err error, fix string) error { return &hinted{err, fix} }

// usageError is a wrong flag or argument.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func usage(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// codeError ends the program with a code. Without an err nothing is printed.
type codeError struct {
	code int
	err  error
}

func (c *codeError) Error() string {
	if c.err == nil {
		return fmt.Sprintf("exit code %d", c.code)
	}
	return c.err.Error()
}
func (c *codeError) Unwrap() error { return c.err }

// ExitCode is how errors of other verbs may choose a code, too.
func (c *codeError) ExitCode() int { return c.code }

// finish prints the error of a command and returns the exit code. began says
// that the command line was right and the command's own work had begun.
func finish(cmd *cobra.Command, err error, began bool, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	var wrong *usageError
	misused := !began || errors.As(err, &wrong)
	code := exitCode(err, misused, cmd.Annotations[programAnnotation] != "")
	if silent(err) {
		return code
	}
	message, fix := explain(err)
	if fix == "" && misused {
		fix = cmd.CommandPath() + " --help"
	}
	say(stderr, "error: %s\n", cleanLines(message))
	if fix != "" {
		say(stderr, "  fix: %s\n", cleanLines(fix))
	}
	return code
}

func exitCode(err error, misused, runsProgram bool) int {
	var interrupted *interruption
	if code, chosen := chosenCode(err); chosen {
		return code
	}
	switch {
	case errors.As(err, &interrupted):
		return exitSignalShift + int(interrupted.signal)
	case runsProgram:
		return exitUnanswered
	case misused:
		return exitUsage
	default:
		return exitError
	}
}

// silent reports whether everything was said already: an error that only
// carries an exit code.
func silent(err error) bool {
	var coded *codeError
	if errors.As(err, &coded) {
		return coded.err == nil
	}
	_, chosen := chosenCode(err)
	return chosen
}

// chosenCode is the code that an error of a verb chose to end with. A program
// on this machine that failed has a method of the same name, and chose nothing.
func chosenCode(err error) (int, bool) {
	var coder interface{ ExitCode() int }
	if !errors.As(err, &coder) {
		return 0, false
	}
	if _, local := coder.(*exec.ExitError); local {
		return 0, false
	}
	return coder.ExitCode(), true
}

// programAnnotation marks the commands whose exit code is a program's.
const programAnnotation = "exit code is the program's"

// explain says what happened and what to do next.
func explain(err error) (message, fix string) {
	message = err.Error()
	var h *hinted
	if errors.As(err, &h) {
		return message, h.fix
	}
	var interrupted *interruption
	var ending *microvm.EndingError
	var refused *microvm.Error
	var lost *microvm.ConnectionError
	switch {
	case errors.As(err, &interrupted):
		return message, ""
	case errors.As(err, &ending):
		return strings.Replace(message, ending.Error(), ending.Message, 1), fixEnding(ending)
	case errors.As(err, &refused):
		return message, fixRefused(refused)
	case errors.As(err, &lost) && !lost.Sent:
		return message, "start the daemon (make up, or microvm machine start), or name another one; see microvm help connection"
	case errors.As(err, &lost):
		return message, "repeat; should it have made a sandbox already, microvm sandbox ls shows it"
	case errors.Is(err, context.DeadlineExceeded):
		return message, "repeat"
	default:
		return message, ""
	}
}

// fixRefused turns the API's advice into one for the command line.
func fixRefused(e *microvm.Error) string {
	switch e.Code {
	case microvm.ErrorCodeSandboxNotFound, microvm.ErrorCodeSandboxNotRunning:
		return "microvm sandbox ls shows those that run; microvm sandbox create makes one"
	case microvm.ErrorCodeExecutionNotFound:
		return "microvm execution ls SANDBOX shows those that it has"
	case microvm.ErrorCodeExecutionNotRunning:
		return "microvm execution get shows how it ended, microvm execution logs what it printed"
	case microvm.ErrorCodeExecutionNotTTY:
		return "start it with -t, or follow it with microvm execution logs -f"
	case microvm.ErrorCodeImageNotFound:
		return "microvm images shows those that the node has"
	case microvm.ErrorCodeImageInvalid:
		return "change the tree, make the archive anew and import it again; docs/images.md says what no image can have"
	case microvm.ErrorCodeImageInUse:
		return "microvm sandbox ls shows who uses it"
	case microvm.ErrorCodeNodeAtCapacity:
		if e.RetryAfter > 0 {
			return fmt.Sprintf("repeat in %d s, or make room with microvm sandbox rm", int(e.RetryAfter.Seconds()))
		}
		return "repeat later, or make room with microvm sandbox rm"
	case microvm.ErrorCodeTokenMissing, microvm.ErrorCodeTokenInvalid:
		return "give the daemon's key by --api-key or MICROVM_API_KEY; see microvm help connection"
	case microvm.ErrorCodeForbidden:
		if e.Param == "image" {
			return "give what is imported another --name; microvm setup replaces the node's own images"
		}
		return "call the daemon itself, not through a page or proxy of another origin"
	case microvm.ErrorCodeFileNotFound:
		return "microvm exec SANDBOX -- ls -la shows what is in the working directory"
	case microvm.ErrorCodeGuestDiskFull:
		return "remove files in the sandbox, and repeat"
	case microvm.ErrorCodeFileConflict, microvm.ErrorCodeRangeInvalid:
		return "repeat; a program in the sandbox changes the file at the same time"
	case microvm.ErrorCodeResourceAlreadyExists:
		if e.Param == "path" || e.Param == "to" {
			return "choose another path, or remove in the sandbox what is there"
		}
		return "choose another --name, or microvm sandbox rm NAME"
	case microvm.ErrorCodeRateLimited:
		return "repeat in some seconds"
	case microvm.ErrorCodeShuttingDown, microvm.ErrorCodeQueueUnreachable, microvm.ErrorCodeGuestUnreachable:
		return "repeat in some seconds"
	case microvm.ErrorCodeInternalError:
		return fmt.Sprintf("repeat; if it stays, look for %s in the daemon's log", e.RequestID)
	}
	if flag := flagOf(e.Param); flag != "" {
		return "change " + flag
	}
	if e.Code == "" {
		return "check the address; see microvm help connection"
	}
	return ""
}

// flagOf names the flag that sets a field of the API.
func flagOf(param string) string {
	field, _, _ := strings.Cut(param, ".")
	switch field {
	case "mem_mib":
		return "--mem-mib"
	case "vcpus", "name", "cwd", "user", "env", "signal", "after", "workdir", "language":
		return "--" + field
	case "language_version":
		return "--language-version"
	case "ttl_seconds":
		return "--ttl"
	case "idle_seconds":
		return "--idle"
	case "boot":
		return "--cold"
	case "timeout_seconds":
		return "--timeout"
	case "grace_seconds":
		return "--grace"
	case "tags", "tag":
		return "--tag"
	case "cmd", "args":
		return "the command after --"
	default:
		return ""
	}
}
