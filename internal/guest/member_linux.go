package guest

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// member unpacks one member.
func (u *unpack) member(head *tar.Header, content io.Reader) error {
	if head.Typeflag == tar.TypeXGlobalHeader {
		return nil // a comment, as git archive makes it
	}
	name, err := memberPath(head.Name)
	if err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeDir:
		return u.directory(name, head)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink:
	default: // devices and FIFOs, and what nobody knows
		return refuse(guestwire.UnsafeMember, name)
	}
	if name == "." || strings.HasSuffix(head.Name, "/") {
		return refuse(guestwire.UnsafeMember, name)
	}
	p, err := u.place(name)
	if err != nil {
		return err
	}
	if head.Typeflag == tar.TypeReg || head.Typeflag == tar.TypeGNUSparse {
		return u.file(p, head, content)
	}
	defer p.close()
	if head.Typeflag == tar.TypeSymlink {
		return u.symlink(p, head)
	}
	return u.link(p, head)
}

// memberPath refuses a name that is absolute or goes up, and cleans it.
func memberPath(name string) (string, error) {
	if name == "" || len(name) > guestwire.MaxPath || path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", refuse(guestwire.UnsafeMember, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refuse(guestwire.UnsafeMember, name)
		}
	}
	return path.Clean(name), nil
}

// attributes are what a member gets.
func (u *unpack) attributes(head *tar.Header) attributes {
	has := owned(u.owner, uint32(head.Mode)&0o1777)
	if u.keep {
		has = attributes{mode: uint32(head.Mode) & 0o7777, uid: max(head.Uid, 0), gid: max(head.Gid, 0)}
	}
	has.modified = head.ModTime
	return has
}

// place opens the directory of a member; what is missing of it is made.
func (u *unpack) place(name string) (place, error) {
	dir, err := u.open(path.Dir(name))
	return place{dir: dir, name: path.Base(name)}, err
}

// open opens a directory beneath the root. One that is missing is made.
func (u *unpack) open(name string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	for range 16 {
		dir, err := u.root.OpenFile(name, flags, 0)
		if !errors.Is(err, fs.ErrNotExist) || name == "." {
			return dir, err
		}
		p, err := u.place(name)
		if err != nil {
			return nil, err
		}
		_, err = u.makeDir(p, owned(u.owner, 0o755))
		p.close()
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, refuse(guestwire.Conflict, name) // somebody takes it away again and again, or a link leads nowhere
}

// file unpacks a regular file: whole, or not at all.
func (u *unpack) file(p place, head *tar.Header, content io.Reader) error {
	s, entry, err := u.agent.stageFile(p, u.attributes(head), content)
	if err != nil {
		return err
	}
	defer s.close()
	if entry.Size < head.Size {
		return io.ErrUnexpectedEOF
	}
	u.sums.Bytes += entry.Size
	return s.commit()
}

// symlink unpacks a link, wherever it leads: it is text, and nothing is unpacked
// through it if that is elsewhere.
func (u *unpack) symlink(p place, head *tar.Header) error {
	if head.Linkname == "" || len(head.Linkname) >= guestwire.MaxTarget {
		return refuse(guestwire.BadRequest, head.Name)
	}
	if err := p.replaceable(); err != nil {
		return err
	}
	has := u.attributes(head)
	times := timesOf(has.modified)
	s, err := stage(p, func(beside place) error {
		err := ignoringEINTR(func() error { return unix.Symlinkat(head.Linkname, beside.fd(), beside.name) })
		if err == nil && has.uid >= 0 {
			err = unix.Fchownat(beside.fd(), beside.name, has.uid, has.gid, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil {
			err = unix.UtimesNanoAt(beside.fd(), beside.name, times[:], unix.AT_SYMLINK_NOFOLLOW)
		}
		return p.fail("make link", err)
	})
	if err != nil {
		return err
	}
	defer s.drop()
	return s.commit()
}

// link unpacks one more name of a file that lies in the directory already.
func (u *unpack) link(p place, head *tar.Header) error {
	name, err := memberPath(head.Linkname)
	if err != nil {
		return err
	}
	dir, err := u.root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	from := place{dir: dir, name: path.Base(name)}
	defer from.close()
	stat, err := from.stat()
	if err != nil {
		return err
	}
	if kind := typeOf(stat.Mode); kind != guestwire.TypeFile && kind != guestwire.TypeSymlink {
		return refuse(guestwire.UnsafeMember, head.Name)
	}
	if err := p.replaceable(); err != nil {
		return err
	}
	s, err := stage(p, func(beside place) error {
		return p.fail("link", ignoringEINTR(func() error {
			return unix.Linkat(from.fd(), from.name, beside.fd(), beside.name, 0)
		}))
	})
	if err != nil {
		return err
	}
	beside := s.beside.name
	err = s.commit()
	s.beside.name = beside // a rename to another name of the same file does nothing (rename(2))
	s.drop()
	return err
}

// directory unpacks a directory. Its mode and time come at the end: until then
// files are put into it.
func (u *unpack) directory(name string, head *tar.Header) error {
	has := u.attributes(head)
	if name != "." {
		p, err := u.place(name)
		if err != nil {
			return err
		}
		defer p.close()
		made, err := u.makeDir(p, attributes{mode: 0o700, uid: has.uid, gid: has.gid})
		if errors.Is(err, fs.ErrExist) {
			if made, err = u.isLink(p, name); made {
				return err
			}
		}
		if err != nil {
			return err
		}
		if !made && !u.keep {
			has.uid, has.gid = -1, -1 // it has an owner
		}
	} else if !u.keep {
		has.uid, has.gid = -1, -1
	}
	if u.bytes += len(name) + unpackedDirCost; u.bytes > unpackedDirBytes {
		return refuse(guestwire.TooMuch, name)
	}
	u.dirs[name] = has
	return nil
}

// isLink says whether a link lies where a directory is to be. One that leads to a
// directory beneath the root does for it, as it is.
func (u *unpack) isLink(p place, name string) (bool, error) {
	stat, err := p.stat()
	switch {
	case err != nil:
		return true, err
	case typeOf(stat.Mode) == guestwire.TypeDirectory:
		return false, nil
	case typeOf(stat.Mode) != guestwire.TypeSymlink:
		return true, refuse(guestwire.Exists, name)
	}
	dir, err := u.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		_ = dir.Close()
	}
	return true, err
}

// makeDir makes a directory, and says so.
func (u *unpack) makeDir(p place, has attributes) (made bool, err error) {
	if err := ignoringEINTR(func() error { return unix.Mkdirat(p.fd(), p.name, 0o700) }); err != nil {
		return false, p.fail("make directory", err)
	}
	dir, err := p.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return true, err
	}
	defer func() { _ = dir.Close() }()
	return true, has.give(dir)
}
