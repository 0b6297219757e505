package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// keepLeast is how much of a file is kept for the next run when a download ends
// early. Tests make it small.
var keepLeast int64 = 1 << 20

// errChanged says that what came before is of another content.
var errChanged = errors.New("the file changes again and again while it is copied")

// fetch is one file on its way out of a sandbox. What came of it lies beside its
// place, under a name that has the file's ETag, so that another run goes on there
// as long as the file is the same.
type fetch struct {
	remote *remote
	from   string   // path in the sandbox
	has    entry    // its mode, time and owner
	root   *os.Root // the directory here
	name   string   // in root
	owners bool
	limit  int64 // bytes; 0 is none
	meter  *meter
	warn   func(format string, args ...any) // says one line

	part *os.File
	tag  string // of what is in part
	size int64  // of what is in part
}

// run copies the file. Beside an error, kept says how much of it stays for the
// next run.
func (f *fetch) run(ctx context.Context) (kept int64, err error) {
	if f.limit > 0 && f.has.size > f.limit {
		return 0, f.tooLarge()
	}
	if err := f.resume(); err != nil {
		return 0, err
	}
	defer func() {
		if f.part == nil {
			return
		}
		_ = f.part.Close()
		if err != nil && f.size >= keepLeast && f.tag != "" {
			kept = f.size
		} else {
			_ = f.root.Remove(f.partName(f.tag))
		}
	}()
	var t tries
	for {
		before := f.size
		f.meter.do("receiving %s", short(f.from))
		err := f.once(ctx)
		switch {
		case err == nil:
			return 0, f.place()
		case errors.Is(err, errChanged) && t.inRow < copyTries:
			t.inRow++
			continue
		}
		if !t.again(ctx, err, f.size > before) {
			return 0, interrupted(ctx, err)
		}
		f.warn("note: %s; going on at %s", clean(err.Error()), size(f.size))
	}
}

// partPrefix begins the names of what came of this file.
func (f *fetch) partPrefix() string {
	return strings.TrimSuffix(partialName(f.remote.sandbox, f.from, f.name), partialSuffix) + "-"
}

func (f *fetch) partName(tag string) string {
	return f.partPrefix() + strings.Trim(tag, `"`) + partialSuffix
}

// plainTag says whether an ETag can be a part of a name.
func plainTag(tag string) bool {
	inner := strings.TrimSuffix(strings.TrimPrefix(tag, `"`), `"`)
	return len(tag) == len(inner)+2 && inner != "" && len(inner) <= 64 && strings.Trim(inner, "0123456789abcdef-") == ""
}

// resume opens what an earlier run left, the largest where there are several.
func (f *fetch) resume() error {
	if f.has.file() && f.has.size < keepLeast {
		return nil // nothing of it was kept
	}
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close() // only read
	if err != nil {
		return err
	}
	for _, name := range names {
		tag, ok := strings.CutPrefix(name, f.partPrefix())
		tag = `"` + strings.TrimSuffix(tag, partialSuffix) + `"`
		if !ok || !isPartial(name) || !plainTag(tag) {
			continue
		}
		if info, err := f.root.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() <= f.size {
			continue
		}
		if err := f.drop(); err != nil {
			return err
		}
		if err := f.begin(tag, 0); err != nil {
			return err
		}
	}
	if f.part != nil {
		f.meter.add(f.size)
		f.warn("note: going on at %s of %s, where an earlier copy ended", size(f.size), clean(f.from))
	}
	return nil
}

// begin opens the file that a content with this tag comes into.
func (f *fetch) begin(tag string, flags int) error {
	part, err := f.root.OpenFile(f.partName(tag), os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return err
	}
	f.part, f.tag, f.size = part, tag, 0
	if err := unix.Flock(int(part.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.part = nil
		return hint(errors.Join(fmt.Errorf("another copy of %s to the same place goes on", clean(f.from)), part.Close()), "wait for it, or end it")
	}
	info, err := part.Stat()
	if err == nil {
		f.size = info.Size()
	}
	return err
}

// drop takes away what came until now.
func (f *fetch) drop() error {
	if f.part == nil {
		return nil
	}
	err := errors.Join(f.part.Close(), f.root.Remove(f.partName(f.tag)))
	f.meter.add(-f.size)
	f.part, f.tag, f.size = nil, "", 0
	return err
}

// once reads the file to its end, or as far as the connection lasts.
func (f *fetch) once(ctx context.Context) error {
	files := f.remote.client.Files
	if f.part == nil && f.has.size >= keepLeast {
		// Its ETag, so that what comes can be gone on with however this ends.
		part, err := files.DownloadRange(ctx, f.remote.sandbox, f.from, microvm.FileRange{Length: 1}, io.Discard)
		if err != nil && !microvm.HasCode(err, microvm.ErrorCodeRangeInvalid) { // it is empty now
			return err
		}
		if err == nil {
			if !plainTag(part.ETag) {
				part.ETag = ""
			}
			if err := f.begin(part.ETag, os.O_CREATE|os.O_TRUNC); err != nil {
				return err
			}
		}
	}
	if f.part == nil {
		if err := f.begin("", os.O_CREATE|os.O_TRUNC); err != nil {
			return err
		}
	}
	var want microvm.FileRange
	if f.size > 0 { // the last byte comes again: a range behind the end is none
		want = microvm.FileRange{Offset: f.size - 1, ETag: f.tag}
	}
	f.meter.add(want.Offset - f.size)
	f.size = want.Offset
	part, err := files.DownloadRange(ctx, f.remote.sandbox, f.from, want, f)
	switch {
	case errors.Is(err, microvm.ErrFileChanged), microvm.HasCode(err, microvm.ErrorCodeRangeInvalid):
		f.warn("note: %s has changed since; it is copied from its beginning", clean(f.from))
		return errors.Join(errChanged, f.drop())
	case err == nil || part == nil || f.tag != "" && part.ETag == f.tag:
		return err
	default: // it was another one by then, or a small one
		return errors.Join(err, f.rename(part.ETag))
	}
}

// rename gives what came the name of another ETag, or drops it where that tells
// nothing.
func (f *fetch) rename(tag string) error {
	if !plainTag(tag) {
		return f.drop()
	}
	if err := f.root.Rename(f.partName(f.tag), f.partName(tag)); err != nil {
		return err
	}
	f.tag = tag
	return nil
}

// Write takes what comes.
func (f *fetch) Write(p []byte) (int, error) {
	if f.limit > 0 && f.size+int64(len(p)) > f.limit {
		return 0, f.tooLarge()
	}
	n, err := f.part.WriteAt(p, f.size)
	f.size += int64(n)
	f.meter.add(int64(n))
	return n, err
}

func (f *fetch) tooLarge() error {
	return hint(fmt.Errorf("%s has more than the %s that --max-size allows", clean(f.from), size(f.limit)), "give a larger --max-size")
}

// place gives the file what it is to have, and moves it to its place.
func (f *fetch) place() error {
	part := f.part
	err := part.Truncate(f.size)
	if err == nil && f.owners {
		err = part.Chown(f.has.uid, f.has.gid)
	}
	if err == nil {
		err = part.Chmod(f.has.mode)
	}
	if err == nil {
		err = f.root.Chtimes(f.partName(f.tag), time.Time{}, f.has.modified)
	}
	if err == nil {
		err = part.Sync()
	}
	if err == nil {
		err = f.root.Rename(f.partName(f.tag), f.name)
	}
	if err != nil {
		return err
	}
	f.meter.addFile()
	f.part = nil
	return part.Close()
}
