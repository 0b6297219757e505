package main

import (
	"archive/tar"
	"context"
	"io/fs"
	"os"
	"path/filepath"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// tree is what a copy out of this machine consists of.
type tree struct {
	entries []entry // in the order of lists
	leftOut int64   // FIFOs, sockets and devices
	ignored int64   // by an ignore file; what is in a directory is not counted
}

// scan walks a directory. Links are not followed beneath it. What ignore holds for
// is left out, with all that is in it.
func scan(ctx context.Context, root string, ignore func(name string, dir bool) bool) (*tree, error) {
	t := new(tree)
	top, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	e := localEntry(top, ".", root)
	t.entries = append(t.entries, e)
	return t, t.add(ctx, root, "", ignore)
}

func (t *tree) add(ctx context.Context, dir, prefix string, ignore func(string, bool) bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	children, err := os.ReadDir(dir) // sorted by bytes
	if err != nil {
		return err
	}
	for _, child := range children {
		name, local := prefix+child.Name(), filepath.Join(dir, child.Name())
		if isPartial(name) {
			continue
		}
		if ignore != nil && ignore(name, child.IsDir()) {
			t.ignored++
			continue
		}
		info, err := child.Info()
		if err != nil {
			return err
		}
		e := localEntry(info, name, local)
		if e.special() {
			t.leftOut++
			continue
		}
		if e.link() {
			if e.target, err = os.Readlink(local); err != nil {
				return err
			}
		}
		t.entries = append(t.entries, e)
		if e.dir() {
			if err := t.add(ctx, local, name+"/", ignore); err != nil {
				return err
			}
		}
	}
	return nil
}

// localEntry describes what lies here.
func localEntry(info fs.FileInfo, name, local string) entry {
	e := entry{path: name, local: local, size: info.Size(), mode: info.Mode().Perm(), modified: info.ModTime()}
	switch info.Mode().Type() {
	case 0:
		e.kind = microvm.FileTypeFile
	case fs.ModeDir:
		e.kind = microvm.FileTypeDirectory
	case fs.ModeSymlink:
		e.kind = microvm.FileTypeSymlink
	case fs.ModeNamedPipe:
		e.kind = microvm.FileTypeFifo
	case fs.ModeSocket:
		e.kind = microvm.FileTypeSocket
	default:
		e.kind = microvm.FileTypeDevice
	}
	if head, err := tar.FileInfoHeader(info, ""); err == nil { // it knows this system's numbers
		e.uid, e.gid = head.Uid, head.Gid
	}
	return e
}
