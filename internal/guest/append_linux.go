package guest

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// appendFile adds a body to a regular file that has at bytes, all of it or
// nothing. A file that is not there is begun where at is 0.
func (a *Agent) appendFile(path string, at int64, mode uint32, owner account, body io.Reader) (guestwire.Entry, error) {
	if at < 0 {
		return guestwire.Entry{}, refuse(guestwire.BadRequest, "append_at is negative")
	}
	file, err := os.OpenFile(a.under(path), os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) && at == 0 {
		return a.newFile(path, mode, owner, body)
	}
	if err != nil {
		return guestwire.Entry{}, err
	}
	defer func() { _ = file.Close() }()
	before, err := claim(file, at)
	if err != nil {
		return before, err
	}
	// By Write: os.File.WriteAt does not say how much of it a full disk took.
	if _, err := file.Seek(at, io.SeekStart); err != nil {
		return before, err
	}
	n, err := a.fill(file, body)
	after, statErr := describe(file, path)
	if err = errors.Join(err, statErr); err == nil && after.Size == at+n {
		err = stillThere(a.under(path), file)
	} else if err == nil {
		err = refuse(guestwire.Conflict, "somebody else writes the file")
	}
	if err != nil && after.Size > at && after.Size <= at+n {
		// Only what was added here is taken away again.
		err = errors.Join(err, file.Truncate(at))
	}
	return after, err
}

// claim makes sure that a file has at bytes, and that no other request adds to
// it. Nobody waits for the lock: who holds it changes the size.
func claim(file *os.File, at int64) (guestwire.Entry, error) {
	entry, err := describe(file, "")
	if err != nil {
		return entry, err
	}
	if entry.Type != guestwire.TypeFile {
		return entry, refuse(guestwire.NotAFile, file.Name())
	}
	err = ignoringEINTR(func() error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return entry, refuse(guestwire.Conflict, "the file is locked")
	}
	if err != nil {
		return entry, &os.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	if entry, err = describe(file, ""); err == nil && entry.Size != at {
		err = refuse(guestwire.Conflict, "the file has another size")
	}
	return entry, err
}

// stillThere refuses a file that was replaced while it was added to: nobody will
// read what was added.
func stillThere(path string, file *os.File) error {
	now, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if own, ownErr := file.Stat(); ownErr != nil || err != nil || !os.SameFile(now, own) {
		return refuse(guestwire.Conflict, "the file was replaced")
	}
	return nil
}

// newFile writes a file where there is none yet.
func (a *Agent) newFile(path string, mode uint32, owner account, body io.Reader) (guestwire.Entry, error) {
	var made []string
	s, entry, err := a.stageAt(path, owned(owner, mode), owner, &made, body)
	if err == nil {
		if err = s.commitNew(); errors.Is(err, fs.ErrExist) {
			err = refuse(guestwire.Conflict, "somebody else made the file")
		}
		s.close()
	}
	if err != nil {
		unmake(made)
	}
	return entry, err
}
