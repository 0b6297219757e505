package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Folders of the cache that are no artifact.
const (
	locksFolder   = "locks"
	partialFolder = "partial"
	logsFolder    = "logs"
)

// tempPrefix marks a folder that is being made or removed. Whoever holds the
// name's lock may remove every such folder: its maker is gone.
const tempPrefix = ".tmp-"

// key is the content key of one version from one source: it changes whenever
// anything that the result depends on changes.
func (s *Store) key(e entry, v version, o origin) (string, error) {
	if o.From == Build {
		return s.recipeKey(o)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n%s\n%s\n%s\n", e.Name, v.Version, v.Arch, o.From, o.SHA256)
	for _, f := range v.Files {
		fmt.Fprintf(hash, "%s %s %s\n", f.Name, f.SHA256, o.Members[f.Name])
	}
	return v.Version + "-" + hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// lock takes the lock of one name. It waits for another holder until ctx ends.
func (s *Store) lock(ctx context.Context, name string, report func(string)) (unlock func(), err error) {
	return flock(ctx, filepath.Join(s.dir, locksFolder, name+".lock"), func() {
		report("waiting for another process that is making the same thing")
	})
}

// lockPoll is how often a taken lock is tried again. A blocking flock could
// not be given up when ctx ends.
const lockPoll = 100 * time.Millisecond

func flock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for told := false; ; {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// The file stays: removing it would let two holders lock two files.
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: held by another process: %w", name, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// place lets fill make a folder and moves it to <cache>/<name>/<key> when fill
// succeeded. Whatever happens, nothing half-made is left. The caller holds the
// lock of name.
func (s *Store) place(name, key string, fill func(tmp string) error) (dir string, err error) {
	folder := filepath.Join(s.dir, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	if err := sweep(folder); err != nil {
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	tmp, err := os.MkdirTemp(folder, tempPrefix)
	if err != nil {
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = joinQuiet(err, removeTree(tmp))
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := syncTree(tmp); err != nil {
		return "", fmt.Errorf("place %s: sync: %w", name, err)
	}
	dir = filepath.Join(folder, key)
	if _, statErr := os.Lstat(dir); statErr == nil {
		// A damaged or unwanted older copy: out of the way under a name that
		// sweep knows, so that a crash between the two renames leaves "absent".
		old := tmp + "-old"
		if err := os.Rename(dir, old); err != nil {
			return "", fmt.Errorf("place %s: %w", name, err)
		}
		defer func() { err = joinQuiet(err, removeTree(old)) }()
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	if err := syncDir(folder); err != nil {
		return "", fmt.Errorf("place %s: sync: %w", name, err)
	}
	return dir, nil
}

// joinQuiet adds a clean-up error to the one that matters, if there is one.
func joinQuiet(err, cleanup error) error {
	if cleanup == nil {
		return err // unwrapped
	}
	return errors.Join(err, fmt.Errorf("clean up: %w", cleanup))
}

// sweep removes what makers that are gone have left in folder.
func sweep(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, item := range entries {
		if strings.HasPrefix(item.Name(), tempPrefix) {
			if err := removeTree(filepath.Join(folder, item.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeTree removes a folder, but never through a mount: a killed build of a
// root file system can leave /dev or /proc of the host mounted in it.
func removeTree(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil {
		for line := range strings.SplitSeq(string(mounts), "\n") {
			fields := strings.Fields(line)
			if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
				return fmt.Errorf("remove %s: %s is mounted; unmount it first", dir, fields[4])
			}
		}
	}
	return os.RemoveAll(dir)
}

func syncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
