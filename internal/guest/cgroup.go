package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// emptyWait bounds how long a kill waits for a cgroup to be empty, and
// emptyPoll is how often it looks.
const (
	emptyWait = 2 * time.Second
	emptyPoll = 2 * time.Millisecond
)

// tree is the cgroup v2 directory under which executions have theirs. It is
// held by a descriptor, so it goes on working when guest root mounts something
// over its path. A nil tree has no cgroups: everything does nothing.
type tree struct {
	root *os.Root // set at construction

	mu       sync.Mutex
	leftover map[string]bool // guarded by mu: cgroups of ended programs, to remove when empty
}

// openTree opens path; "" gives a nil tree.
func openTree(path string) (*tree, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // a nil tree is a tree without cgroups
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open cgroup tree: %w", err)
	}
	return &tree{root: root, leftover: make(map[string]bool)}, nil
}

// make makes the cgroup of one execution and returns its directory, into which
// the program is cloned. One that is left of an earlier life of the same id is
// used again when it is there.
func (t *tree) make(id string) (*os.File, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // see tree
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leftover, id)
	t.sweepLocked()
	if err := t.root.Mkdir(id, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return t.root.Open(id)
}

// kill sends SIGKILL to every process of the cgroup.
func (t *tree) kill(id string) error {
	if t == nil {
		return nil
	}
	file, err := t.root.OpenFile(id+"/cgroup.kill", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteString("1"); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// retire removes the cgroup of an ended program now, or when processes that
// the program left behind are gone: every later make and retire looks.
func (t *tree) retire(id string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leftover[id] = true
	t.sweepLocked()
}

func (t *tree) sweepLocked() {
	for id := range t.leftover {
		if t.remove(id) {
			delete(t.leftover, id)
		}
	}
}

// remove removes the cgroup if it is empty, and says whether it is gone.
func (t *tree) remove(id string) bool {
	if t == nil {
		return true
	}
	err := t.root.Remove(id)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// removeSoon waits until a killed cgroup can be removed, at most emptyWait.
func (t *tree) removeSoon(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, emptyWait)
	defer cancel()
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for !t.remove(id) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// oomKills reads how many processes of the cgroup the kernel killed for want
// of memory (memory.events, oom_kill: Documentation/admin-guide/cgroup-v2).
func (t *tree) oomKills(id string) int64 {
	if t == nil {
		return 0
	}
	file, err := t.root.Open(id + "/memory.events")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, 4<<10))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, _ := strconv.ParseInt(count, 10, 64)
			return n
		}
	}
	return 0
}

func (t *tree) close() {
	if t != nil {
		_ = t.root.Close()
	}
}
