package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds of a removal.
const (
	maxRemoveDepth = 1024 // directories in each other: each is held open
	removeNames    = 128  // names of a directory that are held at once
	removeTries    = 64   // how often a directory is looked through that others fill
)

// serveRemove removes a file, or a directory with all that it holds.
func (a *Agent) serveRemove(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	recursive, err := truth(r.query, "recursive")
	if err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	path := absolute(conf.Workdir, name)
	if err := a.dispensable(conf, path); err != nil {
		return err
	}
	p, err := openPlace(a.under(path))
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	defer p.close()
	return a.late(w, func(ctx context.Context) (any, error) {
		removal := removal{ctx: ctx, recursive: recursive}
		if err := removal.remove(p, 0); err != nil {
			return nil, fileRefusal(err, guestwire.FileNotFound)
		}
		return guestwire.Removed{Entries: removal.entries}, nil
	})
}

// removal goes down by descriptors and never by a path or a link, so that a
// directory which a program swaps for a link loses the link only.
type removal struct {
	ctx       context.Context //nolint:containedctx // of one request
	recursive bool
	entries   int64 // that are gone
}

// remove removes what lies at a place.
func (r *removal) remove(p place, depth int) error {
	for range removeTries {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		err := r.unlink(p, 0)
		if !errors.Is(err, unix.EISDIR) {
			return err
		}
		if r.recursive {
			err = r.empty(p, depth)
		} else {
			err = nil
		}
		if err == nil {
			err = r.unlink(p, unix.AT_REMOVEDIR)
		}
		switch {
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // it was swapped for something else
		case errors.Is(err, unix.ENOTEMPTY) && r.recursive: // somebody put something there
		default:
			return err
		}
	}
	return p.fail("remove", unix.ENOTEMPTY)
}

func (r *removal) unlink(p place, flags int) error {
	err := ignoringEINTR(func() error { return unix.Unlinkat(p.fd(), p.name, flags) })
	if err == nil {
		r.entries++
	}
	return p.fail("remove", err)
}

// empty removes what a directory holds.
func (r *removal) empty(p place, depth int) error {
	if depth == maxRemoveDepth {
		return refuse(guestwire.TooDeep, "too many directories in each other")
	}
	dir, err := p.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(removeNames)
		for _, name := range names {
			if err := r.remove(place{dir: dir, name: name}, depth+1); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
