package guest

import (
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// entryOf describes what lies at a path, but for a link's target.
func entryOf(path string, stat *unix.Stat_t) guestwire.Entry {
	return guestwire.Entry{
		Path: path, Type: typeOf(stat.Mode), Size: stat.Size, Mode: fmt.Sprintf("%04o", stat.Mode&0o7777),
		UID: stat.Uid, GID: stat.Gid, ModifiedNS: nanoseconds(stat.Mtim), Inode: stat.Ino,
	}
}

func typeOf(mode uint32) guestwire.EntryType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return guestwire.TypeFile
	case unix.S_IFDIR:
		return guestwire.TypeDirectory
	case unix.S_IFLNK:
		return guestwire.TypeSymlink
	case unix.S_IFIFO:
		return guestwire.TypeFIFO
	case unix.S_IFSOCK:
		return guestwire.TypeSocket
	}
	return guestwire.TypeDevice
}

// nanoseconds is a time in ns since 1970, or the nearest that fits: a file may
// claim any time.
func nanoseconds(t unix.Timespec) int64 {
	switch second := int64(t.Sec); { //nolint:unconvert // 32 bits on other machines
	case second >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	case second <= math.MinInt64/int64(time.Second):
		return math.MinInt64
	}
	return t.Nano()
}

// describe is the entry of an open file.
func describe(file *os.File, path string) (guestwire.Entry, error) {
	var stat unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(int(file.Fd()), &stat) }); err != nil {
		return guestwire.Entry{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return entryOf(path, &stat), nil
}

// ignoringEINTR repeats a call that a signal interrupts: on a FUSE file system
// any may be.
func ignoringEINTR(call func() error) error {
	for {
		if err := call(); err != unix.EINTR { //nolint:errorlint // as the kernel gives it
			return err
		}
	}
}
