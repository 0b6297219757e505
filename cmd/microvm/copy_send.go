package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// errTaken ends the making of an archive that nobody reads any more.
var errTaken = errors.New("the archive is read no further")

// sendArchive sends entries as one archive. Each file of it appears whole or not
// at all.
func (c *copyIn) sendArchive(ctx context.Context, entries []entry) error {
	out, in := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := c.write(ctx, in, entries)
		_ = in.CloseWithError(err) // nil is the end
		written <- err
	}()
	err := c.remote.unpack(ctx, c.dir, c.owners, out)
	_ = out.CloseWithError(errTaken)
	switch local := <-written; {
	case local != nil && !errors.Is(local, errTaken):
		return local
	case err == nil && local != nil:
		return &microvm.ConnectionError{Sent: true, Err: errors.New("the node answered before it had the whole archive")}
	default:
		return err
	}
}

func (c *copyIn) write(ctx context.Context, to io.Writer, entries []entry) error {
	buffered := bufio.NewWriterSize(to, 64<<10)
	archive := tar.NewWriter(buffered)
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.begun = e.path
		c.meter.do("sending %s", short(e.path))
		if err := c.writeMember(archive, e); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	c.meter.do("waiting for the sandbox")
	return buffered.Flush()
}

func (c *copyIn) writeMember(archive *tar.Writer, e entry) error {
	head := &tar.Header{Name: e.path, Format: tar.FormatPAX, Mode: int64(e.mode), ModTime: e.modified}
	if c.owners {
		head.Uid, head.Gid = e.uid, e.gid
	}
	switch {
	case e.dir():
		head.Typeflag, head.Name = tar.TypeDir, e.path+"/"
		return archive.WriteHeader(head)
	case e.link():
		head.Typeflag, head.Linkname = tar.TypeSymlink, e.target
		defer c.meter.addFile()
		return archive.WriteHeader(head)
	}
	file, err := openSource(&e)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	head.Typeflag, head.Size, head.ModTime = tar.TypeReg, e.size, e.modified
	if err := archive.WriteHeader(head); err != nil {
		return err
	}
	n, err := io.Copy(archive, &metered{io.LimitReader(file, e.size), c.meter})
	if err == nil && n < e.size {
		err = fmt.Errorf("%s became shorter while it was read", e.local)
	}
	if err == nil {
		c.meter.addFile()
	}
	return err
}

// openSource opens a file to be sent, and looks at it anew.
func openSource(e *entry) (*os.File, error) {
	file, err := os.Open(e.local)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file any more", e.local)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	e.size, e.modified = info.Size(), info.ModTime()
	return file, nil
}

// sendLarge sends a file in parts to a name of its own beside its place, and then
// moves it there. The name tells the content apart, so that another run goes on.
func (c *copyIn) sendLarge(ctx context.Context, e entry) error {
	file, err := openSource(&e)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	to := path.Join(c.dir, e.path)
	partial := path.Join(path.Dir(to), partialName(to, fmt.Sprint(e.size), fmt.Sprint(e.modified.UnixNano()), e.mode.String()))
	there, err := c.remote.stat(ctx, partial)
	if err != nil {
		return err
	}
	at := int64(0)
	if there != nil && there.Type == microvm.FileTypeFile && there.Size <= e.size {
		at = there.Size
		c.meter.add(at)
	}
	c.meter.do("sending %s", short(e.path))
	files := c.remote.client.Files
	for at < e.size {
		n := min(largePart, e.size-at)
		part := io.NewSectionReader(file, at, n)
		_, err := files.Append(ctx, c.remote.sandbox, partial, at, &metered{part, c.meter}, microvm.WithMode(e.mode))
		if microvm.HasCode(err, microvm.ErrorCodeFileConflict) {
			return &heldError{err}
		}
		if err != nil {
			return err
		}
		at += n
		c.grew = true
	}
	moved, err := files.Move(ctx, c.remote.sandbox, microvm.FileMove{From: partial, To: to, Replace: new(true)})
	if err != nil {
		return err
	}
	c.record.add(to, e, moved)
	return nil
}

const (
	partialPrefix = ".microvm-"
	partialSuffix = ".part"
)

// partialName is the name of a file that is not whole yet, by what tells its
// content apart.
func partialName(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return fmt.Sprintf("%s%x%s", partialPrefix, sum[:8], partialSuffix)
}

// isPartial says whether a file is one of ours that is not whole.
func isPartial(name string) bool {
	name = path.Base(name)
	return strings.HasPrefix(name, partialPrefix) && strings.HasSuffix(name, partialSuffix)
}
