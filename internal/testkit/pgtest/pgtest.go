// Package pgtest gives tests a PostgreSQL server of their own: Debian's release,
// in a directory of its own, on a Unix socket there and on no other. It ends with
// the test binary, also with one that is killed. It knows no schema.
package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Who a test connects as: no superuser, and with a password that means something
// in a URL.
const (
	User     = "microvm"
	Password = "s3cr/t:p@ss" //nolint:gosec // of a server that only this test can reach
)

var shared struct {
	sync.Mutex
	server *Server
}

// Main runs a package's tests and ends what Shared started; a TestMain calls it.
func Main(m *testing.M) int {
	defer func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.server == nil {
			return
		}
		if err := shared.server.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "end PostgreSQL:", err)
		}
	}()
	return m.Run()
}

// Shared returns the one server of this test binary. A test that is not parallel
// may stop or kill it: who asks for it next has it running again.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := newServer()
		if err != nil {
			t.Fatal(err)
		}
		shared.server = s
	} else if shared.server.gone() {
		shared.server.Restart(t)
	}
	return shared.server
}

// Start starts a server that ends with its test.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var databases atomic.Int64

// Database makes an empty database that User owns, and returns its URL. options go
// to CREATE DATABASE; without any it is what a store wants.
func (s *Server) Database(t testing.TB, options ...string) string {
	t.Helper()
	if len(options) == 0 {
		options = []string{"TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"}
	}
	name := fmt.Sprint("db", databases.Add(1))
	s.Admin(t, fmt.Sprintf("CREATE DATABASE %s OWNER %s %s", name, User, strings.Join(options, " ")))
	return s.url(User, name)
}

// Name returns the name of the database that a URL of Database names.
func Name(where string) string {
	u, err := url.Parse(where)
	if err != nil {
		panic(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

func (s *Server) url(user, database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword(user, Password), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir}}.Encode(),
	}).String()
}
