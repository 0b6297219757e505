package guest

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// errPageFull ends the walk of a list: more follows.
var errPageFull = errors.New("page is full")

// page is a list on its way to the host.
type page struct {
	out    *reply
	root   string // absolute path of what is listed
	limit  int
	count  int
	length int // bytes of JSON
}

// serveList lists a directory.
func (a *Agent) serveList(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	depth, err1 := number(r.query, "depth", 1)
	limit, err2 := number(r.query, "limit", guestwire.MaxList)
	after, err3 := afterPath(r.query.Get("after"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if depth < 1 || depth > guestwire.MaxDepth || limit < 1 || limit > guestwire.MaxList {
		return refuse(guestwire.BadRequest, "depth or limit")
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	root := absolute(conf.Workdir, name)
	dir, entry, err := a.openDirectory(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	w.header(200, "application/json", -1)
	p := &page{out: w, root: root, limit: int(limit)}
	if err := p.line(entry); err != nil {
		return err
	}
	err = (&walk{deep: int(depth), most: int(limit) + 1, visit: p.visit}).within(dir, "", after, 1)
	more := errors.Is(err, errPageFull)
	if err != nil && !more {
		return err
	}
	return p.line(guestwire.ListEnd{More: &more})
}

// openDirectory opens a directory of the guest; a link to one is followed.
func (a *Agent) openDirectory(path string) (*os.File, guestwire.Entry, error) {
	dir, err := os.OpenFile(a.under(path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, guestwire.Entry{}, fileRefusal(err, guestwire.BadDirectory)
	}
	entry, err := describe(dir, path)
	if err != nil {
		_ = dir.Close()
		return nil, entry, fileRefusal(err, guestwire.BadDirectory)
	}
	return dir, entry, nil
}

// afterPath takes a path that is relative to what is listed or packed.
func afterPath(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	if after := path.Clean(text); len(text) <= guestwire.MaxPath && strings.Trim(after, ".") != "" &&
		!path.IsAbs(after) && !strings.HasPrefix(after, "../") && !strings.ContainsRune(after, 0) {
		return after, nil
	}
	return "", refuse(guestwire.BadRequest, "after is no path beneath")
}

// visit adds an entry, unless the page is full.
func (p *page) visit(f *found) (into bool, err error) {
	if p.count == p.limit || p.length >= guestwire.MaxListBytes {
		return false, errPageFull
	}
	entry := entryOf(path.Join(p.root, f.path), &f.stat)
	if len(entry.Path) > guestwire.MaxEntryPath {
		return false, nil
	}
	if entry.Type == guestwire.TypeSymlink {
		if entry.Target, err = f.target(); vanished(err) || errors.Is(err, unix.EINVAL) {
			return false, nil // it is no link any more
		}
		if err != nil {
			return false, err
		}
	}
	p.count++
	return true, p.line(entry)
}

func (p *page) line(value any) error {
	data, err := encode(value)
	if err != nil {
		return err
	}
	p.length += len(data) + 1
	_, err = p.out.Write(append(data, '\n'))
	return err
}
