package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// watchMask is what the kernel tells of a directory.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// notice is one event of inotify(7).
type notice struct {
	watch  int32
	mask   uint32
	cookie uint32 // the same for both halves of a move
	name   string // in the directory; "" for the directory itself
}

// isDir says whether it is about a directory.
func (n notice) isDir() bool { return n.mask&unix.IN_ISDIR != 0 }

// takeNotice cuts the first event off what was read.
func takeNotice(data []byte) (n notice, rest []byte, err error) {
	if len(data) < unix.SizeofInotifyEvent {
		return n, nil, errors.New("inotify: half an event")
	}
	n.watch = int32(binary.NativeEndian.Uint32(data))
	n.mask, n.cookie = binary.NativeEndian.Uint32(data[4:]), binary.NativeEndian.Uint32(data[8:])
	size := uint64(binary.NativeEndian.Uint32(data[12:]))
	data = data[unix.SizeofInotifyEvent:]
	if size > uint64(len(data)) {
		return n, nil, errors.New("inotify: half a name")
	}
	name, _, _ := bytes.Cut(data[:size], []byte{0})
	n.name = string(name)
	return n, data[size:], nil
}

// openNotices makes a queue of events for which the runtime's poller waits.
func openNotices() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, watchRefusal(err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// notify asks for the events of an open directory: by its descriptor, so that no
// link is followed.
func notify(queue *os.File, dir *os.File) (watch int32, err error) {
	link := fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	err = control(queue, func(fd int) error {
		n, err := unix.InotifyAddWatch(fd, link, watchMask)
		watch = int32(n) //nolint:gosec // the kernel's is an int
		return err
	})
	if err != nil {
		return 0, watchRefusal(err)
	}
	return watch, nil
}

// forgo ends the events of a directory.
func forgo(queue *os.File, watch int32) {
	_ = control(queue, func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(watch))
		return err
	})
}

// control calls with the descriptor of a file that may be closed meanwhile.
func control(file *os.File, call func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = call(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// watchRefusal names the kernel's own bounds.
func watchRefusal(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return refuse(guestwire.TooMuch, "inotify: "+err.Error())
	}
	return err
}
