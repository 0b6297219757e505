package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// fakeFiles is what the files of a world are asked and answer.
type fakeFiles struct {
	// asked for
	path      string
	mode      uint32
	at        int64 // -1: not to append
	written   int64
	keep      bool // keep what is written in content
	batch     []guestwire.NewFile
	move      guestwire.Move
	recursive bool
	list      guestwire.List
	gzip      bool
	owners    bool
	after     string
	parts     []guestwire.Range // that were opened
	calls     int               // of all kinds

	// answered
	content []byte
	body    io.ReadCloser // in the place of content, where it is not nil
	entry   guestwire.Entry
	entries []guestwire.Entry
	more    bool
	brief   bool                  // a watch is over at once
	changes chan guestwire.Change // of a watch
	over    chan error            // ends a watch; nil: by a panic
}

func newFakeFiles() fakeFiles {
	return fakeFiles{
		at: -1, content: []byte("bytes\x00"),
		entry: guestwire.Entry{
			Path: "/workspace/main.py", Type: guestwire.TypeFile, Size: 15, Mode: "0644", UID: 1000, GID: 1000,
			ModifiedNS: created.UnixNano(), Inode: 0x1a2b,
		},
		changes: make(chan guestwire.Change), over: make(chan error),
	}
}

// files is the Files of a world.
type files struct{ *world }

func (w files) Read(_ context.Context, _, path string, r guestwire.Range) (io.ReadCloser, guestwire.FileContent, error) {
	if err := w.asked(path); err != nil {
		return nil, guestwire.FileContent{}, err
	}
	f := &w.files
	f.parts = append(f.parts, r)
	size := int64(len(f.content))
	if f.body != nil {
		size = f.entry.Size
	}
	info := guestwire.FileContent{Entry: f.entry, Offset: r.Offset}
	info.Size, info.Path = size, ""
	if r.Offset < 0 {
		info.Offset = max(size+r.Offset, 0)
	}
	if r != guestwire.Whole && info.Offset >= size {
		return nil, info, fault.New(fault.RangeInvalid, "behind the end")
	}
	info.Length = size - info.Offset
	if r.Length >= 0 {
		info.Length = min(info.Length, r.Length)
	}
	if f.body != nil {
		return f.body, info, nil
	}
	return io.NopCloser(bytes.NewReader(f.content[info.Offset : info.Offset+info.Length])), info, nil
}

func (w files) asked(path string) error {
	w.files.calls++
	if err := w.fail(); err != nil {
		return err
	}
	w.files.path = path
	return nil
}

func (w files) take(content io.Reader) error {
	var kept bytes.Buffer
	to := io.Discard
	if w.files.keep {
		to = &kept
	}
	n, err := io.Copy(to, content)
	w.files.written, w.files.content = n, kept.Bytes()
	return err
}

func (w files) Write(_ context.Context, _, path string, mode uint32, content io.Reader) (guestwire.Entry, error) {
	if err := w.asked(path); err != nil {
		return guestwire.Entry{}, err
	}
	w.files.mode, w.files.at = mode, -1
	return w.files.entry, w.take(content)
}

func (w files) Append(_ context.Context, _, path string, at int64, mode uint32, content io.Reader) (guestwire.Entry, error) {
	if err := w.asked(path); err != nil {
		return guestwire.Entry{}, err
	}
	w.files.mode, w.files.at = mode, at
	return w.files.entry, w.take(content)
}

func (w files) WriteBatch(_ context.Context, _ string, batch []guestwire.NewFile) ([]guestwire.Entry, error) {
	w.files.batch = batch
	return w.files.entries, w.asked("")
}

func (w files) Stat(_ context.Context, _, path string) (guestwire.Entry, error) {
	return w.files.entry, w.asked(path)
}

func (w files) List(_ context.Context, _ string, l guestwire.List) ([]guestwire.Entry, bool, error) {
	w.files.list = l
	return w.files.entries, w.files.more, w.asked(l.Path)
}

func (w files) MakeDir(_ context.Context, _, path string, mode uint32) (guestwire.Entry, error) {
	w.files.mode = mode
	return w.files.entry, w.asked(path)
}

func (w files) Move(_ context.Context, _ string, move guestwire.Move) (guestwire.Entry, error) {
	w.files.move = move
	return w.files.entry, w.asked(move.From)
}

func (w files) Remove(_ context.Context, _, path string, recursive bool) (guestwire.Removed, error) {
	w.files.recursive = recursive
	return guestwire.Removed{Entries: 42}, w.asked(path)
}

func (w files) ReadArchive(_ context.Context, _, path string, gzip bool, after string) (io.ReadCloser, error) {
	if err := w.asked(path); err != nil {
		return nil, err
	}
	w.files.gzip, w.files.after = gzip, after
	if w.files.body != nil {
		return w.files.body, nil
	}
	return io.NopCloser(bytes.NewReader(w.files.content)), nil
}

func (w files) WriteArchive(_ context.Context, _, path string, gzip, keepOwners bool, tar io.Reader) (guestwire.Unpacked, error) {
	if err := w.asked(path); err != nil {
		return guestwire.Unpacked{}, err
	}
	w.files.gzip, w.files.owners = gzip, keepOwners
	return guestwire.Unpacked{Entries: 42, Bytes: 1 << 20}, w.take(tar)
}

func (w files) Watch(ctx context.Context, _, path string, recursive bool, each func(guestwire.Change) error) error {
	if err := w.asked(path); err != nil {
		return err
	}
	w.files.recursive = recursive
	change := guestwire.Change{Path: "/workspace"}
	for {
		if err := each(change); err != nil {
			return err
		}
		if w.files.brief {
			return fault.New(fault.FileNotFound, "what was watched is gone")
		}
		select {
		case change = <-w.files.changes:
		case err := <-w.files.over:
			if err == nil {
				panic("secret of a panic")
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

var errBroken = errors.New("the guest broke off")
