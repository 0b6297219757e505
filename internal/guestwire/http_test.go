package guestwire

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWhatIsNoHTTPIsALie, told at once and not asked for again: only a
// connection that breaks may be mended by a repeat.
func TestWhatIsNoHTTPIsALie(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		lie  bool
	}{
		"no HTTP":                    {"SSH-2.0-OpenSSH\r\n\r\n", true},
		"an endless header":          {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", 400), true},
		"one header that is":         {"HTTP/1.1 200 OK\r\nX-Padding: " + strings.Repeat("a", 64<<10), true},
		"endless continues":          {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 2000), true},
		"an end amid the header":     {"HTTP/1.1 200 OK\r\nContent-", false},
		"an end before it":           {"", false},
		"an end amid its own length": {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", false},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = conn.Write([]byte(c.says))
					_ = conn.Close()
				}
			}()
			transport := &http.Transport{
				MaxResponseHeaderBytes: MaxReplyHeader,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", listener.Addr().String())
				},
			}
			defer transport.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = NewClient(transport).Configure(ctx, Configure{Generation: 1})
			if err == nil || errors.Is(err, ErrProtocol) != c.lie || ctx.Err() != nil {
				t.Errorf("%v", err)
			}
		})
	}
}
