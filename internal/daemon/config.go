package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// Config is everything that a daemon is told. cmd/microvmd fills it from flags
// and the environment; nothing else is read.
type Config struct {
	Instance string // names this daemon's things on the host; a-z 0-9 '-', 1..16
	StateDir string // absolute; one file system; root's
	Database string // postgres:// URL, "" is an SQLite file in StateDir; may hold a password, so it is never logged
	Socket   string // Unix socket for root, no key wanted
	Listen   string // TCP address, key wanted always; "" is none

	CgroupRoot string // absolute, below /sys/fs/cgroup; nothing else may use it
	NetnsDir   string // where the empty network namespace is pinned
	UIDBase    int    // slot n's VMM runs as UIDBase+n

	Drain bool // sandboxes end with the daemon, rather than wait for the next start

	AllowUnsupportedFirecracker bool
	DebugVMM                    bool // keep what consoles and VMMs print, for errors

	MaxBodyBytes int64 // of a JSON body, 1 KiB..1 GiB
	OutputMiB    int   // kept output of executions that have ended, 64 MiB..1 PiB
	MaxConns     int   // TCP connections at once, 8..65536; the Unix socket has no bound

	Limits        sandbox.Limits
	AgentTimeout  time.Duration // silence of a guest agent after which its sandbox is ended
	KillTimeout   time.Duration // unconfirmed kill after which a sandbox is ended
	StoppedRetain time.Duration // how long a stopped sandbox stays readable

	Version string
	Logger  *slog.Logger
}

var instanceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,15}$`)

// check refuses a configuration that could not work, naming every flag at once.
func (c Config) check() error {
	var all []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	wrong(instanceForm.MatchString(c.Instance), "instance is %q and must be 1 to 16 characters of a-z, 0-9 and '-'", c.Instance)
	for name, path := range map[string]string{"state-dir": c.StateDir, "socket": c.Socket, "cgroup-root": c.CgroupRoot, "netns-dir": c.NetnsDir} {
		wrong(filepath.IsAbs(path) && filepath.Clean(path) == path, "%s is %q and must be a clean absolute path", name, path)
	}
	wrong(c.Database == "" || sqlstore.IsURL(c.Database), `database must be a postgres:// URL, or "" for a file in the state directory`)
	wrong(c.UIDBase >= 1000 && c.UIDBase+c.Limits.Slots < 1<<31, "uid-base is %d and must be at least 1000: a VMM never runs as root or a system user", c.UIDBase)
	wrong(c.MaxBodyBytes >= 1<<10 && c.MaxBodyBytes <= 1<<30, "max-body-bytes is %d and must be 1024 to %d", c.MaxBodyBytes, 1<<30)
	wrong(c.OutputMiB >= 64 && c.OutputMiB <= 1<<30, "output-mib is %d and must be 64 to %d", c.OutputMiB, 1<<30)
	wrong(c.MaxConns >= 8 && c.MaxConns <= 1<<16, "max-conns is %d and must be 8 to %d", c.MaxConns, 1<<16)
	for name, d := range map[string]time.Duration{"agent-timeout": c.AgentTimeout, "kill-timeout": c.KillTimeout, "stopped-retain": c.StoppedRetain} {
		wrong(d >= time.Second, "%s is %s and must be at least 1s", name, d)
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("check configuration: %w", err)
	}
	return nil
}

// database is where the store's is.
func (c Config) database() string {
	if c.Database != "" {
		return c.Database
	}
	return filepath.Join(c.StateDir, "microvm.db")
}
