package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// sqliteReaders is how many reads run at once. They never wait for the writer
// (WAL).
const sqliteReaders = 4

// sqliteFile is the engine for a file of this host. The state directory's lock
// makes it one daemon's.
type sqliteFile struct {
	write *sql.DB

	// The level that a connection has; who holds the one connection of write may
	// look and change.
	conn any // the driver's, nil before the first
	has  level
}

// connectSQLite makes the pools; the first statement opens the file.
func connectSQLite(path string, busy time.Duration) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// SQLite would make it readable by all. Its -wal and -shm files take this mode.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	dsn := func(pragmas ...string) string {
		values := url.Values{"_txlock": {"immediate"}, "_pragma": append(pragmas,
			"busy_timeout("+strconv.FormatInt(busy.Milliseconds(), 10)+")", "foreign_keys(1)")}
		return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + values.Encode()
	}
	write, err := sql.Open("sqlite", dsn("journal_mode(WAL)", "synchronous(FULL)"))
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1) // SQLite has one writer, so the queue for it is here
	read, err := sql.Open("sqlite", dsn("query_only(1)"))
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(sqliteReaders)
	read.SetMaxIdleConns(sqliteReaders)
	return &Store{name: path, write: write, read: read, engine: &sqliteFile{write: write}}, nil
}

// prepare reads every page. The file is small: stopped sandboxes leave it after
// their retention. A damaged page found here is better than one found by a call.
func (e *sqliteFile) prepare(ctx context.Context) error {
	var verdict string
	if err := e.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return damaged{verdict}
	}
	return nil
}

// begin sets the level first: the connection may have another one
// still, and within a transaction it cannot be set. WAL with synchronous NORMAL leaves
// a commit to the kernel, which keeps it when processes are killed
// (sqlite.org/pragma.html#pragma_synchronous).
func (e *sqliteFile) begin(ctx context.Context, l level) (tx *sql.Tx, release func(), err error) {
	conn, err := e.write.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	release = func() { _ = conn.Close() } // back to the pool
	if err = e.set(ctx, conn, l); err == nil {
		tx, err = conn.BeginTx(ctx, nil)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return tx, release, nil
}

// set gives a connection a level that it does not have.
func (e *sqliteFile) set(ctx context.Context, conn *sql.Conn, l level) error {
	var same bool
	err := conn.Raw(func(driver any) error {
		same = driver == e.conn && e.has == l
		e.conn = driver
		return nil
	})
	if err != nil || same {
		return err
	}
	mode := map[level]string{synced: "FULL", written: "NORMAL"}[l]
	e.has = "" // until it is known
	if _, err := conn.ExecContext(ctx, "PRAGMA synchronous = "+mode); err != nil {
		return err
	}
	e.has = l
	return nil
}

func (*sqliteFile) migration() (goose.Dialect, []goose.ProviderOption, error) {
	return goose.DialectSQLite3, nil, nil
}

func (*sqliteFile) close() error { return nil }

// damaged is what SQLite's own check found.
type damaged struct{ verdict string }

func (d damaged) Error() string { return "integrity check: " + d.verdict }

func (*sqliteFile) trouble(err error) trouble {
	var broken damaged
	var driver *sqlite.Error
	code := 0
	if errors.As(err, &broken) {
		code = sqlite3.SQLITE_CORRUPT
	} else if errors.As(err, &driver) {
		code = driver.Code() & 0xff // the rest is the extended code
	}
	switch code {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return trouble{advice: "is locked by another process; stop the other daemon or tool that uses it and try again", passes: true}
	case sqlite3.SQLITE_FULL:
		return trouble{advice: "cannot grow, its disk is full; free space there, nothing that was acknowledged is lost", passes: true}
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return trouble{advice: "is damaged or no database; put a backup in its place, or move it away together with its -wal and -shm files to start empty (running sandboxes then end)"}
	case sqlite3.SQLITE_IOERR:
		return trouble{advice: "cannot be read or written; look at its disk and the kernel's log"}
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return trouble{advice: "cannot be opened for writing; it and its folder must belong to the daemon's user on a writable file system"}
	}
	return trouble{}
}
