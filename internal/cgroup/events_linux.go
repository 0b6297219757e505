package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends every process in the cgroup and in those nested in it, frozen ones
// too (cgroup.kill), and waits until none is left.
func (c *Cgroups) Kill(ctx context.Context, host string) error {
	dir, err := c.path(host)
	if err != nil {
		return err
	}
	err = c.do("kill cgroup", func() error { return write(filepath.Join(dir, "cgroup.kill"), "1") })
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.do("wait for empty cgroup", func() error {
		return watch(ctx, dir, func(populated bool) bool { return !populated })
	})
}

// Emptied waits until the cgroup had a process and has none any more. One that
// is not there, or vanishes, is empty. A process that came and went before the
// first look, or between two, is told by the processor time it left behind.
func (c *Cgroups) Emptied(ctx context.Context, host string) error {
	dir, err := c.path(host)
	if err != nil {
		return err
	}
	armed := false
	err = watch(ctx, dir, func(populated bool) bool {
		armed = armed || populated || used(dir)
		return armed && !populated
	})
	if err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	return nil
}

// used reports whether a process ever ran in the cgroup.
func used(dir string) bool {
	time, err := cpuTime(dir)
	return err == nil && time > 0
}

// populated reports whether the cgroup or one nested in it has a process.
func (c *Cgroups) populated(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	populated, err := readEvents(f.Fd())
	if gone(err) {
		return false, nil
	}
	return populated, err
}

// watch calls done with the state of "populated" at once and after each change,
// until done says so, the cgroup is gone, or the context ends.
//
// cgroup.events wakes whoever polls it at each change. The file goes into Go's
// own poller, so that a watch costs a descriptor and a parked goroutine, and
// neither a thread nor one of the few inotify instances that a user may have.
func watch(ctx context.Context, dir string, done func(populated bool) bool) error {
	fd, err := unix.Open(filepath.Join(dir, "cgroup.events"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Join(dir, "cgroup.events"), Err: err}
	}
	f := os.NewFile(uintptr(fd), "cgroup.events")
	defer func() { _ = f.Close() }()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		// Set before the context is asked, so that its end is not overwritten.
		if err := f.SetReadDeadline(time.Now().Add(lookEvery)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var populated bool
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			populated, failed = readEvents(fd)
			return failed != nil || done(populated)
		})
		switch {
		case gone(failed):
			return nil
		case failed != nil:
			return failed
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

func readEvents(fd uintptr) (populated bool, err error) {
	var buf [256]byte
	n, err := unix.Pread(int(fd), buf[:], 0)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(buf[:n])) {
		if value, ok := strings.CutPrefix(line, "populated "); ok {
			return strings.TrimSpace(value) != "0", nil
		}
	}
	return false, errors.New("cgroup.events says nothing of populated")
}

// gone reports whether err says that the cgroup was removed: before the file
// was opened (ENOENT) or after (ENODEV).
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
