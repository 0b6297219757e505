// Package hostnet owns the network namespaces of the node. So far that is one:
// an empty namespace, with nothing but a loopback that is down, in which the
// VMMs of sandboxes without a NIC run. A VMM that is broken out of can call
// connect (its seccomp filter allows Unix sockets), and in the host's namespace
// it would reach every abstract socket of the host.
//
// It knows nothing of sandboxes, jails and cgroups.
//
// States of the namespace: absent -> made (bind-mounted at a path that carries
// the instance's name) -> absent. It outlives the daemon.
package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// DefaultDir is where the namespaces are mounted.
const DefaultDir = "/run/microvm/netns"

// nsfsMagic is NSFS_MAGIC of linux/magic.h: the file is a namespace.
const nsfsMagic = 0x6e736673

// Config says where namespaces go. Set at construction.
type Config struct {
	// Dir holds the mount points. Default DefaultDir. Made if missing,
	// root-owned and closed to others.
	Dir string
	// Instance names this daemon among those of the host; letters, digits, '-'.
	Instance string
	// Trace, if set, is told each effect on the host before it happens; an
	// error of it is that effect's failure. For tests.
	Trace func(op string) error
}

// Net is the node's network. It is safe for concurrent use.
type Net struct {
	conf Config
	path string // of the empty namespace

	mu sync.Mutex // one make or remove at a time
}

// New checks the configuration; it touches nothing.
func New(conf Config) (*Net, error) {
	if conf.Dir == "" {
		conf.Dir = DefaultDir
	}
	if !filepath.IsAbs(conf.Dir) || filepath.Clean(conf.Dir) != conf.Dir {
		return nil, fmt.Errorf("check network configuration: %q is not a clean absolute path", conf.Dir)
	}
	for _, r := range conf.Instance {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return nil, fmt.Errorf("check network configuration: instance %q is not letters, digits and '-'", conf.Instance)
		}
	}
	if conf.Instance == "" || len(conf.Instance) > 32 {
		return nil, errors.New("check network configuration: instance must have 1 to 32 characters")
	}
	return &Net{conf: conf, path: filepath.Join(conf.Dir, conf.Instance+"-empty")}, nil
}

// Empty returns the path of the empty namespace, made if it is not there. What
// is there is checked each time: a namespace of network, not the host's own,
// with no interface but a loopback that is down. Anything else is an error,
// never mended in silence: VMMs may be running in it.
func (n *Net) Empty(ctx context.Context) (path string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("make empty namespace: %w", err)
	}
	mounted, err := isNamespace(n.path)
	if err != nil {
		return "", fmt.Errorf("find empty namespace: %w", err)
	}
	if !mounted {
		if err := n.make(); err != nil {
			return "", err
		}
	}
	if err := n.do("check empty namespace", func() error { return check(n.path) }); err != nil {
		return "", err
	}
	return n.path, nil
}

// Remove unmounts the namespace; the kernel ends it when its last process is
// gone. What is not there is no error.
func (n *Net) Remove(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.do("remove empty namespace", func() error {
		err := unix.Unmount(n.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return err // EINVAL: no mount point
		}
		if err := os.Remove(n.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (n *Net) make() error {
	if err := n.do("make namespace directory", n.mountPoint); err != nil {
		return err
	}
	return n.do("make empty namespace", func() error {
		return onThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
			if err := unix.Mount(own, n.path, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount at %s: %w", n.path, err)
			}
			return nil
		})
	})
}

// mountPoint makes the directory and the empty file under the mount. A file
// that an earlier run left without a mount serves again.
func (n *Net) mountPoint() error {
	if err := os.MkdirAll(n.conf.Dir, 0o700); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(n.conf.Dir, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: n.conf.Dir, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%s must be a directory that only root can write", n.conf.Dir)
	}
	fd, err := unix.Open(n.path, unix.O_RDONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o400)
	if err != nil {
		return &fs.PathError{Op: "open", Path: n.path, Err: err}
	}
	return unix.Close(fd)
}

// isNamespace reports whether a namespace of any kind is mounted at path.
func isNamespace(path string) (bool, error) {
	var stat unix.Statfs_t
	err := unix.Statfs(path, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return stat.Type == nsfsMagic, nil
}

// check enters the namespace on a thread of its own and looks around.
func check(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("ask %s for its type: %w", path, err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s is a namespace, but not of network", path)
	}
	var there, ours unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &there), unix.Stat("/proc/self/ns/net", &ours)); err != nil {
		return err
	}
	if there.Dev == ours.Dev && there.Ino == ours.Ino {
		return fmt.Errorf("%s is the host's own namespace", path)
	}
	return onThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", path, err)
		}
		interfaces, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range interfaces {
			if i.Flags&net.FlagLoopback == 0 || i.Flags&net.FlagUp != 0 {
				return fmt.Errorf("%s is not empty: it has interface %s (%s)", path, i.Name, i.Flags)
			}
		}
		return nil
	})
}

// onThread runs f on a thread that nothing else ever runs on: its goroutine
// ends locked to it, so the runtime ends the thread with its namespace. The
// process's first thread cannot end, and /proc/self speaks for it: where f
// would land on that one, it is held until f is done on another.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f)
			return
		}
		result <- f()
	}()
	return <-result
}

// do is the one way to an effect on the host: it carries the label that errors,
// traces and injected faults share.
func (n *Net) do(op string, effect func() error) error {
	if n.conf.Trace != nil {
		if err := n.conf.Trace(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := effect(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
