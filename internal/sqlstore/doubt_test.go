package sqlstore

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/microvmd/microvm/internal/testkit/pgtest"
)

// TestPostgresLostAnswer cuts the connection when a commit was sent and before its
// answer arrives, and before it was sent. Either way an insert comes out true.
func TestPostgresLostAnswer(t *testing.T) {
	server := pgtest.Shared(t)
	u, err := url.Parse(server.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, deliver := range map[string]bool{"committed": true, "not committed": false} {
		t.Run(name, func(t *testing.T) {
			p := startCutter(t, u.Query().Get("host"), deliver)
			through := *u
			through.RawQuery = url.Values{"host": {p.dir}}.Encode()
			s := openTest(t, through.String())
			var kept []string
			for range 5 {
				sb := newSandbox()
				sb.Name = sb.ID
				p.armed.Store(true)
				if err := s.InsertSandbox(t.Context(), sb); err != nil {
					t.Fatal(err)
				}
				if p.armed.Load() {
					t.Fatal("nothing was cut")
				}
				kept = append(kept, sb.ID)
			}
			expectKept(t, s, kept)
			if _, err := s.write.ExecContext(t.Context(), "DELETE FROM sandboxes"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// cutter is a way to the server that cuts a connection at its next commit.
type cutter struct {
	dir     string
	server  string
	deliver bool // the commit reaches the server
	armed   atomic.Bool
	group   sync.WaitGroup
}

func startCutter(t *testing.T, server string, deliver bool) *cutter {
	const socket = ".s.PGSQL.5432"
	c := &cutter{dir: t.TempDir(), server: filepath.Join(server, socket), deliver: deliver}
	l, err := net.Listen("unix", filepath.Join(c.dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); c.group.Wait() })
	c.group.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			c.group.Go(func() { c.serve(client) })
		}
	})
	return c
}

func (c *cutter) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", c.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	c.group.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if bytes.HasPrefix(buffer[:n], []byte("Q")) && bytes.Contains(buffer[:n], []byte("commit")) && c.armed.CompareAndSwap(true, false) {
			_ = client.Close()
			if !c.deliver {
				return
			}
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}
