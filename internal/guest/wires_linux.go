package guest

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// wires connect a program with the agent: what its descriptors 0 to 2 are, and
// the other ends.
type wires struct {
	program [3]int     // as the program gets them; -1 is /dev/null
	outputs []*os.File // what it writes: stdout and stderr, or what its terminal shows
	input   *input     // what feeds it, or nil
	screen  *os.File   // the agent's end of its terminal, or nil
	held    *os.File   // the program's end of it once more: until the program ended, no other is the last
}

// wire makes what a request asks for. The caller closes both sides.
func wire(request guestwire.Start, who account) (w *wires, err error) {
	w = &wires{program: [3]int{-1, -1, -1}}
	defer func() {
		if err != nil {
			w.closeProgram()
			w.closeOwn()
		}
	}()
	if request.TTY != nil {
		return w, w.terminal(*request.TTY, who)
	}
	if request.StdinOpen {
		own, program, err := pipe(1)
		if err != nil {
			return w, err
		}
		w.program[0], w.input = program, newInput(own, false)
	}
	for i := range 2 {
		own, program, err := pipe(0)
		if err != nil {
			return w, err
		}
		w.program[i+1] = program
		w.outputs = append(w.outputs, own)
	}
	return w, nil
}

// pipe makes a pipe of which the agent has end 0, which reads, or end 1, which
// writes. The agent's end does not block and is waited for by the runtime's
// poller; the program's blocks, as programs expect.
func pipe(end int) (own *os.File, program int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	own, err = polled(fds[end], "pipe")
	if err != nil {
		_ = unix.Close(fds[1-end])
		return nil, -1, err
	}
	return own, fds[1-end], nil
}

// polled makes a file of a descriptor for which the runtime's poller waits. It
// closes the descriptor when that fails.
func polled(fd int, name string) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// closeProgram closes what is the program's, once it has it or never will.
func (w *wires) closeProgram() {
	for i, fd := range w.program {
		if fd >= 0 && w.held == nil {
			_ = unix.Close(fd)
		}
		w.program[i] = -1
	}
}

// closeOwn closes the agent's ends.
func (w *wires) closeOwn() {
	for _, output := range w.outputs {
		_ = output.Close()
	}
	if w.held != nil {
		_ = w.held.Close()
	}
	w.input.end()
}
