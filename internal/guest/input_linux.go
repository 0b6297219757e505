package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// input feeds a program: the agent's end of a pipe to its stdin, or of its
// terminal. A nil input is that of a program without one.
type input struct {
	file     *os.File      // set at construction
	terminal bool          // set at construction: file is read as well, and closed by who reads
	turn     chan struct{} // set at construction: who puts in may write, one at a time

	mu     sync.Mutex
	taken  int64 // guarded by mu: bytes that the program got, or that it will never read
	closed bool  // guarded by mu: the program gets no more
}

func newInput(file *os.File, terminal bool) *input {
	return &input{file: file, terminal: terminal, turn: make(chan struct{}, 1)}
}

// feed is one request for stdin: size bytes, the first of them at offset of all
// that was ever sent.
type feed struct {
	offset, size int64
	body         io.Reader
	end          bool // close once all is taken
	until        time.Time
}

// put hands a feed to the program as far as it reads. What was taken before is
// left out; one that begins after it is refused. The program that closed its
// stdin, or ended, takes all: it is thrown away. A feed waits for the one before
// it, and holds no more than one buffer of its body meanwhile.
func (in *input) put(ctx context.Context, f feed) (guestwire.StdinTaken, error) {
	if f.end && in.terminal {
		return guestwire.StdinTaken{}, refuse(guestwire.BadRequest, "a terminal is not closed: send its end-of-file character")
	}
	mine := in.takeTurn(ctx, f.until)
	if mine {
		defer func() { <-in.turn }()
	}
	now := in.state()
	switch {
	case f.offset > now.Offset:
		return now, refuse(guestwire.BadRequest, "offset beyond what was taken")
	case f.end && f.offset+f.size < now.Offset:
		return now, refuse(guestwire.BadRequest, "close before what was taken")
	case !mine:
		return now, nil
	}
	skip := min(now.Offset-f.offset, f.size)
	if _, err := io.CopyN(io.Discard, f.body, skip); err != nil {
		return now, err
	}
	whole, err := in.copy(f.body, f.size-skip, f.until)
	if err == nil && whole && f.end {
		in.end()
	}
	return in.state(), err
}

// takeTurn waits until nobody else feeds the program.
func (in *input) takeTurn(ctx context.Context, until time.Time) bool {
	select {
	case in.turn <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case in.turn <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// copy moves size bytes of body to the program, and says whether it took them
// all by then. An error is the body's: what was taken of it counts.
func (in *input) copy(body io.Reader, size int64, until time.Time) (whole bool, err error) {
	buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	for size > 0 {
		p := buf[:min(size, int64(len(buf)))]
		if _, err := io.ReadFull(body, p); err != nil {
			return false, err
		}
		n := in.write(p, until)
		size -= int64(n)
		if n < len(p) {
			return false, nil
		}
	}
	return true, nil
}

// write writes p, waits while the program does not read, and returns how many
// bytes were taken. A write that fails means that there is no reader any more:
// EPIPE of a pipe, EIO of a terminal.
func (in *input) write(p []byte, until time.Time) (n int) {
	raw, err := in.file.SyscallConn()
	if err != nil || !in.arm(until) {
		return in.took(0, len(p), true)
	}
	var failed error
	put := func(fd uintptr) bool {
		for n < len(p) && failed == nil {
			m, err := unix.Write(int(fd), p[n:])
			switch {
			case errors.Is(err, unix.EAGAIN):
				return false
			case errors.Is(err, unix.EINTR):
			case err != nil:
				failed = err
			default:
				n += m
			}
		}
		return true
	}
	whole := false
	err = raw.Control(func(fd uintptr) { whole = put(fd) }) // whatever the time: a deadline that is over keeps Write from trying
	if err == nil && !whole {
		err = raw.Write(put)
	}
	gone := failed != nil || err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return in.took(n, len(p), gone)
}

// arm sets until when a write may wait; it says whether the program takes more.
func (in *input) arm(until time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.closed && in.file.SetWriteDeadline(until) == nil
}

// took counts what was written of all; once nobody reads, that is all of it.
func (in *input) took(n, all int, gone bool) int {
	if gone {
		in.end()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		n = all
	}
	in.taken += int64(n)
	return n
}

// end closes the program's stdin and wakes who writes to it. A terminal stays
// open: who reads from it closes it.
func (in *input) end() {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	_ = in.file.SetWriteDeadline(time.Unix(1, 0))
	if !in.terminal {
		_ = in.file.Close()
	}
}

func (in *input) state() guestwire.StdinTaken {
	in.mu.Lock()
	defer in.mu.Unlock()
	return guestwire.StdinTaken{Offset: in.taken, Closed: in.closed}
}
