package guest

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	packBuffer = 64 << 10 // bytes that are sent at once
	linkBytes  = 1 << 20  // of names of files with several links: those beyond come as copies
)

// pack is an archive on its way to the host.
type pack struct {
	out   *tar.Writer
	names *ownerNames
	links map[inode]string // first member of a file that has several links
	bytes int              // of links
}

type inode struct{ dev, ino uint64 }

// serveReadArchive packs a directory or a file.
func (a *Agent) serveReadArchive(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	squeeze, err1 := truth(r.query, "gzip")
	after, err2 := afterPath(r.query.Get("after"))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	top, err := a.resolve(absolute(conf.Workdir, name))
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	defer top.close()
	if top.stat, err = top.place.stat(); err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	if typeOf(top.stat.Mode) == guestwire.TypeSocket {
		return refuse(guestwire.NotAFile, name)
	}
	p := &pack{names: newOwnerNames(a.under("/etc")), links: make(map[inode]string)}
	w.header(200, "application/octet-stream", -1)
	return p.send(w, squeeze, func() error { return p.top(top, after) })
}

// resolve opens the place to which a path leads, the last link followed.
func (a *Agent) resolve(path string) (*found, error) {
	if _, err := os.Stat(a.under(path)); err != nil {
		return nil, err // as the kernel words it
	}
	real, err := filepath.EvalSymlinks(a.under(path))
	if err != nil {
		return nil, err
	}
	p, err := openPlace(real)
	return &found{place: p, path: filepath.Base(path)}, err
}

// send makes the archive of what walk adds. One that is not whole has no end.
func (p *pack) send(w io.Writer, squeeze bool, walk func() error) error {
	buffered := bufio.NewWriterSize(w, packBuffer)
	out := io.Writer(buffered)
	var zip *gzip.Writer
	if squeeze {
		var err error
		if zip, err = gzip.NewWriterLevel(buffered, gzip.BestSpeed); err != nil {
			return err
		}
		out = zip
	}
	p.out = tar.NewWriter(out)
	if err := walk(); err != nil {
		return err
	}
	if err := p.out.Close(); err != nil {
		return err
	}
	if zip != nil {
		if err := zip.Close(); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// top packs what was asked for: a file alone, or a directory with what it holds.
func (p *pack) top(f *found, after string) error {
	if typeOf(f.stat.Mode) != guestwire.TypeDirectory {
		_, err := p.add(f)
		return err
	}
	dir, err := f.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if f.path = "."; after == "" {
		if _, err := p.add(f); err != nil {
			return err
		}
	}
	return (&walk{most: holdNames, visit: p.add, enter: holdsFiles}).within(dir, "", after, 1)
}

// holdsFiles says whether a directory may be gone into: what the kernel shows of
// itself in /proc, /sys and the like is no content, and does not have the size
// that it says.
func holdsFiles(dir *os.File, _ *found) bool {
	var stat unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(int(dir.Fd()), &stat) }); err != nil {
		return false
	}
	switch stat.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC:
		return false
	}
	return true
}

// add packs one member.
func (p *pack) add(f *found) (into bool, err error) {
	head := &tar.Header{Name: f.path, Format: tar.FormatPAX}
	var content *os.File
	switch kind := typeOf(f.stat.Mode); kind {
	case guestwire.TypeSocket:
		return false, nil // nobody listens to one that was unpacked
	case guestwire.TypeDirectory:
		head.Typeflag, head.Name = tar.TypeDir, f.path+"/"
	case guestwire.TypeFIFO:
		head.Typeflag = tar.TypeFifo
	case guestwire.TypeDevice:
		head.Typeflag = tar.TypeChar
		if f.stat.Mode&unix.S_IFMT == unix.S_IFBLK {
			head.Typeflag = tar.TypeBlock
		}
		head.Devmajor, head.Devminor = int64(unix.Major(f.stat.Rdev)), int64(unix.Minor(f.stat.Rdev)) //nolint:unconvert // as the kernel has it
	case guestwire.TypeSymlink:
		if head.Linkname, err = f.target(); vanished(err) || errors.Is(err, unix.EINVAL) {
			return false, nil // it is no link any more
		} else if err != nil {
			return false, err
		}
		head.Typeflag = tar.TypeSymlink
	case guestwire.TypeFile:
		if content, err = f.content(); err != nil || content == nil {
			return false, err
		}
		defer func() { _ = content.Close() }()
		p.file(f, head)
	}
	head.Mode, head.Uid, head.Gid = int64(f.stat.Mode&0o7777), int(f.stat.Uid), int(f.stat.Gid)
	head.Uname, head.Gname = p.names.user(f.stat.Uid), p.names.group(f.stat.Gid)
	head.ModTime = time.Unix(f.stat.Mtim.Unix())
	if err := p.out.WriteHeader(head); err != nil {
		return false, err
	}
	if head.Size > 0 {
		n, err := fill(p.out, io.LimitReader(content, head.Size))
		if err == nil && n < head.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// content opens a regular file, and looks at it anew; nil where there is none any
// more.
func (f *found) content() (*os.File, error) {
	file, err := f.open(unix.O_RDONLY)
	if vanished(err) || errors.Is(err, unix.ENXIO) {
		return nil, nil //nolint:nilnil // something else lies there now
	}
	if err != nil {
		return nil, err
	}
	err = ignoringEINTR(func() error { return unix.Fstat(int(file.Fd()), &f.stat) })
	if err == nil && typeOf(f.stat.Mode) == guestwire.TypeFile {
		return file, nil
	}
	_ = file.Close()
	return nil, f.fail("stat", err)
}

// file fills the header of a regular file: with its size, or as a link to the
// member that has its content.
func (p *pack) file(f *found, head *tar.Header) {
	head.Typeflag, head.Size = tar.TypeReg, f.stat.Size
	if f.stat.Nlink < 2 {
		return
	}
	key := inode{uint64(f.stat.Dev), f.stat.Ino} //nolint:unconvert // 32 bits on other machines
	if first, ok := p.links[key]; ok {
		head.Typeflag, head.Size, head.Linkname = tar.TypeLink, 0, first
		return
	}
	if p.bytes += len(f.path); p.bytes <= linkBytes {
		p.links[key] = strings.Clone(f.path)
	}
}
