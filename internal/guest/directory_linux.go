package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/microvmd/microvm/internal/guestwire"
)

// makeDirectory makes a directory and its missing parents; those that it makes
// belong to owner, and are added to made where that is not nil.
func makeDirectory(dir string, owner account, made *[]string) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return refuse(guestwire.NotAFile, dir)
	case !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir:
		return err
	}
	if err := makeDirectory(filepath.Dir(dir), owner, made); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, 0o755); {
	case errors.Is(err, fs.ErrExist):
		return sameDirectory(dir, err)
	case errors.Is(err, fs.ErrNotExist):
		return errTakenAway
	case err != nil:
		return err
	}
	if made != nil {
		*made = append(*made, dir)
	}
	if owner.same {
		return nil
	}
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

// sameDirectory is for when somebody else made dir first.
func sameDirectory(dir string, err error) error {
	if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
		return nil
	}
	return err
}

// unmake takes away directories that were made for what failed, unless somebody
// else has put something there.
func unmake(made []string) {
	for i := len(made) - 1; i >= 0; i-- {
		_ = os.Remove(made[i])
	}
}

// errTakenAway is for a directory that was there a moment ago: another request
// made it, failed, and unmade it.
var errTakenAway = fmt.Errorf("directory was taken away: %w", fs.ErrNotExist)

// again repeats what found its directory taken away.
func again(try func() error) (err error) {
	for range 64 {
		if err = try(); !errors.Is(err, errTakenAway) {
			return err
		}
	}
	return err
}

// makePlace opens the directory of a path of the guest. It makes what is missing
// of it, and adds that to made.
func (a *Agent) makePlace(path string, owner account, made *[]string) (p place, err error) {
	here := a.under(path)
	err = again(func() error {
		err := makeDirectory(filepath.Dir(here), owner, made)
		if err == nil {
			if p, err = openPlace(here); errors.Is(err, fs.ErrNotExist) {
				err = errTakenAway
			}
		}
		return err
	})
	return p, err
}
