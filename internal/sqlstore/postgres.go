package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Connections of one store. Writers are several because commits that wait for
// the disk at the same time share one sync there.
const (
	postgresWriters = 8
	postgresReaders = 4
	postgresIdle    = 5 * time.Minute // after which a connection that nobody uses is given back
	postgresConnect = 5 * time.Second // of each address, where the URL says nothing
)

// postgres is the engine for a database of a PostgreSQL server.
type postgres struct {
	config *pgx.ConnConfig
	write  *sql.DB
	owner  *owner
}

// connectPostgres makes the pools; the first statement connects.
func connectPostgres(where string, busy time.Duration) (*Store, error) {
	config, err := parsePostgres(where, busy)
	if err != nil {
		return nil, err
	}
	o := newOwner(config, busy)
	write := o.pool(config, postgresWriters)
	reading := config.Copy()
	reading.RuntimeParams["default_transaction_read_only"] = "on"
	name := fmt.Sprintf("database %q at %s", config.Database, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	return &Store{
		name: name, write: write, read: o.pool(reading, postgresReaders),
		engine: &postgres{config: config, write: write, owner: o},
	}, nil
}

// parsePostgres reads the URL and adds the settings of a session that the store
// relies on. Its errors hold nothing of a URL that is not well-formed: who knows
// which part of it is the password.
func parsePostgres(where string, busy time.Duration) (*pgx.ConnConfig, error) {
	if _, err := url.Parse(where); err != nil {
		return nil, errors.New("the database is no valid postgres:// URL; in a user name or password, write each special character as % and two hex digits")
	}
	config, err := pgx.ParseConfig(where)
	if err != nil {
		return nil, err // of a well-formed URL, it hides the password
	}
	if !strings.Contains(where, "connect_timeout=") {
		config.ConnectTimeout = postgresConnect
	}
	config.DialFunc = dial
	set := config.RuntimeParams
	if set["application_name"] == "" {
		set["application_name"] = "microvmd"
	}
	// A foreign session that holds a table is told, like a foreign process that
	// holds SQLite's file.
	set["lock_timeout"] = strconv.FormatInt(busy.Milliseconds(), 10)
	set["default_transaction_isolation"] = "read committed" // the guards in WHERE are written for it
	// The server drops a daemon whose host is gone, so that another can start.
	set["tcp_keepalives_idle"], set["tcp_keepalives_interval"], set["tcp_keepalives_count"] = "10", "5", "3"
	return config, nil
}

func (p *postgres) prepare(ctx context.Context) error {
	if err := p.owner.seize(ctx, p.config); err != nil {
		return err
	}
	var fits bool
	// In collation C 'Z' is below 'a'. Ids are compared as text, and an index in
	// another collation is damaged when the system's C library changes its mind.
	if err := p.write.QueryRowContext(ctx, "SELECT 'Z' < 'a' AND getdatabaseencoding() = 'UTF8'").Scan(&fits); err != nil {
		return err
	}
	if !fits {
		return errUnfit
	}
	return nil
}

// begin has one level: a commit that is not synced is still in the server's own
// memory, and a server that is killed loses it.
func (p *postgres) begin(ctx context.Context, _ level) (tx *sql.Tx, release func(), err error) {
	tx, err = p.write.BeginTx(ctx, nil)
	return tx, func() {}, err
}

func (p *postgres) migration() (goose.Dialect, []goose.ProviderOption, error) {
	locker, err := lock.NewPostgresSessionLocker()
	return goose.DialectPostgres, []goose.ProviderOption{goose.WithSessionLocker(locker)}, err
}

func (p *postgres) close() error { return p.owner.close() }

var errUnfit = errors.New("not in encoding UTF8 and collation C")

// trouble reads SQLSTATE codes (PostgreSQL's documentation, appendix A).
func (p *postgres) trouble(err error) trouble {
	var server *pgconn.PgError
	switch {
	case errors.Is(err, errUnfit):
		return trouble{advice: "must be made with CREATE DATABASE ... TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"}
	case errors.Is(err, errOwned):
		return trouble{advice: "is used by another daemon; stop that one, or give this one a database of its own"}
	case errors.Is(err, errSeized):
		return trouble{advice: "was taken by another daemon; stop one of the two and restart the other"}
	case errors.As(err, &server):
		return codes(server.Code)
	case errors.Is(err, context.Canceled):
		return trouble{} // the caller's own doing
	case isLost(err):
		return trouble{advice: "does not answer; see that the server runs and can be reached, nothing that was acknowledged is lost", passes: true, doubt: true}
	}
	return trouble{}
}

func codes(state string) trouble {
	switch class := state[:2]; {
	case state == "53100": // disk_full
		return trouble{advice: "cannot grow, the server's disk is full; free space there, nothing that was acknowledged is lost", passes: true}
	case state == "55P03", class == "40": // lock_not_available; deadlocks
		return trouble{advice: "is locked by another session; end the tool that uses it and try again", passes: true}
	case state == "25006": // read_only_sql_transaction
		return trouble{advice: "takes no writes; see whether the server is a standby", passes: true}
	case state == "58030", class == "XX": // io_error; internal errors, which a damaged page is
		return trouble{advice: "is damaged or cannot be read; see the server's log and its disk, and restore a backup"}
	case class == "08", class == "53", class == "57": // connection; resources; shutdown and start
		return trouble{advice: "takes no statements now; see the server's log, nothing that was acknowledged is lost", passes: true, doubt: true}
	case class == "28", class == "3D", state == "42501": // authorization, no such database, privileges
		return trouble{advice: "refuses this daemon; see that the user, its password and its rights, and the database's name are right"}
	}
	return trouble{}
}

// isLost tells an error of the connection from one of the server or of a value.
func isLost(err error) bool {
	var connecting *pgconn.ConnectError
	var network net.Error // also a deadline that passed
	return errors.As(err, &connecting) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
