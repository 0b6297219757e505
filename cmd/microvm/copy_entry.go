package main

import (
	"cmp"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// entry is one thing in a tree that is copied, on either side.
type entry struct {
	path     string // below the tree, with slashes; "." is the tree itself
	kind     microvm.FileType
	size     int64
	mode     fs.FileMode // permission bits
	modified time.Time
	target   string // of a link
	uid, gid int

	local string // where it is here; "" of one in a sandbox
}

func (e entry) dir() bool  { return e.kind == microvm.FileTypeDirectory }
func (e entry) file() bool { return e.kind == microvm.FileTypeFile }
func (e entry) link() bool { return e.kind == microvm.FileTypeSymlink }

// special says that it is nothing that is copied: a FIFO, a socket or a device.
func (e entry) special() bool { return !e.dir() && !e.file() && !e.link() }

// same says whether what is at the end of a copy is what would be sent. Contents
// are told apart by size and time, as the API tells it: in milliseconds.
func (e entry) same(there entry, owners bool) bool {
	switch {
	case e.kind != there.kind, owners && (e.uid != there.uid || e.gid != there.gid):
		return false
	case e.link():
		return e.target == there.target
	case e.mode != there.mode, !sameTime(e.modified, there.modified):
		return false
	default:
		return e.dir() || e.size == there.size
	}
}

func sameTime(a, b time.Time) bool {
	return a.Truncate(time.Millisecond).Equal(b.Truncate(time.Millisecond))
}

// comparePaths orders paths as the API's lists and archives do: part by part, and
// the parts by their bytes, so that a directory stands right before what it holds.
// The tree itself comes first.
func comparePaths(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == ".":
		return -1
	case b == ".":
		return 1
	}
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		}
		return cmp.Compare(a[i], b[i])
	}
	return cmp.Compare(len(a), len(b))
}

// plainPath says whether a path from a sandbox names one thing beneath a tree,
// in one way.
func plainPath(name string) bool {
	return name != "." && path.Clean(name) == name && filepath.IsLocal(filepath.FromSlash(name)) && !strings.ContainsRune(name, 0)
}
