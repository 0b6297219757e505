package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// A place is a name in a directory that is open: whatever becomes of the path
// that led there, and of links that a program puts in its way, what is done at a
// place is done in that directory.
type place struct {
	dir  *os.File
	name string // a single one
}

// openPlace opens the directory of a path.
func openPlace(path string) (place, error) {
	dir, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	return place{dir: dir, name: filepath.Base(path)}, err
}

func (p place) fd() int { return int(p.dir.Fd()) }

func (p place) close() { _ = p.dir.Close() }

// fail names the place in an error of the kernel.
func (p place) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: p.name, Err: err}
}

// stat looks at what lies there; a link is not followed.
func (p place) stat() (unix.Stat_t, error) {
	var stat unix.Stat_t
	err := ignoringEINTR(func() error { return unix.Fstatat(p.fd(), p.name, &stat, unix.AT_SYMLINK_NOFOLLOW) })
	return stat, p.fail("stat", err)
}

// open opens what lies there unless it is a link, and waits for nothing.
func (p place) open(flags int) (*os.File, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(p.fd(), p.name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, p.fail("open", err)
	}
	return os.NewFile(uintptr(fd), p.name), nil
}

// target is where the link that lies there leads.
func (p place) target() (string, error) {
	buf := make([]byte, guestwire.MaxTarget)
	n := 0
	err := ignoringEINTR(func() (err error) {
		n, err = unix.Readlinkat(p.fd(), p.name, buf)
		return err
	})
	if err != nil {
		return "", p.fail("read link", err)
	}
	return string(buf[:n]), nil
}

// replaceable refuses a place where something lies that no file replaces.
func (p place) replaceable() error {
	stat, err := p.stat()
	if err != nil {
		return nil // nothing is there, or making it will say why not
	}
	if kind := typeOf(stat.Mode); kind != guestwire.TypeFile && kind != guestwire.TypeSymlink {
		return refuse(guestwire.NotAFile, p.name)
	}
	return nil
}

// stagedPrefix begins the name of what is staged; 16 hexadecimal digits follow.
const stagedPrefix = ".write-"

// isStaged says whether a name is one of the agent's own, for a moment.
func isStaged(name string) bool {
	rest, ok := strings.CutPrefix(name, stagedPrefix)
	return ok && len(rest) == 16 && strings.Trim(rest, "0123456789abcdef") == ""
}

// staged is what lies beside its place, under a name of its own, until it is
// whole. Every file that the agent writes comes to its place by this way.
type staged struct {
	place
	beside place // "" is its name once nothing is left there
	old    bool  // what lies beside is what was in the place before: see swap
}

// stage makes something beside a place.
func stage(p place, create func(beside place) error) (*staged, error) {
	for range 16 {
		var random [8]byte
		if _, err := unix.Getrandom(random[:], 0); err != nil {
			return nil, err
		}
		beside := place{dir: p.dir, name: fmt.Sprintf("%s%x", stagedPrefix, random)}
		err := create(beside)
		if err == nil {
			return &staged{place: p, beside: beside}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			_ = unix.Unlinkat(p.fd(), beside.name, 0) // it may be there, but not be whole
			if errors.Is(err, fs.ErrNotExist) {
				err = errTakenAway
			}
			return nil, err
		}
	}
	return nil, fs.ErrExist
}

// attributes are what a file has beside its content.
type attributes struct {
	mode     uint32    // permission bits, setuid, setgid, sticky
	uid, gid int       // -1 leaves them
	modified time.Time // zero is now
}

// owned are the attributes of what the agent makes for a user.
func owned(who account, mode uint32) attributes {
	if who.same {
		return attributes{mode: mode, uid: -1, gid: -1}
	}
	return attributes{mode: mode, uid: int(who.uid), gid: int(who.gid)}
}

// give sets the attributes of an open file. The owner comes first: a change of
// it takes setuid away.
func (a attributes) give(file *os.File) error {
	if a.uid >= 0 {
		if err := file.Chown(a.uid, a.gid); err != nil {
			return err
		}
	}
	if err := ignoringEINTR(func() error { return unix.Fchmod(int(file.Fd()), a.mode) }); err != nil {
		return &os.PathError{Op: "chmod", Path: file.Name(), Err: err}
	}
	return setModified(file, a.modified)
}

// setModified sets the time of an open file's last change, by its descriptor.
func setModified(file *os.File, modified time.Time) error {
	if modified.IsZero() {
		return nil
	}
	times := timesOf(modified)
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, file.Fd(), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return &os.PathError{Op: "set time", Path: file.Name(), Err: errno}
	}
	return nil
}

// timesOf leaves the time of access and sets that of the last change.
func timesOf(modified time.Time) [2]unix.Timespec {
	return [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: modified.Unix(), Nsec: int64(modified.Nanosecond())}}
}

// stageFile writes a file beside its place, with all that it is to have. It
// closes the place's directory when it fails; afterwards the staged one does.
func (a *Agent) stageFile(p place, has attributes, body io.Reader) (s *staged, entry guestwire.Entry, err error) {
	defer func() {
		if err != nil {
			s.drop()
			p.close()
		}
	}()
	if err = p.replaceable(); err != nil {
		return nil, entry, err
	}
	var file *os.File
	s, err = stage(p, func(beside place) (err error) {
		file, err = beside.open(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL)
		return err
	})
	if err != nil {
		return nil, entry, err
	}
	if _, err = a.fill(file, body); err == nil {
		err = has.give(file)
	}
	if err == nil {
		entry, err = describe(file, p.name)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return s, entry, err
}

// commit renames what is whole to its place.
func (s *staged) commit() error { return s.rename(0) }

// commitNew is commit where nothing may lie yet.
func (s *staged) commitNew() error { return s.rename(unix.RENAME_NOREPLACE) }

func (s *staged) rename(flags uint) error {
	err := ignoringEINTR(func() error { return unix.Renameat2(s.fd(), s.beside.name, s.fd(), s.name, flags) })
	if err == nil {
		s.beside.name = ""
	}
	return s.fail("rename", err)
}

// drop removes what lies beside the place, if anything does.
func (s *staged) drop() {
	if s != nil && s.beside.name != "" {
		_ = ignoringEINTR(func() error { return unix.Unlinkat(s.fd(), s.beside.name, 0) })
		s.beside.name = ""
	}
}

// close drops what is left and closes the directory.
func (s *staged) close() {
	s.drop()
	s.place.close()
}
