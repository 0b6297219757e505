// Package sqlstore keeps every noun's rows in SQLite. It owns the schema, the
// migrations and the SQL, and it knows no HTTP and nothing of the host.
//
// SQL is one text for SQLite and PostgreSQL: $n placeholders, times as BIGINT
// milliseconds, JSON as TEXT. A time or duration below a millisecond is cut off;
// an empty map or list comes back as nil.
//
// A write that returned nil is synced to disk. A write that returned an error
// may have happened when its context ended in the middle of it; every write here
// can be repeated or refuses the repeat by name.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/sandbox"
)

var (
	_ sandbox.Store   = (*Store)(nil)
	_ execution.Store = (*Store)(nil)
)

// busyTimeout is how long a statement waits for a lock that another process
// holds. Within the process there is one writer, so nothing waits for it.
const busyTimeout = 5 * time.Second

// readers is how many reads run at once. They never wait for the writer (WAL).
const readers = 4

// Store is one database file. All methods may be called at once.
type Store struct {
	path  string  // for messages to the operator
	write *sql.DB // one connection: SQLite has one writer, so the queue for it is here
	read  *sql.DB // refuses to write
}

// Open opens the file at path or makes it (mode 0600; its folder must be there),
// checks it, and brings its schema up to date. An error names the file and says
// what to do.
func Open(ctx context.Context, path string) (*Store, error) {
	return open(ctx, path, busyTimeout)
}

func open(ctx context.Context, path string, busy time.Duration) (*Store, error) {
	s, err := connect(path, busy)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	err = s.check(ctx)
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(s.explain("open store", err), s.Close())
	}
	return s, nil
}

// connect makes the pools; the first statement opens the file.
func connect(path string, busy time.Duration) (*Store, error) {
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
	s := &Store{path: path}
	if s.write, err = sql.Open("sqlite", dsn("journal_mode(WAL)", "synchronous(FULL)")); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dsn("query_only(1)")); err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s, nil
}

// Close waits for running statements and closes the file.
func (s *Store) Close() error {
	if err := errors.Join(s.read.Close(), s.write.Close()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// check reads every page. The file is small: stopped sandboxes leave it after
// their retention. A damaged page found here is better than one found by a call.
func (s *Store) check(ctx context.Context) error {
	var verdict string
	if err := s.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return damaged{verdict}
	}
	return nil
}

// transaction runs do in one write transaction.
func (s *Store) transaction(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
		return err
	}
	return tx.Commit()
}

// toMillis is the stored form of a time; the zero time is 0.
func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
