package daemon

import (
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
)

// TestACallerThatTakesNoAnswer holds no stop up, and makes no failure of it.
func TestACallerThatTakesNoAnswer(t *testing.T) {
	t.Parallel()
	c := Defaults(2, 4096)
	c.Socket, c.Listen, c.Logger = filepath.Join(t.TempDir(), "s"), "127.0.0.1:0", slog.New(slog.DiscardHandler)
	begun, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	s, err := listen(c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-never
	}))
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	caller := make(chan error, 1)
	go func() {
		reply, err := http.Get("http://" + s.addr) //nolint:noctx // it ends with the server
		if err == nil {
			_, err = io.ReadAll(reply.Body)
		}
		caller <- err
	}()
	<-begun
	if err := s.stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-caller; err == nil {
		t.Error("it got an answer")
	}
}

// TestStopBeforeStart: addresses that were taken are given back.
func TestStopBeforeStart(t *testing.T) {
	c := Defaults(2, 4096)
	c.Socket, c.Listen, c.Logger = filepath.Join(t.TempDir(), "s"), "127.0.0.1:0", slog.New(slog.DiscardHandler)
	for range 2 {
		s, err := listen(c, http.NotFoundHandler())
		if err != nil {
			t.Fatal(err)
		}
		c.Listen = s.addr // the second time, the very same
		if err := s.stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
