package sqlstore

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/testkit/pgtest"
)

// alone connects without being a store.
func alone(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func queryAlone(t *testing.T, config *pgx.ConnConfig, query string, into any) error {
	t.Helper()
	conn := alone(t, config)
	defer func() { _ = conn.Close(t.Context()) }()
	return conn.QueryRow(t.Context(), query).Scan(into)
}

func TestPostgresSettingsHold(t *testing.T) {
	server := pgtest.Shared(t)
	where := server.Database(t)
	// What an administrator may have set for all.
	for _, setting := range []string{"synchronous_commit = off", "default_transaction_isolation = 'serializable'", "lock_timeout = 0"} {
		server.Admin(t, "ALTER DATABASE "+pgtest.Name(where)+" SET "+setting)
	}
	s := openTest(t, where)
	for _, c := range []struct {
		pool          *sql.DB
		setting, want string
	}{
		{s.write, "synchronous_commit", "on"},
		{s.write, "transaction_isolation", "read committed"},
		{s.write, "lock_timeout", "1s"},
		{s.write, "application_name", "microvmd"},
		{s.write, "transaction_read_only", "off"},
		{s.read, "transaction_read_only", "on"},
		{s.read, "transaction_isolation", "read committed"},
	} {
		var got string
		if err := c.pool.QueryRowContext(t.Context(), "SHOW "+c.setting).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s is %s %v, want %s", c.setting, got, err, c.want)
		}
	}
	if _, err := s.read.ExecContext(t.Context(), "DELETE FROM sandboxes"); err == nil {
		t.Error("a reader wrote")
	}
}

func TestPostgresOpenRefusals(t *testing.T) {
	server := pgtest.Shared(t)
	where := server.Database(t)
	change := func(change func(*url.URL)) string {
		u, err := url.Parse(where)
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		return u.String()
	}
	query := func(key, value string) string {
		return change(func(u *url.URL) {
			q := u.Query()
			q.Set(key, value)
			u.RawQuery = q.Encode()
		})
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = free.Close() }() // it accepts and says nothing

	secret := pgtest.Password
	for name, c := range map[string]struct {
		where string
		words []string
	}{
		"password":  {change(func(u *url.URL) { u.User = url.UserPassword(pgtest.User, secret+"x") }), []string{pgtest.Name(where), "refuses this daemon", "password"}},
		"database":  {change(func(u *url.URL) { u.Path = "/none" }), []string{`"none"`, "refuses this daemon"}},
		"no server": {query("host", t.TempDir()), []string{pgtest.Name(where), "does not answer"}},
		"silent":    {change(func(u *url.URL) { u.Host, u.RawQuery = free.Addr().String(), "sslmode=disable&connect_timeout=1" }), []string{"does not answer"}},
		"setting":   {query("connect_timeout", "soon"), []string{"connect_timeout"}},
		"malformed": {"postgres://microvm:" + secret + "@" + "db.example/microvm", []string{"no valid postgres:// URL"}},
		"escape":    {"postgres://microvm:%zz" + secret + "@db.example/microvm", []string{"no valid postgres:// URL"}},
		"collation": {server.Database(t, "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en' LC_COLLATE 'C' LC_CTYPE 'C'"), []string{"LC_COLLATE 'C'"}},
		"encoding":  {server.Database(t, "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"), []string{"ENCODING 'UTF8'"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t.Context(), c.where, time.Second)
			expectAdvice(t, err, append(c.words, "open store: ")...)
			for _, part := range []string{secret, url.QueryEscape(secret), "s3cr"} {
				if err != nil && strings.Contains(err.Error(), part) {
					t.Errorf("the error shows the password: %v", err)
				}
			}
		})
	}
}

// TestPostgresLocked meets a foreign session that holds a table.
func TestPostgresLocked(t *testing.T) {
	s := openTest(t, pgtest.Shared(t).Database(t))
	foreign := alone(t, s.engine.(*postgres).config)
	exec := func(text string) {
		t.Helper()
		if _, err := foreign.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	exec("BEGIN")
	exec("LOCK TABLE sandboxes IN SHARE ROW EXCLUSIVE MODE")
	err := s.InsertSandbox(t.Context(), newSandbox()) // waits as long as openTest says
	expectAdvice(t, err, "insert sandbox: ", s.name, "locked by another session")
	expectOutage(t, err)
	if _, err := s.LiveSandboxes(t.Context()); err != nil {
		t.Errorf("a read waits for a foreign writer: %v", err)
	}
	exec("ROLLBACK")
	if err := s.InsertSandbox(t.Context(), newSandbox()); err != nil {
		t.Errorf("after the lock is gone: %v", err)
	}
}

// TestPostgresDamage overwrites a table's page under the server.
func TestPostgresDamage(t *testing.T) {
	server := pgtest.Shared(t)
	s := openTest(t, server.Database(t))
	kept := newSandbox()
	if err := s.InsertSandbox(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	var file string
	if err := queryAlone(t, s.engine.(*postgres).config, "SELECT pg_relation_filepath('sandboxes')", &file); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	path := filepath.Join(server.Data(), file)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	overwrite := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := []byte(strings.Repeat("\xa5", len(whole)))
	overwrite(broken)
	server.Restart(t)
	for name, do := range map[string]func() error{
		"list live": func() error { _, err := s.LiveSandboxes(t.Context()); return err },
		"insert":    func() error { return s.InsertSandbox(t.Context(), newSandbox()) },
	} {
		err := do()
		for fault.Is(err, fault.QueueUnreachable) { // the connections of before
			err = do()
		}
		expectAdvice(t, err, name+" sandbox", s.name, "damaged", "backup")
		if fault.From(err).Code != fault.InternalError {
			t.Errorf("a repeat cannot help: %v", err)
		}
	}
	server.Stop(t)
	overwrite(whole) // the backup
	server.Restart(t)
	expectKept(t, s, []string{kept.ID})
}

// TestPostgresSilence: a server whose host is gone is given up.
func TestPostgresSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 15000, unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 2} {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("option %d is %d %v, want %d", option, got, err, want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
