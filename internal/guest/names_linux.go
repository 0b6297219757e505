package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// serveStat describes what lies at a path.
func (a *Agent) serveStat(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	entry, err := a.look(absolute(conf.Workdir, name))
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	w.json(entry)
	return nil
}

// look describes what lies at a path of the guest; a link is not followed.
func (a *Agent) look(path string) (guestwire.Entry, error) {
	p, err := openPlace(a.under(path))
	if err != nil {
		return guestwire.Entry{}, err
	}
	defer p.close()
	return p.entry(path)
}

// entry describes what lies at a place, which the guest knows as path.
func (p place) entry(path string) (guestwire.Entry, error) {
	stat, err := p.stat()
	if err != nil {
		return guestwire.Entry{}, err
	}
	entry := entryOf(path, &stat)
	if entry.Type == guestwire.TypeSymlink {
		entry.Target, err = p.target()
	}
	return entry, err
}

// serveMakeDir makes a directory.
func (a *Agent) serveMakeDir(w *reply, r *request) error {
	var request guestwire.MakeDir
	if err := decode(r.body, &request); err != nil {
		return err
	}
	if err := checkPath(request.Path); err != nil {
		return err
	}
	if request.Mode > 0o777 {
		return refuse(guestwire.BadRequest, "mode is not 0000 to 0777")
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	owner, err := a.lookup(conf.User, conf.User)
	if err != nil {
		return err
	}
	path := absolute(conf.Workdir, request.Path)
	entry, err := a.makeDir(path, request.Mode, owner)
	if err != nil {
		refusal := fileRefusal(err, guestwire.Exists)
		if refusal.Code == guestwire.NotAFile {
			refusal.Code = guestwire.Exists
		}
		return refusal
	}
	entry.Path = path
	w.json(entry)
	return nil
}

// makeDir makes the last directory of a path by itself: a link that a program
// puts in its place gets none of its mode.
func (a *Agent) makeDir(path string, mode uint32, owner account) (entry guestwire.Entry, err error) {
	if path == "/" {
		path = "/."
	}
	var made []string
	err = again(func() error {
		p, err := a.makePlace(path, owner, &made)
		if err != nil {
			return err
		}
		defer p.close()
		entry, err = p.makeDir(path, owned(owner, mode))
		return err
	})
	if err != nil {
		unmake(made)
	}
	return entry, err
}

// makeDir makes a directory, or finds one.
func (p place) makeDir(path string, has attributes) (guestwire.Entry, error) {
	err := ignoringEINTR(func() error { return unix.Mkdirat(p.fd(), p.name, 0o700) })
	switch {
	case errors.Is(err, fs.ErrExist):
		return p.existing(path, err)
	case errors.Is(err, fs.ErrNotExist):
		return guestwire.Entry{}, errTakenAway
	case err != nil:
		return guestwire.Entry{}, p.fail("make directory", err)
	}
	dir, err := p.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return guestwire.Entry{}, err
	}
	defer func() { _ = dir.Close() }()
	if err := has.give(dir); err != nil {
		return guestwire.Entry{}, err
	}
	return describe(dir, path)
}

// existing describes the directory that is there already, or leads there.
func (p place) existing(path string, err error) (guestwire.Entry, error) {
	var stat unix.Stat_t
	if statErr := ignoringEINTR(func() error { return unix.Fstatat(p.fd(), p.name, &stat, 0) }); statErr != nil || typeOf(stat.Mode) != guestwire.TypeDirectory {
		return guestwire.Entry{}, p.fail("make directory", err)
	}
	return entryOf(path, &stat), nil
}

// serveMove renames.
func (a *Agent) serveMove(w *reply, r *request) error {
	var move guestwire.Move
	if err := decode(r.body, &move); err != nil {
		return err
	}
	if err := errors.Join(checkPath(move.From), checkPath(move.To)); err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	from, to := absolute(conf.Workdir, move.From), absolute(conf.Workdir, move.To)
	if err := errors.Join(a.dispensable(conf, from), a.dispensable(conf, to)); err != nil {
		return err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if move.Replace {
		flags = 0
	}
	err = ignoringEINTR(func() error {
		return unix.Renameat2(unix.AT_FDCWD, a.under(from), unix.AT_FDCWD, a.under(to), flags)
	})
	switch {
	case errors.Is(err, unix.EEXIST) && move.Replace: // as some file systems say it
		return refuse(guestwire.NotEmpty, to)
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR):
		return refuse(guestwire.Exists, to)
	case err != nil:
		return fileRefusal(&os.LinkError{Op: "move", Old: from, New: to, Err: err}, guestwire.NotAFile)
	}
	entry, err := a.look(to)
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	w.json(entry)
	return nil
}

// dispensable refuses to take away the working directory and what holds it: the
// next request would find no place.
func (a *Agent) dispensable(conf guestwire.Configure, path string) error {
	work := filepath.Clean(conf.Workdir)
	needed := path == "/" || path == work || strings.HasPrefix(work, path+"/")
	for _, other := range []string{"/", work} {
		now, err1 := os.Lstat(a.under(path))
		its, err2 := os.Stat(a.under(other))
		needed = needed || err1 == nil && err2 == nil && os.SameFile(now, its)
	}
	if needed {
		return refuse(guestwire.BadRequest, "the working directory, or what holds it")
	}
	return nil
}
