package guest

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// swap brings what is staged to its place and keeps what lay there beside it, so
// that unswap can undo it.
func (s *staged) swap() error {
	for range 16 {
		err := ignoringEINTR(func() error {
			return unix.Renameat2(s.fd(), s.beside.name, s.fd(), s.name, unix.RENAME_EXCHANGE)
		})
		switch {
		case err == nil:
			s.old = true
			if err := s.beside.replaceable(); err != nil {
				return errors.Join(s.unswap(), refuse(guestwire.NotAFile, s.name))
			}
			return nil
		case errors.Is(err, unix.EINVAL): // a file system that cannot: then there is no way back
			return s.commit()
		case !errors.Is(err, unix.ENOENT):
			return s.fail("rename", err)
		}
		beside := s.beside.name
		if err = s.commitNew(); !errors.Is(err, unix.EEXIST) {
			s.beside.name = beside // free, and ready for the way back
			return err
		}
	}
	return s.fail("rename", unix.EBUSY)
}

// unswap brings it back.
func (s *staged) unswap() error {
	if s.beside.name == "" {
		return nil
	}
	flags := uint(unix.RENAME_NOREPLACE)
	from, to := s.name, s.beside.name
	if s.old {
		flags = unix.RENAME_EXCHANGE
	}
	s.old = false
	return s.fail("rename", ignoringEINTR(func() error { return unix.Renameat2(s.fd(), from, s.fd(), to, flags) }))
}

// batch is files that come to their places all, or not at all.
type batch struct {
	agent   *Agent
	conf    guestwire.Configure
	owner   account
	staged  []*staged
	names   []string // as the host gave them
	entries []guestwire.Entry
	made    []string // directories that were missing
}

// serveWriteFiles writes many files: all of them are on the disk before the first
// is renamed.
func (a *Agent) serveWriteFiles(w *reply, r *request) error {
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	owner, err := a.lookup(conf.User, conf.User)
	if err != nil {
		return err
	}
	return a.late(w, func(context.Context) (any, error) {
		b := &batch{agent: a, conf: conf, owner: owner, entries: []guestwire.Entry{}}
		err := b.read(r.body)
		if err == nil {
			err = b.commit()
		}
		for _, s := range b.staged {
			s.close()
		}
		if err != nil {
			unmake(b.made)
			return nil, err
		}
		return guestwire.Entries{Entries: b.entries}, nil
	})
}

// read stages all files of a body.
func (b *batch) read(body io.Reader) error {
	for {
		head, err := guestwire.ReadFileHead(body)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, guestwire.ErrProtocol) {
			return refuse(guestwire.BadRequest, err.Error())
		}
		if err != nil {
			return err
		}
		if len(b.staged) == guestwire.MaxBatch {
			return refuse(guestwire.BadRequest, "too many files")
		}
		if err := b.stage(head, body); err != nil {
			return named(err, head.Path)
		}
	}
}

func (b *batch) stage(head guestwire.FileHead, body io.Reader) error {
	path, err := b.agent.writable(b.conf, head.Path, head.Mode)
	if err != nil {
		return err
	}
	content := &io.LimitedReader{R: body, N: head.Size}
	s, entry, err := b.agent.stageAt(path, owned(b.owner, head.Mode), b.owner, &b.made, content)
	if err != nil {
		return err
	}
	b.staged, b.names = append(b.staged, s), append(b.names, head.Path)
	entry.Path = path
	b.entries = append(b.entries, entry)
	if content.N > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// commit brings all files to their places. Should one not get there, those that
// did go back.
func (b *batch) commit() error {
	for i, s := range b.staged {
		err := s.swap()
		if err == nil {
			continue
		}
		for _, before := range b.staged[:i] {
			defer func() { _ = before.unswap() }() // the last one first
		}
		return named(err, b.names[i])
	}
	return nil
}

// named is a refusal whose detail is the path that it is about.
func named(err error, path string) error {
	refusal := fileRefusal(err, guestwire.NotAFile)
	return refuse(refusal.Code, path)
}
