package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tick     = 500 * time.Microsecond // between two looks; no floor sleeps longer than 1 ms
	killWait = 30 * time.Second       // for a killed cgroup to be empty, on an emulated host
)

// limitFiles are the limits of a sandbox's cgroup that a bare VM gets too.
var limitFiles = []string{"memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"}

// cgroups makes and ends the cgroups of bare VMs. Tests have a fake.
type cgroups interface {
	make(id string) error
	processes(id string) ([]int, error)
	kill(id string) error // until it is empty
	remove(id string) error
	path(id string) string
}

// kernelCgroups are below a directory of our own in the delegated tree.
type kernelCgroups struct {
	dir    string            // <cgroup root>/bench
	limits map[string]string // read off a sandbox
}

func (c *kernelCgroups) path(id string) string { return filepath.Join(c.dir, id) }

func (c *kernelCgroups) make(id string) error {
	dir := c.path(id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range limitFiles {
		value, has := c.limits[name]
		if !has {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0); err != nil {
			return errors.Join(err, os.Remove(dir))
		}
	}
	return nil
}

func (c *kernelCgroups) processes(id string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(c.path(id), "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func (c *kernelCgroups) kill(id string) error {
	if err := os.WriteFile(filepath.Join(c.path(id), "cgroup.kill"), []byte("1"), 0); err != nil {
		return err
	}
	for last := time.Now().Add(killWait); ; time.Sleep(tick) {
		events, err := os.ReadFile(filepath.Join(c.path(id), "cgroup.events"))
		if err != nil {
			return err
		}
		if strings.Contains(string(events), "populated 0") {
			return nil
		}
		if time.Now().After(last) {
			return errors.New("processes are left after a kill")
		}
	}
}

// remove tries for a while: the last process may be ending still.
func (c *kernelCgroups) remove(id string) error {
	for last := time.Now().Add(killWait); ; time.Sleep(tick) {
		err := os.Remove(c.path(id))
		if !errors.Is(err, unix.EBUSY) || time.Now().After(last) {
			return err
		}
	}
}

// readLimits reads the limits of a cgroup; a file that the kernel does not have
// is no limit.
func readLimits(dir string) (map[string]string, error) {
	limits := map[string]string{}
	for _, name := range limitFiles {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read limits: %w", err)
		}
		limits[name] = strings.TrimSpace(string(data))
	}
	return limits, nil
}

// copySparse copies a file so that holes stay holes, for one uid alone.
func copySparse(from, to string, uid int) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Chown(uid, uid); err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	var hole int64
	for {
		data, err := in.Seek(hole, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole is left
		}
		if err != nil {
			return err
		}
		if hole, err = in.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, hole-data)); err != nil {
			return err
		}
	}
}

// zeroBlock is what copyWithoutZeros looks at as one; the daemon's templates
// have holes of no less either.
const zeroBlock = 64 << 10

// copyWithoutZeros makes a read-only copy, on the disk, that has holes where the
// file has blocks of zeros.
func copyWithoutZeros(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	block, zeros := make([]byte, zeroBlock), make([]byte, zeroBlock)
	for at := int64(0); ; at += zeroBlock {
		n, err := in.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := out.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		if n < zeroBlock {
			return errors.Join(out.Truncate(at+int64(n)), out.Sync())
		}
	}
}

// reap waits for a process that became our child when its jailer ended. It is
// no error when it is another's: then that one waits.
func reap(pid int) error {
	for last := time.Now().Add(killWait); ; time.Sleep(tick) {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return err
		case got == pid:
			return nil
		case time.Now().After(last):
			return fmt.Errorf("process %d does not end", pid)
		}
	}
}
