package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// copyOut is one copy of a directory out of a sandbox.
type copyOut struct {
	remote *remote
	from   string // the directory's path
	into   *extraction
	warn   func(format string, args ...any) // says one line

	same int64 // files that were here
	kept int64 // bytes of a large file that stay for the next run
}

// span is a part of an archive: behind one member, up to another.
type span struct{ after, last string } // "" is the beginning, and the end

// gapBytes is how much content that is here already is worth a request to pass
// over it.
const gapBytes = 1 << 20

// run copies, and goes on after connections that broke, behind what is whole.
func (c *copyOut) run(ctx context.Context) error {
	spans, err := c.spans(ctx)
	for i := 0; err == nil && i < len(spans); i++ {
		err = c.copySpan(ctx, spans[i])
	}
	// Also of a copy that broke off, so that the next one finds what is whole.
	if finished := c.into.finish(); err == nil {
		err = finished
	}
	return interrupted(ctx, err)
}

// spans says which parts of the archive are not here. Where nothing is, nobody
// needs to look.
func (c *copyOut) spans(ctx context.Context) ([]span, error) {
	empty, err := c.nothingHere()
	if err != nil || empty || c.into.all {
		return []span{{}}, err
	}
	c.into.meter.do("looking what is here")
	p := &spanner{root: c.into.root, owners: c.into.owners}
	for e, err := range c.remote.list(ctx, c.from) {
		if err != nil {
			return nil, err
		}
		if p.add(e); p.files+p.same > mostMembers {
			return nil, tooMany()
		}
	}
	p.end()
	c.into.meter.plan(p.files, p.bytes)
	c.same, c.into.leftOut = p.same, p.leftOut
	return p.spans, nil
}

func (c *copyOut) nothingHere() (bool, error) {
	dir, err := c.into.root.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }() // only read
	_, err = dir.ReadDir(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// copySpan copies one part.
func (c *copyOut) copySpan(ctx context.Context, s span) error {
	var t tries
	c.into.last = s.after
	for {
		before := c.into.last
		err := c.stream(ctx, s.last)
		if errors.Is(err, errLarge) {
			if err = c.fetchLarge(ctx); err != nil {
				return err // it has its own tries
			}
			c.into.last = c.into.large.path
			continue
		}
		if err == nil {
			return nil
		}
		files, _ := c.into.meter.moved()
		if !t.again(ctx, err, c.into.last != before) {
			return err
		}
		c.warn("note: %s; %s came whole, going on behind them", clean(err.Error()), countOf(files, "file"))
	}
}

// stream reads the archive once, from behind the last member on.
func (c *copyOut) stream(ctx context.Context, last string) error {
	if c.into.last == "." {
		c.into.last = "" // it comes again
	}
	c.into.meter.do("waiting for the sandbox")
	body := c.remote.pack(ctx, c.from, c.into.last)
	defer func() { _ = body.Close() }()
	err := c.into.read(tar.NewReader(bufio.NewReaderSize(body, 256<<10)), last)
	if errors.Is(err, io.ErrUnexpectedEOF) { // it ended where none of its kind does
		err = &microvm.ConnectionError{Sent: true, Err: err}
	}
	return err
}

// fetchLarge copies the file at which the archive stopped.
func (c *copyOut) fetchLarge(ctx context.Context) error {
	x := c.into
	dir, err := x.root.OpenRoot(path.Dir(x.large.path))
	if err != nil {
		return withoutName(x.large.path, err)
	}
	defer func() { _ = dir.Close() }()
	name := path.Base(x.large.path)
	if info, err := dir.Lstat(name); err == nil && info.IsDir() {
		return isDirectory(x.large.path)
	}
	f := &fetch{remote: c.remote, from: path.Join(c.from, x.large.path), has: x.large, root: dir, name: name, owners: x.owners, meter: x.meter, warn: c.warn}
	if x.limit > 0 {
		f.limit = x.limit - x.content + x.large.size
	}
	kept, err := f.run(ctx)
	c.kept = max(c.kept, kept)
	return withoutName(x.large.path, err)
}

// spanner finds the parts of a tree that are not here.
type spanner struct {
	root interface {
		Lstat(name string) (fs.FileInfo, error)
		Readlink(name string) (string, error)
	}
	owners bool

	spans        []span
	open         bool   // the last span may go on
	before, last string // the entry before, and the last that is missing
	gap          int64  // content that is here since
	files, bytes int64  // that are missing
	same         int64  // files that are here
	leftOut      int64
}

func (p *spanner) add(e entry) {
	content := int64(0)
	if e.file() {
		content = e.size
	}
	switch {
	case e.special():
		p.leftOut++
	case p.here(e):
		p.gap += content
		if !e.dir() {
			p.same++
		}
	default:
		p.bytes += content
		if !e.dir() {
			p.files++
		}
		if !p.open || p.gap > gapBytes {
			p.end()
			p.spans, p.open = append(p.spans, span{after: p.before}), true
		}
		p.last, p.gap = e.path, 0
	}
	p.before = e.path
}

func (p *spanner) end() {
	if p.open {
		p.spans[len(p.spans)-1].last = p.last
	}
	p.open = false
}

func (p *spanner) here(e entry) bool {
	info, err := p.root.Lstat(e.path)
	if err != nil {
		return false
	}
	here := localEntry(info, e.path, "")
	if here.link() {
		here.target, _ = p.root.Readlink(e.path)
	}
	return e.same(here, p.owners)
}
