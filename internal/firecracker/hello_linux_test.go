package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

var goodHello = fmt.Sprintf(`{"protocol":%d,"version":"v1.0-dev"}`, guestwire.Protocol)

func TestHelloIsReadAnsweredAndClosedByTheGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, guest := net.Pipe()
		closed := false
		go func() {
			_, _ = io.WriteString(guest, goodHello[:10])
			_, _ = io.WriteString(guest, goodHello[10:]+"\n")
			line, err := readLine(guest, 10)
			if err != nil || line != "ok" {
				t.Errorf("answer %q %v", line, err)
			}
			time.Sleep(time.Second) // virtual
			closed = true
			_ = guest.Close()
		}()
		hello, err := readHello(t.Context(), ours)
		want := guestwire.Hello{Protocol: guestwire.Protocol, Version: "v1.0-dev"}
		if err != nil || hello != want || !closed {
			t.Errorf("%+v %v, closed %v", hello, err, closed)
		}
	})
}

func TestHelloRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		serve    func(net.Conn)
		protocol bool
	}{
		"other protocol":    {say(strings.Replace(goodHello, `:`, `:9`, 1) + "\n"), true},
		"no JSON":           {say("hello\n"), true},
		"empty":             {say("\n"), true},
		"version with ANSI": {say(strings.Replace(goodHello, "v1.0", `\u001b[2J`, 1) + "\n"), true},
		"wrong types":       {say(`{"protocol":"1"}` + "\n"), true},
		"deep":              {say(strings.Repeat("[", 4000) + "\n"), true},
		"endless line":      {flood("", "xxxxxxxx"), true},
		"end of file":       {hangUp, false},
		"slow":              {drip("", "x"), false},
		"silence":           {silent, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, _ := device(c.serve)
				conn, err := dial(t.Context())
				must(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err = readHello(ctx, conn)
				if err == nil || errors.Is(err, guestwire.ErrProtocol) != c.protocol {
					t.Errorf("got %v", err)
				}
				must(t, conn.Close())
				time.Sleep(2 * time.Second) // virtual: whoever drips finds the connection closed
			})
		})
	}
}

func TestHelloOfAGuestThatNeverCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := device(say(goodHello + "\n"))
		conn, err := dial(t.Context())
		must(t, err)
		if _, err := readHello(t.Context(), conn); err != nil {
			t.Error(err)
		}
		must(t, conn.Close())
	})
}

func TestHelloListenerComesAndGoes(t *testing.T) {
	base := t.TempDir()
	host := "sb-01hzzzzzzzzzzzzzzzzzzzzzzz"
	root := filepath.Join(base, host, rootName)
	must(t, os.MkdirAll(root, 0o700))
	v := &VMM{jails: openTest(t, base), running: map[string]*instance{}}
	for _, serve := range []string{goodHello + "\n", "garbage\n", ""} {
		listener, err := listenHello(int(openTest(t, root).Fd()), helloName, os.Getuid())
		must(t, err)
		v.running[host] = &instance{hello: listener}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := v.Hello(ctx, host)
			done <- err
		}()
		if serve == "" {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		} else {
			conn, err := net.Dial("unix", filepath.Join(root, helloName))
			must(t, err)
			_, err = io.WriteString(conn, serve)
			must(t, err)
			_, _ = readLine(conn, 10)
			must(t, conn.Close())
			if err := <-done; (err == nil) != (serve[0] == '{') {
				t.Errorf("%q: %v", serve, err)
			}
		}
		cancel()
		if _, err := os.Lstat(filepath.Join(root, helloName)); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
		if _, err := v.Hello(t.Context(), host); err == nil {
			t.Error("a second hello")
		}
	}
	if _, err := v.Hello(t.Context(), "sb-01hzzzzzzzzzzzzzzzzzzzzzz1"); err == nil {
		t.Error("a hello of nobody")
	}
}
