package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// mostMembers is how many things one copy makes here at most: their number is the
// guest's word.
const mostMembers = 1_000_000

// longestPath bounds a member's path, and with it how many directories are in
// each other.
const longestPath = 4096

// extraction puts an archive of a sandbox into a directory here. The archive is
// hostile: whatever it says, nothing is made, changed or followed outside of root,
// no link on the way to a member is followed, and nothing is made but files,
// directories and links. What it makes is whole or is not there.
type extraction struct {
	root   *os.Root
	top    bool  // root gets mode and time of the archive's directory
	all    bool  // also what is here already
	owners bool  // those in the archive
	limit  int64 // bytes of content; 0 is none
	meter  *meter

	last    string // the member that was done last, "" before the first
	large   entry  // the file at which reading stopped with errLarge
	open    []openDir
	members int64
	content int64 // bytes that were asked for
	leftOut int64 // FIFOs, devices, and what nobody knows
	outward int64 // links that lead out of root
}

// openDir is a directory that more may come into. It gets its mode and its time
// when nothing does any more.
type openDir struct {
	name     string
	mode     fs.FileMode
	modified time.Time
	uid, gid int // -1 leaves them
}

// errLarge ends the reading of an archive at a file that is copied by itself, so
// that what breaks off goes on inside it.
var errLarge = errors.New("a large file comes by itself")

// read takes members until the archive ends, or the next one lies behind last
// ("" is never). A member that breaks off leaves nothing.
func (x *extraction) read(archive *tar.Reader, last string) error {
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // that one is told of below
			return err
		}
		if head.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name := head.Name
		if head.Typeflag == tar.TypeDir {
			name = strings.TrimSuffix(name, "/")
		}
		switch {
		case name == "." && head.Typeflag == tar.TypeDir && x.last == "":
		case len(name) > longestPath:
			return &hostileError{name, fmt.Sprintf("whose name is longer than %d bytes", longestPath)}
		case !plainPath(name):
			return &hostileError{head.Name, "which lies outside of it"}
		case x.last != "" && comparePaths(name, x.last) <= 0:
			return &hostileError{name, "which comes twice or out of order"}
		}
		if last != "" && comparePaths(name, last) > 0 {
			return nil
		}
		if x.members++; x.members > mostMembers {
			return tooMany()
		}
		if err := x.member(name, head, archive); err != nil {
			return withoutName(name, err)
		}
		if x.last = name; name == last {
			return nil
		}
	}
}

func (x *extraction) member(name string, head *tar.Header, content io.Reader) error {
	x.meter.do("receiving %s", short(name))
	if isPartial(name) {
		return nil
	}
	if err := x.enter(name); err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeDir:
		return x.directory(name, head)
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.file(name, head, content)
	case tar.TypeSymlink:
		return x.symlink(name, head)
	case tar.TypeLink:
		return x.link(name, head)
	default:
		x.leftOut++
		return nil
	}
}

// enter leaves the directories that name is not in, and makes sure of those that
// it is in: that they are directories, and no links to some.
func (x *extraction) enter(name string) error {
	for len(x.open) > 0 && !within(name, x.open[len(x.open)-1].name) {
		if err := x.leave(); err != nil {
			return err
		}
	}
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		dir := name[:i]
		if n := len(x.open); n > 0 && within(x.open[n-1].name+"/", dir) {
			continue // it is open already
		}
		info, err := x.root.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := x.root.Mkdir(dir, 0o700); err != nil {
				return err
			}
			x.open = append(x.open, openDir{name: dir, mode: 0o755, modified: time.Now(), uid: -1, gid: -1})
		case err != nil:
			return err
		case !info.IsDir():
			return inTheWay(dir)
		default: // what comes into it is not to change its time
			if info.Mode().Perm()&0o700 != 0o700 {
				if err := x.root.Chmod(dir, 0o700); err != nil {
					return err
				}
			}
			x.open = append(x.open, openDir{name: dir, mode: info.Mode().Perm(), modified: info.ModTime(), uid: -1, gid: -1})
		}
	}
	return nil
}

// enterTop begins with root as it is in the sandbox.
func (x *extraction) enterTop(e entry) {
	top := openDir{name: ".", mode: e.mode, modified: e.modified, uid: -1, gid: -1}
	if x.owners {
		top.uid, top.gid = e.uid, e.gid
	}
	x.open = append(x.open, top)
}

// within says whether a path lies in a directory.
func within(name, dir string) bool { return dir == "." || strings.HasPrefix(name, dir+"/") }

// leave finishes the directory that was entered last.
func (x *extraction) leave() error {
	dir := x.open[len(x.open)-1]
	x.open = x.open[:len(x.open)-1]
	info, err := x.root.Lstat(dir.name)
	if err != nil || !info.IsDir() {
		return withoutName(dir.name, err)
	}
	if dir.uid >= 0 {
		err = x.root.Lchown(dir.name, dir.uid, dir.gid)
	}
	if err == nil {
		err = x.root.Chtimes(dir.name, time.Time{}, dir.modified)
	}
	if err == nil && info.Mode().Perm() != dir.mode {
		err = x.root.Chmod(dir.name, dir.mode)
	}
	return withoutName(dir.name, err)
}

// finish leaves all directories.
func (x *extraction) finish() error {
	var all []error
	for len(x.open) > 0 {
		all = append(all, x.leave())
	}
	return errors.Join(all...)
}

func (x *extraction) directory(name string, head *tar.Header) error {
	if name == "." {
		if !x.top {
			return nil
		}
		x.open = x.open[:0] // it may have been entered by what was known of it before
	}
	info, err := x.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = x.root.Mkdir(name, 0o700)
	case err == nil && !info.IsDir():
		err = inTheWay(name)
	case err == nil && info.Mode().Perm()&0o700 != 0o700:
		err = x.root.Chmod(name, 0o700) // until all is in it
	}
	if err != nil {
		return err
	}
	dir := openDir{name: name, mode: modeOf(head), modified: head.ModTime, uid: -1, gid: -1}
	if x.owners {
		dir.uid, dir.gid = head.Uid, head.Gid
	}
	x.open = append(x.open, dir)
	return nil
}
