package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/httpapi"
)

// farewell is how long callers may take for their answers once all of them are
// made.
const farewell = 5 * time.Second

// serving is the API on its listeners.
type serving struct {
	server    *httpapi.Server
	listeners []net.Listener
	addr      string // of the TCP listener, "" if there is none
	log       *slog.Logger
	failed    chan error
	group     sync.WaitGroup
}

// listen takes the addresses: callers may come, and wait until start.
func listen(c Config, handler http.Handler) (*serving, error) {
	unixListener, err := listenUnix(c.Socket)
	if err != nil {
		return nil, err
	}
	s := &serving{
		server: httpapi.NewServer(handler, c.Logger), listeners: []net.Listener{unixListener},
		log: c.Logger, failed: make(chan error, 2),
	}
	if c.Listen != "" {
		tcp, err := net.Listen("tcp", c.Listen)
		if err != nil {
			_ = unixListener.Close()
			return nil, fmt.Errorf("listen on %s: %w", c.Listen, err)
		}
		s.listeners = append(s.listeners, limit(tcp, c.MaxConns))
		s.addr = tcp.Addr().String()
	}
	return s, nil
}

func (s *serving) start() {
	for _, l := range s.listeners {
		s.group.Go(func() {
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
		})
	}
}

// stop lets callers have their answers and cuts off who does not take them in
// time. It works whether start was called or not.
func (s *serving) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Info("connections are cut off: they took no answer", "after", farewell)
		err = s.server.Close()
	}
	for _, l := range s.listeners {
		_ = l.Close() // unless Shutdown has
	}
	s.group.Wait()
	if err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// listenUnix takes the socket over from a daemon that is gone; the state
// directory's lock says that it is.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another daemon answers there; give this one its own --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	old := unix.Umask(0o177) // the socket is root's from its first moment
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}
