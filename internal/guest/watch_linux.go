package guest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	noticeBuffer = 64 << 10              // bytes of events that are read at once
	pairWait     = 20 * time.Millisecond // for the second half of a move, which the kernel tells right after the first
	maxTold      = 4096                  // names that are remembered to be told once only
)

// watch tells the host what changes beneath a directory.
type watch struct {
	agent     *Agent
	out       *reply
	root      string // absolute path, as the guest knows it
	recursive bool
	queue     *os.File
	dirs      map[int32]string    // relative path of each directory that is watched; "." is the root
	from      map[uint32]half     // first halves of moves, by cookie
	told      map[string]struct{} // what a look into a new directory found: its event may still come
	last      guestwire.Change    // that was told from what was read last
	spoke     time.Time           // when something was told last
}

// half is the first half of a move.
type half struct {
	path  string
	isDir bool
}

// errWatchOver ends a watch whose directory is gone.
var errWatchOver = errors.New("the directory is gone")

// serveWatch tells changes until the client leaves or the directory is gone.
func (a *Agent) serveWatch(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	recursive, err := truth(r.query, "recursive")
	if err != nil {
		return err
	}
	conf, err := a.configuration()
	if err != nil {
		return err
	}
	select {
	case a.watches <- struct{}{}:
		defer func() { <-a.watches }()
	default:
		return refuse(guestwire.TooMuch, "too many watches at once")
	}
	queue, err := openNotices()
	if err != nil {
		return err
	}
	watch := &watch{
		agent: a, out: w, root: absolute(conf.Workdir, name), recursive: recursive, queue: queue,
		dirs: make(map[int32]string), from: make(map[uint32]half), told: make(map[string]struct{}),
	}
	defer watch.close()
	if err := watch.begin(); err != nil {
		return fileRefusal(err, guestwire.BadDirectory)
	}
	// The connection serves nothing after this, so that its end can be waited for.
	r.close = true
	ctx, cancel := context.WithCancel(a.life)
	defer cancel()
	a.work.Go(func() {
		r.leave()
		cancel()
	})
	defer context.AfterFunc(ctx, func() { _ = queue.Close() })()
	w.header(200, "application/json", -1)
	if err := watch.tell(guestwire.Change{Path: watch.root}); err != nil {
		return err
	}
	if err := watch.follow(); !errors.Is(err, errWatchOver) {
		return err
	}
	return nil
}

func (w *watch) close() {
	_ = w.queue.Close()
	w.agent.watched.Add(-int64(len(w.dirs)))
}

// begin watches the directory, and with recursive all beneath it.
func (w *watch) begin() error {
	dir, _, err := w.agent.openDirectory(w.root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // while it is open, the kernel does not tell of its end
	if err := w.add(dir, "."); err != nil {
		return err
	}
	return w.descend(dir, "", false)
}

// add watches one directory.
func (w *watch) add(dir *os.File, name string) error {
	if w.agent.watched.Add(1) > guestwire.MaxWatched {
		w.agent.watched.Add(-1)
		return refuse(guestwire.TooMuch, "too many directories")
	}
	id, err := notify(w.queue, dir)
	if _, known := w.dirs[id]; err != nil || known {
		w.agent.watched.Add(-1)
	}
	if err == nil {
		w.dirs[id] = name
	}
	return err
}

// drop ends the watch of a directory.
func (w *watch) drop(id int32) {
	if _, ok := w.dirs[id]; ok {
		delete(w.dirs, id)
		w.agent.watched.Add(-1)
	}
}

// descend watches the directories that lie in one, each before it is looked
// through, and with report tells of all that is found.
func (w *watch) descend(dir *os.File, prefix string, report bool) error {
	if !w.recursive {
		return nil
	}
	var failed error
	down := &walk{most: holdNames, visit: func(f *found) (bool, error) {
		isDir := typeOf(f.stat.Mode) == guestwire.TypeDirectory
		if !report || isStaged(f.name) {
			return isDir, nil
		}
		if len(w.told) < maxTold {
			w.told[f.path] = struct{}{}
		}
		return isDir, w.tell(guestwire.Change{Type: guestwire.ChangeCreated, Path: w.absolute(f.path), IsDir: isDir})
	}, enter: func(dir *os.File, f *found) bool {
		if err := w.add(dir, f.path); err != nil {
			failed = err
			return false
		}
		return true
	}}
	if err := down.within(dir, prefix, "", 1); err != nil {
		return err
	}
	return failed
}

func (w *watch) absolute(name string) string { return path.Join(w.root, name) }

// tell sends a change, or a sign of life.
func (w *watch) tell(change guestwire.Change) error {
	w.spoke = time.Now()
	if change == w.last && change.Type == guestwire.ChangeModified {
		return nil
	}
	w.last = change
	if len(change.Path) > guestwire.MaxEntryPath || len(change.From) > guestwire.MaxEntryPath {
		change = guestwire.Change{Type: guestwire.ChangeOverflow}
	}
	var line []byte
	if change != (guestwire.Change{}) {
		var err error
		if line, err = encode(change); err != nil {
			return err
		}
	}
	_, err := w.out.Write(append(line, '\n'))
	return err
}

// follow tells what changes.
func (w *watch) follow() error {
	buf := make([]byte, noticeBuffer)
	for {
		if err := w.out.flush(); err != nil {
			return err
		}
		w.last = guestwire.Change{}
		until := w.spoke.Add(w.agent.quiet)
		if len(w.from) > 0 {
			until = time.Now().Add(pairWait)
		}
		if err := w.queue.SetReadDeadline(until); err != nil {
			return errWatchOver // it was closed: nobody listens
		}
		n, err := w.queue.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && len(w.from) > 0:
			err = w.settle()
		case errors.Is(err, os.ErrDeadlineExceeded):
			clear(w.told)
			err = w.tell(guestwire.Change{})
		case errors.Is(err, fs.ErrClosed):
			return errWatchOver
		case err == nil:
			err = w.take(buf[:n])
		}
		if err != nil {
			return errors.Join(err, w.out.flush())
		}
	}
}

// take tells what was read.
func (w *watch) take(data []byte) error {
	for len(data) > 0 {
		n, rest, err := takeNotice(data)
		if err == nil {
			err = w.event(n)
		}
		if err != nil {
			return err
		}
		data = rest
	}
	return nil
}
