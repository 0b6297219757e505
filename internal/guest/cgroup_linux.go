package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// emptyWait bounds how long a kill waits for a cgroup to be empty, and
// emptyPoll is how often it looks.
const (
	emptyWait = 2 * time.Second
	emptyPoll = 2 * time.Millisecond
)

// maxGroupFile bounds what is read of a file of a cgroup: 32768 process
// numbers, which are all that the guest's kernel gives out.
const maxGroupFile = 256 << 10

// tree is the cgroup v2 directory under which executions have theirs. It is
// held by a descriptor, so it goes on working when guest root mounts something
// over its path. A nil tree has no cgroups, and a nil group no processes:
// everything does nothing.
type tree struct {
	fd int // set at construction

	mu       sync.Mutex
	made     int             // guarded by mu: the name of the last cgroup that was made
	spare    *group          // guarded by mu: one for the next program, or nil
	leftover map[*group]bool // guarded by mu: of ended programs, to remove when empty
}

// group is the cgroup of one execution.
type group struct {
	tree *tree
	name string

	mu     sync.Mutex
	fd     int // guarded by mu: its directory; -1 once it is removed
	events int // guarded by mu: its memory.events; -1 where it has none
}

// openTree opens path; "" gives a nil tree.
func openTree(path string) (*tree, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // a nil tree is a tree without cgroups
	}
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open cgroup tree: %w", err)
	}
	t := &tree{fd: fd, leftover: make(map[*group]bool)}
	if t.spare, err = t.freshLocked(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return t, nil
}

func openAt(dir int, name string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// make gives one execution a cgroup of its own: the spare one, if guest root
// has not removed it.
func (t *tree) make() (*group, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // see tree
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.spare
	t.spare = nil
	if g != nil && unix.Faccessat2(t.fd, g.name, unix.F_OK, unix.AT_EACCESS) == nil {
		return g, nil
	}
	if g != nil {
		g.close()
	}
	return t.freshLocked()
}

func (t *tree) freshLocked() (*group, error) {
	for {
		t.made++
		name := strconv.Itoa(t.made)
		err := unix.Mkdirat(t.fd, name, 0o755)
		if errors.Is(err, unix.EEXIST) { // guest root made one of that name
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		fd, err := openAt(t.fd, name, unix.O_DIRECTORY)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open cgroup: %w", err), unix.Unlinkat(t.fd, name, unix.AT_REMOVEDIR))
		}
		g := &group{tree: t, name: name, fd: fd}
		if g.events, err = openAt(fd, "memory.events", unix.O_RDONLY); err != nil {
			g.events = -1 // a tree without the controller
		}
		return g, nil
	}
}

func (t *tree) sweepLocked() {
	for g := range t.leftover {
		if g.remove() {
			delete(t.leftover, g)
		}
	}
}

func (t *tree) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spare != nil {
		t.spare.remove()
		t.leftover[t.spare] = true
	}
	for g := range t.leftover {
		g.close()
	}
	_ = unix.Close(t.fd)
}

// retire removes the cgroup of an ended program now, or when processes that
// the program left behind are gone: every later retire looks. It also makes the
// next program's: both take the kernel longer than all else that the agent does
// for an execution, and now nobody waits for it.
func (g *group) retire() {
	if g == nil {
		return
	}
	t := g.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leftover[g] = true
	t.sweepLocked()
	if t.spare == nil {
		t.spare, _ = t.freshLocked() // make tries again, and says why
	}
}

// remove removes the cgroup if it is empty, and says whether it is gone.
func (g *group) remove() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd < 0 {
		return true
	}
	err := unix.Unlinkat(g.tree.fd, g.name, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false
	}
	g.closeLocked()
	return true
}

func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd >= 0 {
		g.closeLocked()
	}
}

func (g *group) closeLocked() {
	_ = unix.Close(g.fd)
	if g.events >= 0 {
		_ = unix.Close(g.events)
	}
	g.fd, g.events = -1, -1
}

// removeSoon waits until a killed cgroup can be removed, at most emptyWait.
func (g *group) removeSoon(ctx context.Context) {
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, emptyWait)
	defer cancel()
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for !g.remove() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// open opens a file of the cgroup; one that is removed has none (ENOENT).
func (g *group) open(name string, flags int) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd < 0 {
		return -1, unix.ENOENT
	}
	return openAt(g.fd, name, flags)
}

func (g *group) read(name string) ([]byte, error) {
	fd, err := g.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	text := make([]byte, 512)
	for n := 0; ; {
		m, err := unix.Read(fd, text[n:])
		switch n += max(m, 0); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case m == 0:
			return text[:n], nil
		case n > maxGroupFile:
			return nil, unix.EFBIG
		case n == len(text):
			text = append(text, make([]byte, len(text))...)
		}
	}
}

// kill sends SIGKILL to every process of the cgroup and of those below it.
func (g *group) kill() error {
	fd, err := g.open("cgroup.kill", unix.O_WRONLY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte("1")); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// processes reads which processes are in the cgroup now.
func (g *group) processes() ([]int, error) {
	text, err := g.read("cgroup.procs")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) { // removed, before or meanwhile
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read processes of cgroup: %w", err)
	}
	var pids []int
	for line := range bytes.Lines(text) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// oomKills reads how many processes of the cgroup the kernel ever killed for
// want of memory (memory.events, oom_kill: Documentation/admin-guide/cgroup-v2).
// It counts where the victim was, whichever limit above it was met.
func (g *group) oomKills() int64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var text [512]byte
	n, err := unix.Pread(g.events, text[:], 0)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text[:n]) {
		if count, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("oom_kill ")); ok {
			n, _ := strconv.ParseInt(string(count), 10, 64)
			return n
		}
	}
	return 0
}
