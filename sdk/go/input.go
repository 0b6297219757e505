package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// MaxStdinBytes is how much input one request can carry.
	MaxStdinBytes = 256 << 10
	// stdinWait is how long the node waits for a program that does not read.
	stdinWait = 10 * time.Second
)

// Stdin sends input to an execution that was started with StdinOpen or TTY, at
// most MaxStdinBytes of it, and says how much was taken in all. It is repeated
// after lost connections and while a daemon restarts, about half a minute:
// because of its Offset a repeat adds nothing twice.
func (s *ExecutionService) Stdin(ctx context.Context, sandbox, id string, input ExecutionStdinWrite) (*ExecutionStdin, error) {
	const verb = "send input"
	path, err := pathOf(sandbox, id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	out := new(ExecutionStdin)
	r := request{verb: verb, method: http.MethodPost, path: path + "/stdin", json: input, wait: stdinWait, again: true, retries: waitRetries}
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// CopyStdin sends all of r to an execution that was started with StdinOpen, from
// an offset on, as fast as the program takes it, and ends its input behind it.
// Offset 0 is the start; behind a Stdin that it was started with it is that one's
// length. It also returns, without an error and with Closed, when the program
// takes no more: it has ended, or closed its input; r may then have been read
// further than the returned Offset.
func (s *ExecutionService) CopyStdin(ctx context.Context, sandbox, id string, offset int64, r io.Reader) (*ExecutionStdin, error) {
	taken := &ExecutionStdin{Object: ExecutionStdinObjectExecutionStdin, Offset: offset}
	buffer := make([]byte, MaxStdinBytes)
	for {
		n, err := r.Read(buffer)
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return taken, fmt.Errorf("send input: read it: %w", err)
		case n == 0 && err == nil:
			continue // io.Reader allows it
		}
		var failed error
		taken, failed = s.sendAll(ctx, sandbox, id, taken.Offset, buffer[:n], err != nil)
		if failed != nil || taken.Closed || err != nil {
			return taken, failed
		}
	}
}

// sendAll sends data until all of it was taken, or none is any more. As long as
// the program has not read what it was started with, less is taken than offset.
func (s *ExecutionService) sendAll(ctx context.Context, sandbox, id string, offset int64, data []byte, last bool) (*ExecutionStdin, error) {
	at := &ExecutionStdin{Object: ExecutionStdinObjectExecutionStdin, Offset: offset}
	for {
		asked := s.c.now()
		input := ExecutionStdinWrite{Offset: at.Offset, Data: data}
		if last {
			input.Close = &last
		}
		taken, err := s.Stdin(ctx, sandbox, id, input)
		switch {
		case HasCode(err, ErrorCodeExecutionNotRunning):
			at.Closed = true
			return at, nil
		case err != nil:
			return at, err
		}
		n := max(taken.Offset-at.Offset, 0)
		if n > int64(len(data)) {
			return at, fmt.Errorf("send input: the reply is not what the API promises, unless somebody else sends too: %d bytes of %d were taken", n, len(data))
		}
		at.Offset, at.Closed, data = at.Offset+n, taken.Closed, data[n:]
		if at.Closed || (len(data) == 0 && !last) {
			return at, nil
		}
		// A program that does not read makes the node wait; should one not, it is
		// not asked without a break.
		if n == 0 && s.c.now().Sub(asked) < pollPause {
			if err := s.c.sleep(ctx, pollPause); err != nil {
				return at, fmt.Errorf("send input: %w", context.Cause(ctx))
			}
		}
	}
}
