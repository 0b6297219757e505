package sqlstore

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// damaged is what SQLite's own check found.
type damaged struct{ verdict string }

func (d damaged) Error() string { return "integrity check: " + d.verdict }

// explain turns a driver's error into "verb noun: which file, what to do: cause".
// Other errors only get the verb and noun.
func (s *Store) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	var broken damaged
	var driver *sqlite.Error
	code := 0
	if errors.As(err, &broken) {
		code = sqlite3.SQLITE_CORRUPT
	} else if errors.As(err, &driver) {
		code = driver.Code() & 0xff // the rest is the extended code
	}
	var advice string
	switch code {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		advice = "is locked by another process; stop the other daemon or tool that uses it and try again"
	case sqlite3.SQLITE_FULL:
		advice = "cannot grow, its disk is full; free space there, nothing that was acknowledged is lost"
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		advice = "is damaged or no database; put a backup in its place, or move it away together with its -wal and -shm files to start empty (running sandboxes then end)"
	case sqlite3.SQLITE_IOERR:
		advice = "cannot be read or written; look at its disk and the kernel's log"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		advice = "cannot be opened for writing; it and its folder must belong to the daemon's user on a writable file system"
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %s %s: %w", op, s.path, advice, err)
}
