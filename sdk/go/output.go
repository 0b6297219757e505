package microvm

import (
	"context"
	"fmt"
	"io"
)

// Output says where CopyOutput puts what a program prints.
type Output struct {
	Stdout, Stderr io.Writer // nil throws a stream away
	From           Position  // where to begin

	// Lost is called for output that is not kept any more, where it is missing.
	// Without it, CopyOutput copies the rest and then returns a *LostOutputError.
	Lost func(stream OutputStream, from, to int64)
}

// LostOutputError says how much output is missing in what was copied, in bytes.
type LostOutputError struct{ Stdout, Stderr int64 }

func (e *LostOutputError) Error() string {
	return fmt.Sprintf("%d bytes of standard output and %d of standard error are not kept any more; follow a program from its start, or let it write a file",
		e.Stdout, e.Stderr)
}

// CopyOutput copies what an execution prints, as it comes, byte for byte, and
// returns exe with its end, as [StreamExit.Of] makes it, when it has ended. It
// lives through lost connections as Stream does. After an error the execution may
// still run. A writer that is slow holds up nothing but the copying.
func (s *ExecutionService) CopyOutput(ctx context.Context, exe *Execution, out Output) (*Execution, error) {
	const verb = "copy output"
	var lost LostOutputError
	for event, err := range s.Stream(ctx, exe.Sandbox, exe.ID, out.From) {
		if err != nil {
			return exe, fmt.Errorf("%s: %w", verb, err)
		}
		switch event.Type {
		case EventStdout:
			err = write(out.Stdout, event.Data)
		case EventStderr:
			err = write(out.Stderr, event.Data)
		case EventTruncated:
			missing := Position{}
			*missing.of(event.Stream) = event.To - event.Offset
			lost.Stdout, lost.Stderr = lost.Stdout+missing.Stdout, lost.Stderr+missing.Stderr
			if out.Lost != nil {
				out.Lost(event.Stream, event.Offset, event.To)
			}
		case EventExit:
			exe = event.Exit.Of(exe)
			exe.StdoutBytes, exe.StderrBytes = event.Position.Stdout, event.Position.Stderr
		}
		if err != nil {
			return exe, fmt.Errorf("%s: write %s: %w", verb, event.Stream, err)
		}
	}
	if out.Lost == nil && lost != (LostOutputError{}) {
		return exe, fmt.Errorf("%s: %w", verb, &lost)
	}
	return exe, nil
}

func write(w io.Writer, data []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(data)
	return err
}

// Of is exe as it ended, for its Err. When it finished and how long it took are
// not in a stream: Retrieve has them.
func (e *StreamExit) Of(exe *Execution) *Execution {
	ended := *exe
	ended.Status, ended.Reason, ended.ExitCode, ended.Signal, ended.OOMKilled = e.Status, e.Reason, e.ExitCode, e.Signal, e.OOMKilled
	return &ended
}
