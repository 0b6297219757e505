package guest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// defaultTerm is TERM of a program on a terminal where neither image nor caller
// sets one: what browsers' terminals and most others understand.
const defaultTerm = "xterm-256color"

// terminal makes a pseudo terminal of that size which belongs to the user. The
// program's end is asked for at the agent's end (TIOCGPTPEER, ioctl_tty(2)) and
// not opened by its name in /dev/pts, where guest root may have put anything.
func (w *wires) terminal(size guestwire.Size, who account) error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	w.screen = os.NewFile(uintptr(fd), "terminal")
	w.outputs, w.input = []*os.File{w.screen}, newInput(w.screen, true)
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fmt.Errorf("open the program's end of the terminal: %w", errno)
	}
	program := int(peer)
	w.program, w.held = [3]int{program, program, program}, os.NewFile(peer, "terminal")
	if err := setUp(program, who); err != nil {
		return fmt.Errorf("set up terminal: %w", err)
	}
	return setSize(w.screen, size)
}

// setUp gives the terminal to the user, as login(1) does (the group that may
// write to it comes from the mount, mode 0620 with it), and lets it erase whole
// characters of UTF-8.
func setUp(program int, who account) error {
	if !who.same {
		if err := errors.Join(unix.Fchown(program, int(who.uid), -1), unix.Fchmod(program, 0o620)); err != nil {
			return err
		}
	}
	mode, err := unix.IoctlGetTermios(program, unix.TCGETS)
	if err != nil {
		return err
	}
	mode.Iflag |= unix.IUTF8
	return unix.IoctlSetTermios(program, unix.TCSETS, mode)
}

// setSize tells a terminal its size; the kernel tells its programs (SIGWINCH).
// One that is closed has none.
func setSize(screen *os.File, size guestwire.Size) error {
	raw, err := screen.SyscallConn()
	if err != nil {
		return err
	}
	closed := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)})
	})
	if closed != nil {
		return nil //nolint:nilerr // see above
	}
	return err
}

func checkSize(size guestwire.Size) error {
	if size.Rows < 1 || size.Rows > guestwire.MaxTerminal || size.Cols < 1 || size.Cols > guestwire.MaxTerminal {
		return refuse(guestwire.BadRequest, "rows or columns out of range")
	}
	return nil
}

// resize sets the size of the execution's terminal; after the program's end
// there is nothing to set.
func (e *execution) resize(size guestwire.Size) error {
	if e.screen == nil {
		return refuse(guestwire.NoTerminal, e.id)
	}
	if err := checkSize(size); err != nil {
		return err
	}
	if err := setSize(e.screen, size); err != nil {
		return refuse(guestwire.Failed, err.Error())
	}
	return nil
}
