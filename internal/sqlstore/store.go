// Package sqlstore keeps every noun's rows in SQLite or PostgreSQL. It owns the
// schema, the migrations and the SQL, and it knows no HTTP and nothing of the host.
//
// SQL is one text for both: $n placeholders, times as BIGINT milliseconds, JSON as
// TEXT. What the engines do not do alike is behind the interface engine. A time or
// duration below a millisecond is cut off; an empty map or list comes back as nil.
//
// A write that returned nil is synced to disk, but for executions in SQLite, which
// survive kill -9 and not a power cut. A write that returned an error
// may have happened when its context or its connection ended in the middle of it;
// every write here can be repeated or refuses the repeat by name.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/sandbox"
)

var (
	_ sandbox.Store   = (*Store)(nil)
	_ execution.Store = (*Store)(nil)
)

// busyTimeout is how long a statement waits for a lock that somebody else holds,
// and a start for an earlier daemon's end.
const busyTimeout = 5 * time.Second

// Store is one database. All methods may be called at once.
type Store struct {
	name   string  // for messages to the operator; without a password
	write  *sql.DB // transactions that write
	read   *sql.DB // refuses to write
	engine engine
	often  often // set by open
}

// Open opens a database, checks it, and brings its schema up to date. where is
// the path of an SQLite file, which is made if need be (mode 0600; its folder must
// be there), or a postgres:// URL of a database that is there. One store has it at
// a time. An error names the database and says what to do; a password is never in
// it.
func Open(ctx context.Context, where string) (*Store, error) {
	return open(ctx, where, busyTimeout)
}

func open(ctx context.Context, where string, busy time.Duration) (*Store, error) {
	s, err := connect(where, busy)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	err = s.engine.prepare(ctx)
	if err == nil {
		err = s.migrate(ctx)
	}
	if err == nil {
		s.often, err = prepareOften(ctx, s.write)
	}
	if err != nil {
		err, _ = s.describe("open store", err)
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func connect(where string, busy time.Duration) (*Store, error) {
	if IsURL(where) {
		return connectPostgres(where, busy)
	}
	return connectSQLite(where, busy)
}

// Close waits for running statements and gives the database up.
func (s *Store) Close() error {
	if err := errors.Join(s.often.close(), s.read.Close(), s.write.Close(), s.engine.close()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
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
