package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Where the connection is lost while a transaction commits, nobody knows what
// became of it. A change may be repeated by whoever made it; a row that was added
// and that nobody knows of would stay. So an insert asks again, this often and
// for this long.
const (
	doubtPause = 50 * time.Millisecond
	doubtLimit = 10 * time.Second
)

// errThere is an insert of an id that is there.
var errThere = errors.New("is there already")

// inDoubt is a commit whose outcome is not known.
type inDoubt struct{ error }

func (e inDoubt) Unwrap() error { return e.error }

// transaction runs do in one write transaction.
func (s *Store) transaction(ctx context.Context, l level, do func(*sql.Tx) error) error {
	tx, release, err := s.engine.begin(ctx, l)
	if err != nil {
		return err
	}
	defer release()
	if err := do(tx); err != nil {
		if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
		return err
	}
	err = tx.Commit()
	if err != nil && s.engine.trouble(err).doubt {
		return inDoubt{err}
	}
	return err
}

// insert is transaction for one that adds a row with an id of its own and refuses
// one that is there by errThere. In doubt it is run again: the database lets it
// wait for the end of the first, and then it finds the row or adds it.
func (s *Store) insert(ctx context.Context, l level, do func(*sql.Tx) error) error {
	err := s.transaction(ctx, l, do)
	doubt, ok := err.(inDoubt) //nolint:errorlint // transaction's own
	if !ok {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, doubtLimit)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return doubt
		case <-time.After(doubtPause):
		}
		err := s.transaction(ctx, l, do)
		switch {
		case err == nil || errors.Is(err, errThere):
			return nil
		case !s.engine.trouble(err).passes:
			return err // the first one did not happen, and this is why
		}
	}
}
