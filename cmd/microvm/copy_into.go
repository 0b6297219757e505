package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// into copies what is here into a sandbox.
func (c *copying) into(ctx context.Context, local, ref, to string) error {
	if local == "-" {
		if to == "" || strings.HasSuffix(to, "/") {
			return usage("standard input needs a name in the sandbox, as in %s:input", ref)
		}
		return c.upload(ctx, c.stdin, local, 0o644, ref, to)
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() { // it is read to its end, whatever it is
		file, err := os.Open(local)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // only read
		if to == "" || strings.HasSuffix(to, "/") {
			to += lastName(local)
		}
		return c.upload(ctx, file, local, 0o644, ref, to)
	}
	t, err := c.source(ctx, local, info)
	if err != nil {
		return err
	}
	r, err := c.sandboxFiles(ctx, ref)
	if err != nil {
		return err
	}
	return c.send(ctx, r, t, local, ref, to)
}

// source is the tree that is to be copied.
func (c *copying) source(ctx context.Context, local string, info fs.FileInfo) (*tree, error) {
	var ignore func(string, bool) bool
	if c.ignoreFile != "" {
		rules, err := readIgnore(c.ignoreFile)
		if err != nil {
			return nil, err
		}
		ignore = rules.ignores
	}
	if !info.IsDir() {
		return &tree{entries: []entry{localEntry(info, lastName(local), local)}}, nil
	}
	return scan(ctx, local, ignore)
}

// upload sends what has no end that is known before.
func (c *copying) upload(ctx context.Context, from io.Reader, local string, mode fs.FileMode, ref, to string) error {
	r, err := c.sandboxFiles(ctx, ref)
	if err != nil {
		return err
	}
	done := c.progress.wait("the upload of " + clean(local))
	file, err := c.client.Files.Upload(ctx, r.sandbox, to, from, microvm.WithMode(mode))
	done()
	if err != nil {
		return err
	}
	return c.tellFile(file, ref)
}

func (c *copying) tellFile(file *microvm.File, ref string) error {
	if c.json {
		return printJSON(c.stdout, file)
	}
	c.progress.note("%s (%s) is in %s", clean(file.Path), size(file.Size), clean(ref))
	return nil
}

// send copies a tree.
func (c *copying) send(ctx context.Context, r *remote, t *tree, local, ref, to string) error {
	single := !t.entries[0].dir()
	record := openRecord(r.sandbox)
	words := asked("in", local, to)
	parent, base, fresh, err := inTarget(ctx, r, lastName(local), to, !single)
	if err != nil {
		return err
	}
	if begun, ok := record.Pending[words]; ok && !single {
		parent, base = path.Dir(begun), path.Base(begun)
	} else if fresh && !single {
		record.begin(words, path.Join(parent, base))
	}
	job := &copyIn{remote: r, tree: t, dir: parent, single: single, owners: c.owners, all: c.all, record: record, warn: c.warn}
	switch {
	case single:
		t.entries[0].path = base
	case base == "": // the content of a directory: what it comes into keeps its mode and time
		t.entries = t.entries[1:]
	default:
		job.dir = path.Join(parent, base)
	}
	var done func()
	job.meter, done = c.watch(clean(local))
	err = job.run(ctx)
	done()
	if err != nil {
		return c.brokenOff(err, "in the sandbox")
	}
	record.end(words)
	name := job.dir
	if single {
		name = path.Join(job.dir, base)
	}
	file, err := r.stat(ctx, name)
	if err == nil && file == nil {
		err = fmt.Errorf("%s is gone again", clean(name))
	}
	switch {
	case err != nil:
		return interrupted(ctx, err)
	case single:
		return c.tellFile(file, ref)
	}
	return c.tell(copyResult{
		Object: "copy", Sandbox: r.sandbox, Path: file.Path, Local: local,
		Files: job.first.files, Bytes: job.first.bytes, Same: job.first.same, LeftOut: t.leftOut,
	}, clean(ref)+":"+clean(file.Path), 0)
}

// brokenOff says of a copy that a signal or the connection ended what the next
// one makes of it.
func (c *copying) brokenOff(err error, where string) error {
	var stopped *interruption
	var lost *microvm.ConnectionError
	if errors.As(err, &stopped) || errors.As(err, &lost) {
		c.warn("note: what came whole stays %s; the same command goes on behind it", where)
	}
	return err
}
