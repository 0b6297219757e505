package guest

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminalHolds is more than a terminal can hold of what was written to it
// (drivers/tty/pty.c: 8 KiB; n_tty.c: 4 KiB).
const terminalHolds = 64 << 10

// read copies an output into its tail until the program ended and what it
// wrote is read. What its children write later is read too, so that they do not
// die of a broken pipe, and thrown away.
func (e *execution) read(stream int, output *os.File) {
	defer e.agent.unfollow(output)
	raw, err := output.SyscallConn()
	for err == nil {
		e.awaitRoom(stream)
		err = e.readOnce(stream, raw)
	}
	late := errors.Is(err, os.ErrDeadlineExceeded) // the program ended, and others hold the output
	if late {
		e.drain(stream, raw)
	}
	if e.held != nil {
		_ = e.held.Close()
	}
	e.finish()
	if late {
		_ = output.SetReadDeadline(time.Time{})
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{output})
	}
}

// patience is how long a program is held up, at most, for the host to take what
// is kept of its output, so that a fast program loses nothing to a host that is
// there. When it is over the oldest bytes fall, until the host is back.
const patience = 2 * time.Second

// awaitRoom waits until more output can be kept without any falling, or the host
// has taken nothing for patience.
func (e *execution) awaitRoom(stream int) {
	for {
		e.mu.Lock()
		t := &e.streams[stream]
		left := patience - time.Since(t.taken)
		wait := t.wouldDrop(len(chunk{})) && left > 0 && !e.gone
		changed := e.changed
		e.mu.Unlock()
		if !wait {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-e.agent.life.Done():
			left = 0
		}
		timer.Stop()
		if left == 0 {
			return
		}
	}
}

// readOnce waits for something to read and appends it. An error ends it: io.EOF
// of a pipe that nobody writes to any more. A terminal has no such end while the
// agent holds the program's side too: closing it then would hang up on a program
// that only closed its own descriptors.
func (e *execution) readOnce(stream int, raw syscall.RawConn) error {
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
		defer buffers.Put(buf)
		n, err := unix.Read(int(fd), buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EINTR):
		case err != nil:
			failed = err
		case n == 0:
			failed = io.EOF
		default:
			e.append(stream, buf[:n])
		}
		return true
	})
	return errors.Join(err, failed)
}

// drain reads what lies there now; what a child that goes on writing adds
// meanwhile is not read. A terminal does not say how much that is, since a part
// is still on its way to the agent's end: of it as much is read as it can hold.
func (e *execution) drain(stream int, raw syscall.RawConn) {
	buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	_ = raw.Control(func(fd uintptr) {
		left, err := terminalHolds, error(nil)
		if e.screen == nil {
			left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		}
		for err == nil && left > 0 {
			e.awaitRoom(stream)
			n := 0
			n, err = unix.Read(int(fd), buf[:min(left, len(buf))])
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if n <= 0 {
				return
			}
			e.append(stream, buf[:n])
			left -= n
		}
	})
}

func (e *execution) append(stream int, p []byte) {
	if len(p) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	e.streams[stream].write(p)
	e.wakeLocked()
}

func (e *execution) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	e.wakeLocked()
}
