package daemon

import (
	"net"
	"sync"
)

// limited accepts so many connections at once; others wait in the kernel's
// queue. Without a bound, callers without a key could take all of the daemon's
// memory and descriptors, and with them the sandboxes that need some.
type limited struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, places: make(chan struct{}, most), closed: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &placed{Conn: conn, leave: func() { <-l.places }}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// placed gives its place back when it is closed.
type placed struct {
	net.Conn
	once  sync.Once
	leave func()
}

func (c *placed) Close() error {
	defer c.once.Do(c.leave)
	return c.Conn.Close()
}

// CloseWrite is what net/http wants so as to end a connection without a reset,
// which could destroy the reply.
func (c *placed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
