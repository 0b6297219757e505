package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Daemons reap what the store does not want, so a PostgreSQL database has one
// owner. Two things keep it so: every session of a store holds the advisory lock
// ownerKey shared, and the table microvm_owner names the store. The name changes
// only under the exclusive lock, so only while no session of the old owner lives;
// and a session begins by taking the lock and then reading the name. What a
// session writes is thus written for the owner, however connections were lost and
// made again on the way, and no statement needs a check of its own.

// ownerKey is "microvmd".
const ownerKey int64 = 0x6d6963726f766d64

// watchPause is between two looks at the connection that holds the lock while
// nobody calls.
const watchPause = 2 * time.Second

var (
	errOwned  = errors.New("its lock is held")
	errSeized = errors.New("it has another owner")
)

// owner is a store's claim to its database.
type owner struct {
	name    string
	busy    time.Duration
	keeper  *sql.DB // one connection, never given back
	stop    context.CancelFunc
	stopped chan struct{} // closed when nobody watches
}

func newOwner(config *pgx.ConnConfig, busy time.Duration) *owner {
	o := &owner{name: rand.Text(), busy: busy, stop: func() {}, stopped: make(chan struct{})}
	o.keeper = o.pool(config, 1)
	o.keeper.SetConnMaxIdleTime(0)
	close(o.stopped)
	return o
}

// pool makes connections that are the owner's.
func (o *owner) pool(config *pgx.ConnConfig, size int) *sql.DB {
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		err := o.admit(ctx, conn)
		if err != nil {
			_ = conn.Close(ctx) // stdlib forgets it
		}
		return err
	}))
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(postgresIdle)
	return db
}

// admit begins a session. These are two statements because one would read the
// name as it was before it got the lock.
func (o *owner) admit(ctx context.Context, conn *pgx.Conn) error {
	var held bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared($1)", ownerKey).Scan(&held); err != nil {
		return err
	}
	var name string
	err := conn.QueryRow(ctx, "SELECT owner FROM microvm_owner").Scan(&name)
	if err != nil {
		return err
	}
	if !held || name != o.name {
		return errSeized
	}
	// An acknowledged write is on disk, also where the server's default is not so.
	_, err = conn.Exec(ctx, "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")
	return err
}

// seize makes the database this store's. It waits a moment for the sessions of a
// daemon that was just killed.
func (o *owner) seize(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for began := time.Now(); ; {
		var held bool
		// Trying, because who waits for the exclusive lock blocks new sessions of
		// the owner.
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", ownerKey).Scan(&held); err != nil {
			return err
		}
		if held {
			break
		}
		if time.Since(began) > o.busy {
			return errOwned
		}
		select {
		case <-time.After(o.busy / 50):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// The table is no migration: it must be there before the first.
	for _, statement := range []string{
		"CREATE TABLE IF NOT EXISTS microvm_owner (one BOOLEAN PRIMARY KEY CHECK (one), owner TEXT NOT NULL)",
		fmt.Sprintf("INSERT INTO microvm_owner VALUES (true, '%s') ON CONFLICT (one) DO UPDATE SET owner = excluded.owner", o.name),
		fmt.Sprintf("SELECT pg_advisory_lock_shared(%d)", ownerKey),
		fmt.Sprintf("SELECT pg_advisory_unlock(%d)", ownerKey),
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	// From here on the keeper holds the lock.
	if err := o.keeper.PingContext(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	o.stop, o.stopped = stop, make(chan struct{})
	go o.watch(watching)
	return nil
}

// watch takes the lock again soon after the keeper's connection was lost, so that
// an owner that is at rest stays one. What went wrong is told by the next call.
func (o *owner) watch(ctx context.Context) {
	defer close(o.stopped)
	ticker := time.NewTicker(watchPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_ = o.keeper.PingContext(ctx)
	}
}

func (o *owner) close() error {
	o.stop()
	<-o.stopped
	return o.keeper.Close()
}
