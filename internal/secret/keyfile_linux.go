package secret

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// LoadKey reads the key from its file, which is made with a new one when there is
// none. A file that others can read, that is not ours, or that is no key is
// refused: a daemon that went on with another key would lose what the right one
// sealed, one that went on with a known key would seal nothing.
func LoadKey(path string) (*Key, error) {
	raw, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(path, (*os.File).Sync); err != nil {
			return nil, fmt.Errorf("make secret key: %w", err)
		}
		raw, err = readKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read secret key: %w", err)
	}
	return newKey(raw, path)
}

func readKey(path string) ([]byte, error) {
	// Not a link, which somebody else may aim elsewhere, and no wait for the
	// writer of a pipe.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; put the file itself there", path)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	owner := -1
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(stat.Uid)
	}
	if err := private(info.Mode(), owner, os.Geteuid()); err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	raw, err := io.ReadAll(io.LimitReader(file, KeySize+1))
	if err != nil {
		return nil, err
	}
	if len(raw) != KeySize {
		return nil, fmt.Errorf("%s must hold %d bytes and has %s; put it back from a backup, or remove it: running sandboxes then lose their env, and a new key is made",
			path, KeySize, sizeOf(len(raw)))
	}
	return raw, nil
}

func sizeOf(n int) string {
	if n > KeySize {
		return "more"
	}
	return fmt.Sprint(n)
}

// private refuses a file that is not one user's alone.
func private(mode fs.FileMode, owner, self int) error {
	switch {
	case !mode.IsRegular():
		return errors.New("is no regular file; move it away, and a new key is made")
	case owner != self:
		return fmt.Errorf("belongs to user %d and the daemon is user %d; chown it if nobody else knows the key, or remove it: running sandboxes then lose their env, and a new key is made", owner, self)
	case mode.Perm()&0o077 != 0:
		return fmt.Errorf("has mode %04o and must be its owner's alone; chmod 600 it if nobody else has read it, or remove it: running sandboxes then lose their env, and a new key is made", mode.Perm())
	}
	return nil
}

// makeKey makes the file with a new key, whole and on the disk when it appears,
// unless there is one by now.
func makeKey(path string, sync func(*os.File) error) error {
	raw := make([]byte, KeySize)
	_, _ = rand.Read(raw) // never fails (crypto/rand)
	dir := filepath.Dir(path)
	draft, err := os.CreateTemp(dir, filepath.Base(path)+".new-*") // 0600, and nobody else's
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(draft.Name()) }()
	_, err = draft.Write(raw)
	if err == nil {
		err = sync(draft)
	}
	if err := errors.Join(err, draft.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, never takes the place of another's.
	if err := os.Link(draft.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(sync(folder), folder.Close())
}
