package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// guard ends a call whose guest stands still: one may say nothing for ever. It
// counts only while the guest is waited for.
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
	g := &guard{cancel: cancel, unbind: func() { unbind(); s.Release() }, limit: limit, timer: time.AfterFunc(limit, cancel)}
	return guestwire.WithMoved(ctx, g.moved), g
}

// moved is called when the guest did something, and when it is waited for again.
func (g *guard) moved() { g.timer.Reset(g.limit) }

// pause is called when the caller is waited for.
func (g *guard) pause() { g.timer.Stop() }

func (g *guard) stop() {
	g.once.Do(func() {
		g.timer.Stop()
		g.cancel()
		g.unbind()
	})
}

// guardedSource is content on its way to the guest. It is no io.Closer on
// purpose: the transport closes a body when it is sent, and the reply is still
// to come.
type guardedSource struct {
	from   io.Reader
	guard  *guard
	failed atomic.Pointer[error] // what from failed with, other than io.EOF
}

func (r *guardedSource) Read(p []byte) (int, error) {
	r.guard.pause()
	n, err := r.from.Read(p)
	r.guard.moved()
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed.Store(&err)
	}
	return n, err
}

// guardedBody is content on its way to the caller.
type guardedBody struct {
	body    io.ReadCloser
	guard   *guard
	session *Session
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.guard.moved()
	n, err := b.body.Read(p)
	b.guard.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = refusals(nil).fault(b.session, err)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	defer b.guard.stop()
	return b.body.Close()
}
