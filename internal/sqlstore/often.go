package sqlstore

import (
	"context"
	"database/sql"
	"errors"
)

// often is what every execution runs, prepared once: SQLite takes longer to parse
// these statements than to run them.
type often struct{ findSandbox, insertExecution, finishExecution *sql.Stmt }

func prepareOften(ctx context.Context, db *sql.DB) (o often, err error) {
	for text, to := range map[string]**sql.Stmt{
		findSandbox: &o.findSandbox, insertExecution: &o.insertExecution, finishExecution: &o.finishExecution,
	} {
		if *to, err = db.PrepareContext(ctx, text); err != nil { //nolint:sqlclosecheck // closed with the store
			return o, errors.Join(err, o.close())
		}
	}
	return o, nil
}

func (o often) close() error {
	var errs []error
	for _, statement := range []*sql.Stmt{o.findSandbox, o.insertExecution, o.finishExecution} {
		if statement != nil {
			errs = append(errs, statement.Close())
		}
	}
	return errors.Join(errs...)
}

// within is a statement of one transaction, which closes it.
func within(ctx context.Context, tx *sql.Tx, statement *sql.Stmt) interface {
	ExecContext(ctx context.Context, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
} {
	return tx.StmtContext(ctx, statement)
}
