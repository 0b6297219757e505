package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Files reads and writes files of running sandboxes through their agents. It
// holds no file in memory and opens no path on the host.
type Files struct {
	sandboxes *Manager
}

// NewFiles makes a Files over a manager.
func NewFiles(m *Manager) *Files { return &Files{sandboxes: m} }

// Read opens a file. A relative path is relative to the image's working
// directory. The body ends at size or fails; a transfer that does not move for
// StepTimeout fails.
func (f *Files) Read(ctx context.Context, id, path string) (body io.ReadCloser, size int64, err error) {
	if err := checkPath(path); err != nil {
		return nil, 0, err
	}
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	ctx, guard := f.guard(ctx, session)
	content, info, err := session.Agent().ReadFile(ctx, path, guestwire.Whole)
	if err != nil {
		guard.stop()
		return nil, 0, fileFault(session, err)
	}
	return &guardedBody{guardedReader: guardedReader{from: content, guard: guard}, body: content}, info.Length, nil
}

// Write writes a file from content; it appears whole or not at all. mode is
// the permission bits, 0 to 0777. Missing parent directories are made.
func (f *Files) Write(ctx context.Context, id, path string, mode uint32, content io.Reader) (guestwire.Entry, error) {
	if err := checkPath(path); err != nil {
		return guestwire.Entry{}, err
	}
	if mode > 0o777 {
		return guestwire.Entry{}, fault.Param("mode", "mode must be octal permission bits, 0000 to 0777")
	}
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return guestwire.Entry{}, err
	}
	ctx, guard := f.guard(ctx, session)
	defer guard.stop()
	source := &guardedReader{from: content, guard: guard}
	info, err := session.Agent().WriteFile(ctx, path, mode, source)
	if failed := source.failed.Load(); failed != nil {
		return guestwire.Entry{}, *failed // the caller's side broke, not the guest's
	}
	if err != nil {
		return guestwire.Entry{}, fileFault(session, err)
	}
	return info, nil
}

func checkPath(path string) error {
	if path == "" {
		return &fault.Error{Code: fault.ParameterMissing, Param: "path", Message: "path is required: absolute, or relative to the working directory"}
	}
	if len(path) > guestwire.MaxPath || strings.ContainsRune(path, 0) {
		return fault.Param("path", "path must be at most %d bytes and hold no NUL", guestwire.MaxPath)
	}
	return nil
}

// fileFault turns what the agent's client said into what a caller may see.
func fileFault(s *Session, err error) error {
	var refusal *guestwire.Error
	switch {
	case errors.As(err, &refusal):
		switch refusal.Code {
		case guestwire.FileNotFound:
			return fault.New(fault.FileNotFound, "no such file in the sandbox")
		case guestwire.NotAFile:
			return fault.Param("path", "path names something that is no regular file")
		case guestwire.PermissionDenied, guestwire.BadRequest:
			return fault.Param("path", "the guest refuses this path")
		case guestwire.DiskFull:
			return fault.New(fault.FullGuestDisk, "the sandbox's disk is full; remove files or create another sandbox")
		}
	case errors.Is(err, guestwire.ErrProtocol):
		s.AgentFailed(err)
	case s.life.ctx.Err() != nil:
		return s.life.owner.gone()
	}
	return fault.Wrap(err, fault.GuestUnreachable, "the guest did not answer; try again, or create another sandbox")
}

// guard ends a transfer that stands still: a guest may drip for ever.
type guard struct {
	cancel context.CancelFunc
	timer  *time.Timer
	limit  time.Duration
	once   sync.Once
	unbind context.CancelFunc
}

func (f *Files) guard(ctx context.Context, s *Session) (context.Context, *guard) {
	ctx, unbind := s.Bind(ctx)
	ctx, cancel := context.WithCancel(ctx)
	limit := f.sandboxes.limits().StepTimeout
	return ctx, &guard{cancel: cancel, unbind: func() { unbind(); s.Release() }, limit: limit, timer: time.AfterFunc(limit, cancel)}
}

func (g *guard) moved() { g.timer.Reset(g.limit) }

func (g *guard) stop() {
	g.once.Do(func() {
		g.timer.Stop()
		g.cancel()
		g.unbind()
	})
}

// guardedReader is the source of a transfer. It is no io.Closer on purpose: the
// transport closes a body when it is sent, and the reply is still to come.
type guardedReader struct {
	from   io.Reader
	guard  *guard
	failed atomic.Pointer[error] // what from failed with, other than io.EOF
}

func (r *guardedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if n > 0 {
		r.guard.moved()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed.Store(&err)
	}
	return n, err
}

// guardedBody is a file on its way to the caller.
type guardedBody struct {
	guardedReader
	body io.Closer
}

func (b *guardedBody) Close() error {
	defer b.guard.stop()
	return b.body.Close()
}
