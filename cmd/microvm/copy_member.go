package main

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// file takes a regular file, unless it is here as it is there.
func (x *extraction) file(name string, head *tar.Header, content io.Reader) error {
	if err := x.take(head.Size); err != nil {
		return err
	}
	if !x.all && x.isHere(name, head) {
		return nil
	}
	if head.Size >= largeFile {
		x.large = memberEntry(name, head)
		return errLarge
	}
	return x.beside(name, func(partial string) error {
		file, err := x.root.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(file, &metered{content, x.meter})
		if err == nil && n != head.Size {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && x.owners {
			err = file.Chown(head.Uid, head.Gid)
		}
		if err == nil {
			err = file.Chmod(modeOf(head))
		}
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = x.root.Chtimes(partial, time.Time{}, head.ModTime)
		}
		if err != nil {
			x.meter.add(-n)
			return err
		}
		x.meter.addFile()
		return nil
	})
}

// take counts content before it comes, against the bound.
func (x *extraction) take(bytes int64) error {
	if x.content += bytes; x.limit > 0 && (x.content > x.limit || x.content < 0) {
		return hint(fmt.Errorf("the sandbox has more than %s of content to copy, which is what --max-size allows", size(x.limit)), "copy parts of it, or give a larger --max-size")
	}
	return nil
}

func (x *extraction) isHere(name string, head *tar.Header) bool {
	info, err := x.root.Lstat(name)
	if err != nil {
		return false
	}
	here, there := localEntry(info, name, ""), memberEntry(name, head)
	return there.same(here, x.owners)
}

func memberEntry(name string, head *tar.Header) entry {
	return entry{path: name, kind: microvm.FileTypeFile, size: head.Size, mode: modeOf(head), modified: head.ModTime, uid: head.Uid, gid: head.Gid}
}

// symlink makes a link, wherever it leads: it is text, and nothing of the copy
// goes through it. Those that lead out of the copy are counted, to be told of.
func (x *extraction) symlink(name string, head *tar.Header) error {
	if old, err := x.root.Readlink(name); !x.all && err == nil && old == head.Linkname {
		return nil
	}
	if path.IsAbs(head.Linkname) || strings.HasPrefix(path.Join(path.Dir(name), head.Linkname)+"/", "../") { //nolint:gosec // only told of
		x.outward++
	}
	err := x.beside(name, func(partial string) error {
		err := x.root.Symlink(head.Linkname, partial)
		if err == nil && x.owners {
			err = x.root.Lchown(partial, head.Uid, head.Gid)
		}
		return err
	})
	if err == nil {
		x.meter.addFile()
	}
	return err
}

// link makes one more name of a file that came before.
func (x *extraction) link(name string, head *tar.Header) error {
	if !plainPath(head.Linkname) || comparePaths(head.Linkname, name) >= 0 {
		return &hostileError{name, "a link to what did not come before it"}
	}
	for i := range len(head.Linkname) {
		if head.Linkname[i] != '/' {
			continue
		}
		if info, err := x.root.Lstat(head.Linkname[:i]); err != nil || !info.IsDir() {
			return &hostileError{name, "a link to what did not come before it"}
		}
	}
	old, err := x.root.Lstat(head.Linkname)
	if err != nil || !old.Mode().IsRegular() {
		return &hostileError{name, "a link to what did not come before it"}
	}
	if now, err := x.root.Lstat(name); err == nil && os.SameFile(now, old) {
		return nil
	}
	err = x.beside(name, func(partial string) error { return x.root.Link(head.Linkname, partial) })
	if err == nil {
		x.meter.addFile()
	}
	return err
}

// modeOf is a member's permission bits. Whose program it would run as here is
// nothing that a guest says: setuid and setgid are dropped.
func modeOf(head *tar.Header) fs.FileMode { return fs.FileMode(head.Mode & 0o777) } //nolint:gosec // nine bits

// beside makes something beside its place, and moves it there.
func (x *extraction) beside(name string, create func(partial string) error) error {
	if info, err := x.root.Lstat(name); err == nil && info.IsDir() {
		return isDirectory(name)
	}
	partial := path.Join(path.Dir(name), partialName(name, rand.Text()))
	err := create(partial)
	if err == nil {
		err = x.root.Rename(partial, name)
	}
	if err != nil {
		if gone := x.root.Remove(partial); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
