package main

import (
	"context"
	"iter"
	"path"
	"unicode/utf8"
)

// copyIn is one copy into a sandbox: of a tree into a directory, or of one file.
type copyIn struct {
	remote *remote
	tree   *tree
	dir    string // what the tree's paths are below: absolute, or relative to the working directory
	single bool   // the tree is one file
	owners bool   // that of this machine
	all    bool   // also what is there already
	meter  *meter
	record *sentRecord
	warn   func(format string, args ...any) // says one line

	first *plan           // what there was to do
	begun string          // the last path that was sent with others, or begun
	whole map[string]bool // large files that were sent
	grew  bool            // some part of a large file arrived since the last try
}

// run copies, and goes on after connections that broke: what arrived whole is
// found there, and not sent again.
func (c *copyIn) run(ctx context.Context) error {
	c.whole = map[string]bool{}
	var t tries
	var before *plan
	for {
		c.meter.do("looking what is there")
		p, err := planFor(c.tree.entries, c.there(ctx), c.isSame, c.byItself)
		if err == nil {
			if c.first == nil {
				c.first = p
			}
			c.meter.settle(c.first.files-p.files, c.first.bytes-p.bytes)
			c.meter.plan(p.files, p.bytes)
			further := c.grew || before != nil && p.left() < before.left()
			if further {
				t = tries{}
			}
			before, c.grew = p, false
			err = c.send(ctx, p)
		}
		if err == nil {
			return nil
		}
		if !t.again(ctx, err, c.grew) {
			return interrupted(ctx, err)
		}
		c.warn("note: %s; looking what arrived, and going on", clean(err.Error()))
	}
}

// there is what lies at the end of the copy.
func (c *copyIn) there(ctx context.Context) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		name := "."
		if c.single {
			name = c.tree.entries[0].path
		}
		at, err := c.remote.find(ctx, path.Join(c.dir, name))
		switch {
		case err != nil:
			yield(entry{}, err)
		case at.file != nil && yield(describe(at.file, name), nil) && at.dir && !c.single:
			for e, err := range c.remote.list(ctx, at.path) {
				if !yield(e, err) {
					return
				}
			}
		}
	}
}

// isSame says whether a thing is there already. With all it is only what this
// copy brought there.
func (c *copyIn) isSame(here, there entry) bool {
	large := c.byItself(here)
	if c.all && !here.dir() && (large && !c.whole[here.path] || !large && (c.begun == "" || comparePaths(here.path, c.begun) > 0)) {
		return false
	}
	return here.same(there, c.owners) || large && c.record.has(path.Join(c.dir, here.path), here, there)
}

// byItself says whether a file is sent alone, in parts. It gets the sandbox's
// user, and its way there is JSON, which has only UTF-8.
func (c *copyIn) byItself(e entry) bool {
	return e.file() && e.size >= largeFile && !c.owners && utf8.ValidString(path.Join(c.dir, e.path))
}

// send sends what a plan has: large files first, as the directories that come
// with the others then get their times.
func (c *copyIn) send(ctx context.Context, p *plan) error {
	for _, e := range p.large {
		if err := c.sendLarge(ctx, e); err != nil {
			return err
		}
		c.whole[e.path] = true
		c.grew = true
		c.meter.addFile()
	}
	if len(p.archive) == 0 {
		return nil
	}
	return c.sendArchive(ctx, p.archive)
}

// interrupted is the signal that ended a copy, or why it failed.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// inTarget says where a copy into a sandbox puts things, as cp -r does: what is
// copied into a directory that is there comes beneath it, under its own name.
// Without a name (the content of a directory is copied) it comes into it. fresh
// says that nothing is there yet.
func inTarget(ctx context.Context, r *remote, name, to string, dir bool) (parent, base string, fresh bool, err error) {
	into := to == "" || to[len(to)-1] == '/'
	at, err := r.find(ctx, path.Clean(to))
	switch {
	case err != nil:
		return "", "", false, err
	case at.dir:
		return at.path, name, false, nil
	case at.file != nil && (dir || into):
		return "", "", false, hint(usage("%s is no directory in the sandbox", to), "give another path, or remove it there")
	case into && !dir:
		return at.path, name, true, nil
	default:
		return path.Dir(at.path), path.Base(at.path), at.file == nil, nil
	}
}
