package execution

import (
	"path"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/secret"
)

// Spec is what a caller asks for. A zero value means the default.
type Spec struct {
	Cmd     string        // required: a path, or a name that is looked up in PATH
	Args    []string      // at most 1000
	Cwd     string        // default the image's working directory, to which a relative one is joined
	User    string        // default the image's user
	Timeout time.Duration // default 5 min, whole seconds, up to 24 h
	Env     secret.Env    // over the sandbox's, which is over the image's

	Stdin     string // what its stdin begins with, at most MaxStdin
	StdinOpen bool   // stdin stays open for Manager.Stdin behind that; else it ends there
	TTY       *Size  // run it on a terminal of that size; its stdin is open
}

// Size is the size of a terminal: 1..1000 each.
type Size struct{ Rows, Cols int }

func (s Size) check() error {
	if s.Rows < 1 || s.Rows > guestwire.MaxTerminal {
		return fault.Param("rows", "rows must be 1 to %d", guestwire.MaxTerminal)
	}
	if s.Cols < 1 || s.Cols > guestwire.MaxTerminal {
		return fault.Param("cols", "cols must be 1 to %d", guestwire.MaxTerminal)
	}
	return nil
}

// Bounds and defaults of a Spec.
const (
	DefaultTimeout = 5 * time.Minute
	MaxTimeout     = 24 * time.Hour
	// MaxStdin is how many bytes a Spec's stdin may have.
	MaxStdin = 1 << 20
	// MaxRunning is how many executions of one sandbox run at once: each holds
	// two of the 448 connections to its guest, one for output and one while its
	// stdin is fed, and starts and kills want some.
	MaxRunning = 200

	maxArgs     = 1000
	maxArgBytes = 128 << 10 // Linux takes no longer one (MAX_ARG_STRLEN)
	maxAllBytes = 512 << 10
	maxPath     = 4096
	maxUser     = 32
)

func (s Spec) fill() (Spec, error) {
	if s.Cmd == "" {
		return s, &fault.Error{Code: fault.ParameterMissing, Param: "cmd", Message: "cmd is required: the program to run; its arguments go into args"}
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.Timeout < time.Second || s.Timeout > MaxTimeout {
		return s, fault.Param("timeout_seconds", "timeout_seconds must be 1 to %d", int(MaxTimeout.Seconds()))
	}
	if len(s.Args) > maxArgs {
		return s, fault.Param("args", "args must be at most %d", maxArgs)
	}
	total := 0
	for i, arg := range append([]string{s.Cmd}, s.Args...) {
		name := "args"
		if i == 0 {
			name = "cmd"
		}
		if len(arg) >= maxArgBytes || strings.ContainsRune(arg, 0) {
			return s, fault.Param(name, "%s must be shorter than %d bytes and hold no NUL", name, maxArgBytes)
		}
		total += len(arg) + 1
	}
	if total > maxAllBytes {
		return s, fault.Param("args", "cmd and args together must be at most %d bytes", maxAllBytes)
	}
	if len(s.Cwd) >= maxPath || strings.ContainsRune(s.Cwd, 0) {
		return s, fault.Param("cwd", "cwd must be shorter than %d bytes and hold no NUL", maxPath)
	}
	if s.Cwd != "" {
		s.Cwd = path.Clean(s.Cwd)
	}
	if len(s.User) > maxUser || strings.ContainsAny(s.User, "\x00:/\n") {
		return s, fault.Param("user", "user must be a user's name in the image, at most %d bytes", maxUser)
	}
	if len(s.Stdin) > MaxStdin {
		return s, fault.Param("stdin", "stdin must be at most %d bytes; for more set stdin_open and send it in pieces, or write a file", MaxStdin)
	}
	if s.TTY != nil {
		s.StdinOpen = true
		if err := s.TTY.check(); err != nil {
			return s, err
		}
	}
	return s, s.Env.Check("env")
}

// Tail is what a ring still has of one stream.
type Tail struct {
	Bytes  []byte
	Offset int64 // of Bytes[0] in all that was written; > 0 says that the front fell out
}

// Output is what is kept of an execution's two streams.
type Output struct {
	Stdout, Stderr Tail
}
