package guest

import (
	"errors"
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
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return sameDirectory(dir, err)
	} else if err != nil {
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
