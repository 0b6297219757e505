package guest

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds of a walk. A directory with more names than are held is read once more
// for each such part, so memory does not grow with it.
const (
	readNames = 512     // names that are read at once
	holdNames = 8192    // names of a directory that are held at once
	holdLeast = 64      // also where the walk holds all that it may
	holdAll   = 1 << 16 // names that a walk holds in all
	walkDepth = 1024    // directories in each other: each is held open
)

// found is what a walk comes to.
type found struct {
	place
	path  string // relative to where the walk began
	stat  unix.Stat_t
	depth int // 1 for what lies where the walk began
}

// walk visits what lies beneath a directory, each directory right before what it
// holds, names in the order of their bytes. It follows no link. What is gone when
// its turn comes is left out.
type walk struct {
	deep  int                               // levels to go down; 0 is all
	most  int                               // names of a directory to hold at once
	held  int                               // names that are held now
	visit func(f *found) (bool, error)      // whether to go into a directory
	enter func(dir *os.File, f *found) bool // whether to go into one that is open; nil always does
}

// within visits what lies in a directory, whose path is prefix, past after. What
// lies at after itself was visited before; what is beneath it was not.
func (w *walk) within(dir *os.File, prefix, after string, depth int) error {
	if depth > walkDepth {
		return refuse(guestwire.TooDeep, "too many directories in each other")
	}
	first, rest, _ := strings.Cut(after, "/")
	past := func(name string) bool { return name >= first }
	for {
		most := max(holdLeast, min(w.most, holdAll-w.held))
		names, more, err := smallest(dir, most, past)
		if err != nil {
			return err
		}
		w.held += len(names)
		for _, name := range names {
			f := &found{place: place{dir: dir, name: name}, path: prefix + name, depth: depth}
			beneath := ""
			if after != "" && name == first {
				beneath = rest
			}
			if err := w.step(f, after != "" && name == first, beneath); err != nil {
				return err
			}
		}
		w.held -= len(names)
		if !more {
			return nil
		}
		last := names[len(names)-1]
		past = func(name string) bool { return name > last }
	}
}

// step visits one name, unless that was done before, and what lies beneath it.
func (w *walk) step(f *found, before bool, after string) (err error) {
	if f.stat, err = f.place.stat(); vanished(err) {
		return nil
	} else if err != nil {
		return err
	}
	into := true
	if !before {
		if into, err = w.visit(f); err != nil {
			return err
		}
	}
	if !into || typeOf(f.stat.Mode) != guestwire.TypeDirectory || f.depth == w.deep {
		return nil
	}
	dir, err := f.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if w.enter != nil && !w.enter(dir, f) {
		return nil
	}
	return w.within(dir, f.path+"/", after, f.depth+1)
}

// vanished says that something is not there any more, or something else is.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// smallest gives the smallest names of a directory for which past holds, sorted,
// at most so many, and says whether there are more.
func smallest(dir *os.File, most int, past func(string) bool) (names []string, more bool, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, false, err
	}
	cut := func() {
		slices.Sort(names)
		if len(names) > most {
			clear(names[most:])
			names, more = names[:most], true
		}
	}
	for {
		some, err := dir.Readdirnames(readNames)
		for _, name := range some {
			if past(name) && (!more || cmp.Less(name, names[most-1])) {
				if names = append(names, name); len(names) >= 2*most+readNames {
					cut()
				}
			}
		}
		if errors.Is(err, io.EOF) {
			cut()
			return names, more, nil
		}
		if vanished(err) { // the directory itself
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}
