package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// treePacker writes a directory as a tar: everything of it, in the order of names,
// and nothing of this machine. It never follows a link.
type treePacker struct {
	out   *tar.Writer
	top   string
	dev   uint64           // the file system that it stays on
	first map[inode]string // names of files with several
	note  func(string, ...any)

	labels int // attributes that were left out
}

type inode struct{ dev, ino uint64 }

// hostLabels are attributes that a machine puts on its files, whatever they are.
var hostLabels = []string{"security.selinux", "security.ima", "security.evm"}

// packTree returns a directory as a stream. note says what is left out.
func packTree(ctx context.Context, top string, note func(string, ...any)) (io.ReadCloser, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Clean(top), &stat); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: top, Err: err}
	}
	if stat.Uid != 0 {
		note("%s belongs to uid %d of this machine, and its root directory will in the image", clean(top), stat.Uid)
	}
	stream, in := io.Pipe()
	p := &treePacker{out: tar.NewWriter(in), top: top, dev: stat.Dev, first: map[inode]string{}, note: note}
	go func() {
		err := p.pack(ctx)
		if err == nil && p.labels > 0 {
			note("left out %d labels of this machine (%s)", p.labels, strings.Join(hostLabels, ", "))
		}
		in.CloseWithError(err)
	}()
	return stream, nil
}

func (p *treePacker) pack(ctx context.Context) error {
	err := filepath.WalkDir(p.top, func(path string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = p.add(path)
		}
		if errors.Is(err, fs.ErrPermission) {
			return hint(err, "repeat as root: a root tree has files that only root may read")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("pack %s: %w", clean(p.top), err)
	}
	return p.out.Close()
}

// add writes one file of the tree.
func (p *treePacker) add(path string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	name, err := filepath.Rel(p.top, path)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Name: name, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		ModTime: time.Unix(stat.Mtim.Unix()), Format: tar.FormatPAX,
	}
	if stat.Dev != p.dev {
		p.note("left out what is mounted at %s", clean(name))
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		header.Typeflag, header.Name, header.Mode, header.Uid, header.Gid = tar.TypeDir, name+"/", 0o755, 0, 0
		if err := p.out.WriteHeader(header); err != nil {
			return err
		}
		return fs.SkipDir
	}
	if first, again := p.first[inode{stat.Dev, stat.Ino}]; again {
		header.Typeflag, header.Linkname = tar.TypeLink, first
		return p.out.WriteHeader(header)
	}
	if header.PAXRecords, err = p.attributes(path); err != nil {
		return err
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.addFile(path, header, stat)
	case unix.S_IFDIR:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case unix.S_IFLNK:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		header.Typeflag = tar.TypeChar
		if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
			header.Typeflag = tar.TypeBlock
		}
		header.Devmajor, header.Devminor = int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
	default:
		return fmt.Errorf("%s is a socket, which no image can have; remove it", clean(path))
	}
	p.remember(stat, name)
	return p.out.WriteHeader(header)
}

func (p *treePacker) addFile(path string, header *tar.Header, stat unix.Stat_t) error {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // read only
	header.Typeflag, header.Size = tar.TypeReg, stat.Size
	p.remember(stat, header.Name)
	if err := p.out.WriteHeader(header); err != nil {
		return err
	}
	n, err := io.Copy(p.out, io.LimitReader(file, stat.Size))
	if err == nil && n != stat.Size {
		err = fmt.Errorf("%s became shorter while it was read", clean(path))
	}
	return err
}

// remember keeps the first name of a file with several.
func (p *treePacker) remember(stat unix.Stat_t, name string) {
	if stat.Nlink > 1 && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		p.first[inode{stat.Dev, stat.Ino}] = name
	}
}

// attributes reads a file's extended attributes, but for the machine's labels. The
// node refuses those that no image can have.
func (p *treePacker) attributes(path string) (map[string]string, error) {
	list, err := grown(func(room []byte) (int, error) { return unix.Llistxattr(path, room) })
	if err != nil || len(list) == 0 {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return nil, err
	}
	records := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if slices.Contains(hostLabels, name) {
			p.labels++
			continue
		}
		value, err := grown(func(room []byte) (int, error) { return unix.Lgetxattr(path, name, room) })
		if err != nil {
			return nil, &fs.PathError{Op: "read attribute " + name + " of", Path: path, Err: err}
		}
		records["SCHILY.xattr."+name] = string(value)
	}
	return records, nil
}

// grown calls with room for what the call says it needs, which may change.
func grown(call func(room []byte) (int, error)) ([]byte, error) {
	for {
		n, err := call(nil)
		if err != nil || n == 0 {
			return nil, err
		}
		room := make([]byte, n)
		if n, err = call(room); !errors.Is(err, unix.ERANGE) {
			return room[:max(n, 0)], err
		}
	}
}
