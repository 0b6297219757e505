package testkit

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// ServedAgent makes agents that are HTTP servers in this process: what a handler
// writes and flushes is there at once, and one that gives up cuts its connection.
// Their connections are pipes, so that they run on a synctest clock.
func ServedAgent(handler http.Handler) AgentFactory {
	return func(sandbox.Plan) (http.RoundTripper, func(), error) {
		listener := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) })
		transport := &http.Transport{MaxResponseHeaderBytes: guestwire.MaxReplyHeader, DialContext: listener.dial}
		return transport, func() {
			_ = server.Close()
			serving.Wait()
			transport.CloseIdleConnections()
		}, nil
	}
}

// pipeListener is a listener that is dialed within the process.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }
