package daemon

import (
	"errors"
	"net"
	"testing"
	"time"
)

func TestConnectionsAreBounded(t *testing.T) {
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 2)
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	for range 3 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Fatal("a third connection of two")
	case <-time.After(50 * time.Millisecond):
	}
	if err := first.(interface{ CloseWrite() error }).CloseWrite(); err != nil { // net/http asks for it
		t.Error(err)
	}
	first.Close()
	first.Close() // gives one place back, not two
	third := <-accepted
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	second.Close()
	third.Close()
}
