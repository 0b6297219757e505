package firecracker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// DefaultUIDBase is where the uids of VMMs begin. systemd's table of uids
// (UIDS-GIDS) leaves 1879048192 to 2147352575 to nobody, and useradd's
// subordinate ids end at 600100000, so no user, container or subuid of a usual
// host is in there.
const DefaultUIDBase = 1_900_000_000

// DefaultCgroupMount is where cgroup v2 is mounted.
const DefaultCgroupMount = "/sys/fs/cgroup"

const (
	execName    = "firecracker" // names the jails' directory: the jailer takes it from the binary
	versionWait = 10 * time.Second
	maxSlots    = 1 << 20 // uids that one instance may use, from UIDBase
)

// Config says where everything is. All paths are absolute. Set at construction.
type Config struct {
	// StateDir holds jails and the files that are linked into them, on the
	// file system that also holds the images.
	StateDir string
	// FirecrackerPath and JailerPath are released, static binaries.
	FirecrackerPath string
	JailerPath      string
	// KernelPath is an uncompressed guest kernel with all that it needs built in.
	KernelPath string
	// GuestdPath is the guest agent, a static binary for the guest.
	GuestdPath string

	// CgroupDir holds one cgroup per sandbox, named Plan.Host.
	CgroupDir string
	// CgroupMount is where cgroup v2 is mounted. Default DefaultCgroupMount.
	CgroupMount string
	// UIDBase plus a sandbox's slot is its VMM's uid and gid. Default
	// DefaultUIDBase; each instance on a host needs a range of its own.
	UIDBase int
	// Netns gives the path of the network namespace for a sandbox's VMM. It is
	// never the host's.
	Netns func(context.Context, sandbox.Plan) (path string, err error)

	// Debug turns the guest's serial console on and keeps the last of what it,
	// the jailer and the VMM print. It makes a boot much slower.
	Debug bool
	// Log is for what an operator must see. Default slog.Default().
	Log *slog.Logger
	// Trace, if set, is told each effect on the host before it happens; an
	// error of it is that effect's failure. For tests.
	Trace func(op string) error

	anyMount bool // for tests that run no VMM: nodev and noexec are fine
}

// complete fills the defaults and checks everything at once.
func (c *Config) complete() error {
	if c.CgroupMount == "" {
		c.CgroupMount = DefaultCgroupMount
	}
	if c.UIDBase == 0 {
		c.UIDBase = DefaultUIDBase
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	var wrong []error
	for _, path := range []struct{ name, value string }{
		{"StateDir", c.StateDir},
		{"FirecrackerPath", c.FirecrackerPath},
		{"JailerPath", c.JailerPath},
		{"KernelPath", c.KernelPath},
		{"GuestdPath", c.GuestdPath},
		{"CgroupDir", c.CgroupDir},
		{"CgroupMount", c.CgroupMount},
	} {
		if !filepath.IsAbs(path.value) || filepath.Clean(path.value) != path.value {
			wrong = append(wrong, fmt.Errorf("%s %q is not a clean absolute path", path.name, path.value))
		}
	}
	if rel, err := filepath.Rel(c.CgroupMount, c.CgroupDir); err != nil || rel == "." || strings.HasPrefix(rel, "..") {
		wrong = append(wrong, fmt.Errorf("CgroupDir %q is not below %q", c.CgroupDir, c.CgroupMount))
	}
	if c.UIDBase < 1000 || c.UIDBase+maxSlots > 1<<31-1 {
		wrong = append(wrong, fmt.Errorf("UIDBase %d is not in 1000 to %d", c.UIDBase, 1<<31-1-maxSlots))
	}
	if c.Netns == nil {
		wrong = append(wrong, errors.New("no Netns: a VMM never runs in the host's network namespace"))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("check firecracker configuration: %w", errors.Join(wrong...))
	}
	return nil
}

// checkOwned makes sure that nobody but root can change what path leads to: it
// and all its parents are root's and closed to other writers, and none is a
// symlink. A directory with the sticky bit (/tmp) may be a parent: others can
// add to it, but not rename what is root's.
func checkOwned(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil {
			return &os.PathError{Op: "lstat", Path: at, Err: err}
		}
		sticky := at != path && stat.Mode&unix.S_IFMT == unix.S_IFDIR && stat.Mode&unix.S_ISVTX != 0
		switch {
		case stat.Mode&unix.S_IFMT == unix.S_IFLNK:
			return fmt.Errorf("%s is a symlink; give the real path", at)
		case stat.Uid != 0:
			return fmt.Errorf("%s belongs to uid %d, not to root", at, stat.Uid)
		case stat.Mode&0o022 != 0 && !sticky:
			return fmt.Errorf("%s can be written by others than root", at)
		case at == "/":
			return nil
		}
	}
}

// checkMount refuses a file system on which a jail cannot work: the jailer makes
// device nodes in it, and the VMM's binary runs from it.
func checkMount(path string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if stat.Flags&(unix.ST_NODEV|unix.ST_NOEXEC) != 0 {
		return fmt.Errorf("%s is mounted nodev or noexec; mount it with dev,exec or choose another directory", path)
	}
	return nil
}

var versionLine = regexp.MustCompile(`^Firecracker v([0-9]+\.[0-9]+\.[0-9]+)\b`)

// askVersion runs "firecracker --version".
func askVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask firecracker for its version: %s: %w", path, err)
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("ask firecracker for its version: %s answered %.80q", path, out)
	}
	return string(match[1]), nil
}
