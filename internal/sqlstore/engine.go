package sqlstore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/pressly/goose/v3"
)

// engine is what SQLite and PostgreSQL do each in its own way. The SQL is not
// among it: it is one text for both.
type engine interface {
	// prepare proves that the database is fit for use and this store's alone.
	prepare(ctx context.Context) error
	// begin begins a transaction that writes; release comes after its end.
	begin(ctx context.Context, l level) (tx *sql.Tx, release func(), err error)
	// migration is how goose speaks to it.
	migration() (goose.Dialect, []goose.ProviderOption, error)
	// trouble says what an error of its driver means.
	trouble(err error) trouble
	// close gives up what prepare took; the pools are closed before.
	close() error
}

// level is what a write that returned nil survives at least.
type level string

const (
	synced  level = "synced"  // also a power cut
	written level = "written" // the end of any process, but not of the machine
)

// trouble is an error of a driver in an operator's words; the zero value is
// none that is known.
type trouble struct {
	advice string // what is wrong with the database and what to do: "is ...; ..."
	passes bool   // the same call may succeed later without a change of the daemon
	doubt  bool   // a commit that met it may have happened
}

// IsURL tells a database server's address from a file's path.
func IsURL(where string) bool {
	return strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://")
}
