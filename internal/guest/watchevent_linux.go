package guest

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// settle tells of moves of which no second half came: they led elsewhere.
func (w *watch) settle() error {
	for cookie, half := range w.from {
		delete(w.from, cookie)
		if isStaged(path.Base(half.path)) {
			continue
		}
		if half.isDir {
			w.leave(half.path)
		}
		if err := w.tell(guestwire.Change{Type: guestwire.ChangeRemoved, Path: w.absolute(half.path), IsDir: half.isDir}); err != nil {
			return err
		}
	}
	return nil
}

// leave ends the watches of a directory that was moved elsewhere.
func (w *watch) leave(name string) {
	for id, dir := range w.dirs {
		if dir == name || strings.HasPrefix(dir, name+"/") {
			forgo(w.queue, id)
			w.drop(id)
		}
	}
}

// moved is about a directory: its watches go on under its new name.
func (w *watch) moved(from, to string) {
	for id, dir := range w.dirs {
		if rest, ok := strings.CutPrefix(dir, from); ok && (rest == "" || rest[0] == '/') {
			w.dirs[id] = to + rest
		}
	}
}

// event tells one event.
func (w *watch) event(n notice) error {
	if n.mask&unix.IN_Q_OVERFLOW != 0 {
		return w.overflow()
	}
	dir, ok := w.dirs[n.watch]
	if n.mask&unix.IN_IGNORED != 0 {
		w.drop(n.watch)
	}
	if !ok {
		return nil
	}
	if n.name == "" {
		if dir == "." && n.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0 {
			return w.over()
		}
		return nil // its own directory tells of it
	}
	name := path.Join(dir, n.name)
	change := guestwire.Change{Path: w.absolute(name), IsDir: n.isDir()}
	switch {
	case n.mask&unix.IN_MOVED_FROM != 0:
		w.from[n.cookie] = half{name, n.isDir()}
		return nil
	case n.mask&unix.IN_MOVED_TO != 0:
		return w.arrived(name, n, change)
	case isStaged(n.name):
		return nil
	case n.mask&unix.IN_CREATE != 0:
		return w.created(name, change)
	case n.mask&unix.IN_DELETE != 0:
		change.Type = guestwire.ChangeRemoved
	default:
		change.Type = guestwire.ChangeModified
	}
	return w.tell(change)
}

// arrived tells what was moved to a watched directory.
func (w *watch) arrived(name string, n notice, change guestwire.Change) error {
	half, ok := w.from[n.cookie]
	delete(w.from, n.cookie)
	switch {
	case isStaged(n.name): // what was there before, on its way out: see batch
		return nil
	case !ok, isStaged(path.Base(half.path)):
		return w.created(name, change)
	case n.isDir():
		w.moved(half.path, name)
	}
	change.Type, change.From = guestwire.ChangeMoved, w.absolute(half.path)
	return w.tell(change)
}

// created tells what is new, and of a directory all that it holds already.
func (w *watch) created(name string, change guestwire.Change) error {
	if _, ok := w.told[name]; ok {
		delete(w.told, name)
		return nil
	}
	change.Type = guestwire.ChangeCreated
	if err := w.tell(change); err != nil || !change.IsDir || !w.recursive {
		return err
	}
	err := w.enter(name)
	if vanished(err) {
		return nil
	}
	if refusal := (*guestwire.Error)(nil); errors.As(err, &refusal) {
		return w.tell(guestwire.Change{Type: guestwire.ChangeOverflow}) // it cannot be watched: something will be missed
	}
	return err
}

// enter watches a new directory.
func (w *watch) enter(name string) error {
	root, err := os.OpenRoot(w.agent.under(w.root))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	dir, err := openBeneath(root, name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := w.add(dir, name); err != nil {
		return err
	}
	return w.descend(dir, name+"/", true)
}

// overflow tells that changes were missed, and looks for directories anew.
func (w *watch) overflow() error {
	clear(w.from)
	clear(w.told)
	if err := w.tell(guestwire.Change{Type: guestwire.ChangeOverflow}); err != nil {
		return err
	}
	before := w.dirs
	w.dirs = make(map[int32]string)
	w.agent.watched.Add(-int64(len(before)))
	err := w.begin()
	for id := range before {
		if _, ok := w.dirs[id]; !ok {
			forgo(w.queue, id)
		}
	}
	if refusal := fileRefusal(cmpErr(err, errWatchOver), guestwire.BadDirectory); err != nil && refusal.Code != guestwire.TooMuch {
		return w.over()
	}
	return nil
}

// over tells that the directory itself is gone.
func (w *watch) over() error {
	return cmpErr(w.tell(guestwire.Change{Type: guestwire.ChangeRemoved, Path: w.root, IsDir: true}), errWatchOver)
}
