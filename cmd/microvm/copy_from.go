package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// outOf copies what is in a sandbox to here.
func (c *copying) outOf(ctx context.Context, ref, from, local string) error {
	if local == "-" && c.json {
		return usage("-o json and - both want standard output")
	}
	r, err := c.sandboxFiles(ctx, ref)
	if err != nil {
		return err
	}
	at, err := r.find(ctx, path.Clean(from))
	if err != nil {
		return err
	}
	switch {
	case at.file == nil:
		return hint(fmt.Errorf("%s has nothing at %s (%s)", clean(ref), clean(at.path), microvm.ErrorCodeFileNotFound), fmt.Sprintf("microvm exec %s -- ls -la shows what is in the working directory", ref))
	case at.dir && local == "-":
		return c.print(ctx, from, func(to io.Writer) (int64, error) {
			return c.client.Files.DownloadArchive(ctx, r.sandbox, microvm.ReadArchiveParams{Path: at.path}, to)
		})
	case at.dir:
		return c.receive(ctx, r, at, ref, lastName(from), local)
	case strings.HasSuffix(from, "/"):
		return hint(usage("%s:%s is no directory", ref, from), "leave the / away")
	case local == "-":
		return c.print(ctx, from, func(to io.Writer) (int64, error) {
			return c.client.Files.Download(ctx, r.sandbox, at.path, to)
		})
	}
	return c.fetch(ctx, r, at, local)
}

// print copies to standard output.
func (c *copying) print(ctx context.Context, from string, download func(io.Writer) (int64, error)) error {
	done := c.progress.wait("the download of " + clean(from))
	defer done()
	_, err := download(&printer{w: c.stdout, first: done})
	return interrupted(ctx, err)
}

// receive copies a directory.
func (c *copying) receive(ctx context.Context, r *remote, from found, ref, name, local string) error {
	record := openRecord(r.sandbox)
	words := asked("out", local, from.path)
	info, err := os.Stat(local)
	_, begun := record.Pending[words]
	switch {
	case err == nil && !info.IsDir():
		return hint(usage("%s is no directory, and %s:%s is one", local, ref, from.path), "give another path, or remove it")
	case err == nil && begun, err != nil:
		name = filepath.Base(local) // it becomes the copy
		record.begin(words, local)
	case name != "":
		local = filepath.Join(local, name)
	}
	if err := os.Mkdir(local, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	m, done := c.watch(clean(ref) + ":" + clean(from.path))
	job := &copyOut{
		remote: r, from: from.path, warn: c.warn,
		into: &extraction{root: root, top: name != "", all: c.all, owners: c.owners, limit: int64(c.maxSize), meter: m},
	}
	if name != "" && from.file.Type == microvm.FileTypeDirectory { // which its content may come without
		job.into.enterTop(describe(from.file, "."))
	}
	err = job.run(ctx)
	done()
	if err != nil {
		if job.kept > 0 {
			c.warn("note: %s of %s are kept for the next copy", size(job.kept), clean(job.into.large.path))
		}
		return c.brokenOff(err, "here")
	}
	record.end(words)
	files, bytes := m.moved()
	return c.tell(copyResult{
		Object: "copy", Sandbox: r.sandbox, Path: from.path, Local: local,
		Files: files, Bytes: bytes, Same: job.same, LeftOut: job.into.leftOut,
	}, clean(local), job.into.outward)
}

// downloadResult is what cp prints with -o json for a file that came out.
type downloadResult struct {
	Object    string `json:"object"` // "download"
	Sandbox   string `json:"sandbox"`
	Path      string `json:"path"` // in the sandbox, as it was given
	Local     string `json:"local"`
	SizeBytes int64  `json:"size_bytes"`
}

// fetch copies one file.
func (c *copying) fetch(ctx context.Context, r *remote, at found, local string) error {
	old, err := os.Stat(local)
	if err == nil && old.IsDir() {
		local = filepath.Join(local, path.Base(at.path))
		old, err = os.Stat(local)
	}
	var size64 int64
	switch {
	case err == nil && old.IsDir():
		return isDirectory(local)
	case err == nil && !old.Mode().IsRegular(): // a device or a pipe is written to, not replaced
		size64, err = c.pour(ctx, r, at.path, local)
	default:
		size64, err = c.replace(ctx, r, at, local, err == nil)
	}
	if err != nil {
		return err
	}
	if c.json {
		return printJSON(c.stdout, downloadResult{"download", r.sandbox, at.path, local, size64})
	}
	c.progress.note("%s (%s) is here", clean(local), size(size64))
	return nil
}

func (c *copying) pour(ctx context.Context, r *remote, from, local string) (int64, error) {
	to, err := os.OpenFile(local, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	done := c.progress.wait("the download of " + clean(from))
	n, err := c.client.Files.Download(ctx, r.sandbox, from, to)
	done()
	return n, errors.Join(err, to.Close())
}

// replace writes a file whole or not at all: what stood there before stays until
// everything is on disk. What a link points to is replaced, not the link.
func (c *copying) replace(ctx context.Context, r *remote, at found, local string, exists bool) (int64, error) {
	if exists {
		if target, err := filepath.EvalSymlinks(local); err == nil {
			local = target
		}
	}
	root, err := os.OpenRoot(filepath.Dir(local))
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	has := describe(at.file, at.path)
	if has.link() { // what it says is that of the link
		has.mode, has.modified = 0o644, at.file.Modified
	}
	m, done := c.watch(clean(at.path))
	if has.file() {
		m.plan(1, has.size)
	}
	job := &fetch{remote: r, from: at.path, has: has, root: root, name: filepath.Base(local), owners: c.owners, limit: int64(c.maxSize), meter: m, warn: c.warn}
	kept, err := job.run(ctx)
	done()
	if kept > 0 {
		c.warn("note: %s of %s are kept beside its place; the same command goes on there", size(kept), clean(at.path))
	}
	return job.size, err
}
