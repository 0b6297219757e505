package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// beneath is how everything in a jail is looked up: below the descriptor, on
// its file system, and through no symlink of any kind.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens name below dir. O_CLOEXEC and O_NOFOLLOW are added.
func openBeneath(dir int, name string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: beneath} //nolint:gosec // flags are constants
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err == unix.EINTR || err == unix.EAGAIN { // EAGAIN: a rename raced with the lookup (openat2(2))
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "openat2", Path: name, Err: err}
		}
		return fd, nil
	}
}

// openDir opens a directory below dir for the ...at calls.
func openDir(dir int, name string) (*os.File, error) {
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// dialSocket connects to a stream socket that must lie right in dir. It looks
// the name up once, makes sure that it is a socket, and connects to just that
// inode: a link planted meanwhile leads nowhere.
func dialSocket(ctx context.Context, dir int, name string) (net.Conn, error) {
	fd, err := openBeneath(dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is no socket (mode %o)", name, stat.Mode)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

const (
	// maxDepth bounds the descriptors that removeTree holds. What lies deeper
	// is first moved up: a VMM can nest directories far beyond the longest path.
	maxDepth = 16
	// namesAtOnce bounds the names that removeTree reads ahead.
	namesAtOnce = 256
)

// removeTree removes dir/name and all below it, following no link and crossing
// no mount. It is complete however deep and wide the tree is, holds at most
// maxDepth descriptors, and stops between two entries when the context ends; a
// repeat goes on. What is not there is no error.
func removeTree(ctx context.Context, dir int, name string) error {
	top, err := openForRead(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	r := remover{ctx: ctx, top: top}
	for {
		r.moved = 0
		if err := r.empty(top, 0); err != nil {
			return err
		}
		if r.moved == 0 {
			break
		}
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

type remover struct {
	ctx   context.Context //nolint:containedctx // lives for one call of removeTree
	top   *os.File
	moved int // directories moved up to top since the last pass
	names int // ever given to moved directories
}

// empty removes all entries of dir.
func (r *remover) empty(dir *os.File, depth int) error {
	for {
		// Removing while reading may skip entries: read from the start until
		// there is none.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if r.ctx.Err() != nil {
				return context.Cause(r.ctx)
			}
			if err := r.remove(dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (r *remover) remove(dir *os.File, name string, depth int) error {
	at := int(dir.Fd())
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth >= maxDepth {
		return r.moveUp(at, name)
	}
	child, err := openForRead(at, name)
	if err != nil {
		return err
	}
	err = errors.Join(r.empty(child, depth+1), child.Close())
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// moveUp gives a directory that lies too deep a new name right below top, where
// the next pass finds it.
func (r *remover) moveUp(at int, name string) error {
	for {
		r.names++
		err := unix.Renameat2(at, name, int(r.top.Fd()), fmt.Sprintf("deep-%d", r.names), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue // left by a pass that was cut short
		}
		if err != nil {
			return &os.PathError{Op: "move up", Path: name, Err: err}
		}
		r.moved++
		return nil
	}
}

func openForRead(dir int, name string) (*os.File, error) {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
