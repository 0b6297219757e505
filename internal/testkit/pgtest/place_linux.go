package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	placePattern = "microvm-pgtest-"
	lockName     = "lock"
	// young is a directory whose maker may not have locked it yet.
	young = time.Minute
)

// place makes a directory that PostgreSQL's user owns, and removes those of test
// binaries that were killed: a directory that is in use is locked.
func place() (dir string, lock *os.File, err error) {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), placePattern+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, old := range left {
		info, err := os.Stat(old)
		if err != nil || time.Since(info.ModTime()) < young {
			continue
		}
		if lock, err := locked(old); err == nil {
			_ = os.RemoveAll(old)
			_ = lock.Close()
		}
	}
	// Short: the path of a Unix socket has 107 bytes (unix(7)).
	if dir, err = os.MkdirTemp("", placePattern); err != nil {
		return "", nil, err
	}
	if lock, err = locked(dir); err == nil && os.Getuid() == 0 {
		who, missing := account()
		if err = missing; err == nil {
			err = os.Chown(dir, int(who.Uid), int(who.Gid))
		}
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, lock, nil
}

func locked(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
