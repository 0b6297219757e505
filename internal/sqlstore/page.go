package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// maxPage bounds one page of a list.
const maxPage = 100

// filter builds a WHERE clause with $n placeholders.
type filter struct {
	terms []string
	args  []any
}

// add appends a term in which each ? stands for the next argument.
func (f *filter) add(term string, args ...any) {
	for _, arg := range args {
		f.args = append(f.args, arg)
		term = strings.Replace(term, "?", "$"+strconv.Itoa(len(f.args)), 1)
	}
	f.terms = append(f.terms, term)
}

func (f *filter) where() string {
	if len(f.terms) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(f.terms, " AND ")
}

// row is what *sql.Row and *sql.Rows share.
type row interface{ Scan(dest ...any) error }

// page reads one page in order of id, newest first. after gives the page just
// older than that id, before the page just newer; neither id has to exist.
// more says whether there is more in the direction in which the page was asked.
func page[T any](ctx context.Context, db *sql.DB, query string, f filter, after, before string, limit int, scan func(row) (T, error)) (data []T, more bool, err error) {
	if limit < 1 || limit > maxPage {
		return nil, false, fault.Param("limit", "limit must be 1 to %d", maxPage)
	}
	if after != "" && before != "" {
		return nil, false, fault.Param("ending_before", "give starting_after or ending_before, not both")
	}
	order := "DESC"
	if after != "" {
		f.add("id < ?", after)
	}
	if before != "" {
		order = "ASC"
		f.add("id > ?", before)
	}
	// One row more than asked tells whether there is more.
	query = fmt.Sprintf("%s%s ORDER BY id %s LIMIT %d", query, f.where(), order, limit+1)
	if data, err = collect(ctx, db, query, f.args, scan); err != nil {
		return nil, false, err
	}
	if more = len(data) > limit; more {
		data = data[:limit]
	}
	if before != "" {
		slices.Reverse(data)
	}
	return data, more, nil
}

// collect reads all rows of a query.
func collect[T any](ctx context.Context, db *sql.DB, query string, args []any, scan func(row) (T, error)) (data []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		item, err := scan(rows)
		if err != nil {
			return nil, err
		}
		data = append(data, item)
	}
	return data, rows.Err()
}
