package posture

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LiveReader reads this machine.
func LiveReader() Reader {
	return Reader{Root: os.DirFS("/"), System: live{}, UID: os.Geteuid()}
}

type live struct{}

var _ System = live{}

// runLimit bounds a program that is only asked for its version.
const runLimit = 10 * time.Second

func (live) Run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	found, err := exec.LookPath(name)
	if err != nil {
		// sbin is often missing from an ordinary user's PATH.
		if found, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			return "", fmt.Errorf("run %s: not found", name)
		}
	}
	out, err := exec.CommandContext(ctx, found, args...).Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", name, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return fmt.Sprintf("%.200s", strings.TrimSpace(line)), nil
}

func (live) Tun() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if _, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES); err != nil {
		return fmt.Errorf("ask /dev/net/tun for its features: %w", err)
	}
	return nil
}

func (live) Mount(path string) (Mount, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return Mount{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	var held unix.Statfs_t
	if err := unix.Statfs(path, &held); err != nil {
		return Mount{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Mount{
		Device: stat.Dev,
		Free:   held.Bavail * uint64(held.Bsize), //nolint:gosec // a block size is positive
		NoDev:  held.Flags&unix.ST_NODEV != 0,
		NoExec: held.Flags&unix.ST_NOEXEC != 0,
	}, nil
}
