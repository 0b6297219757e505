package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// errLocked says that another process holds a lock.
var errLocked = errors.New("held by another process")

// lockPoll is how often a lock that another process holds is tried again: flock(2) has no wait that a context can end.
const lockPoll = 100 * time.Millisecond

// tryLock takes the exclusive flock of path, which it makes. Closing the file, or the process's end, lets it go.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, errLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// waitLock takes the lock, calling held once when it has to wait.
func waitLock(ctx context.Context, path string, held func()) (*os.File, error) {
	for first := true; ; first = false {
		f, err := tryLock(path)
		if err == nil || !errors.Is(err, errLocked) {
			return f, err
		}
		if first && held != nil {
			held()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}
