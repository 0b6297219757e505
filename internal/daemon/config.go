package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	"github.com/microvmd/microvm/internal/cgroup"
	"github.com/microvmd/microvm/internal/firecracker"
	"github.com/microvmd/microvm/internal/hostnet"
	"github.com/microvmd/microvm/internal/httpapi"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// Config is everything that a daemon is told. cmd/microvmd fills it from flags,
// the environment and a file; nothing else is read.
type Config struct {
	Instance string // names this daemon's things on the host; a-z 0-9 '-', 1..16
	StateDir string // absolute; one file system; root's
	Database string // postgres:// URL, "" is an SQLite file in StateDir; may hold a password, so it is never logged
	Socket   string // Unix socket for root, no key wanted
	Listen   string // TCP address, key wanted always; "" is none

	CgroupRoot string // absolute, below /sys/fs/cgroup; nothing else may use it
	NetnsDir   string // where the empty network namespace is pinned
	UIDBase    int    // slot n's VMM runs as UIDBase+n

	Drain bool // sandboxes end when the daemon is stopped, rather than wait for the next start

	AllowUnsupportedFirecracker bool
	DebugVMM                    bool // keep what consoles and VMMs print, for errors

	MaxBodyBytes int64 // of a JSON body, 1 KiB..1 GiB
	OutputMiB    int   // kept output of all executions, 64 MiB..1 PiB
	BoxOutputMiB int   // kept output of one sandbox's executions, 4..OutputMiB
	MaxConns     int   // TCP connections at once, 8..65536; the Unix socket has no bound
	ImageMiB     int   // contents of one imported tree, 1..65536
	ImageMembers int   // files, directories, links and devices of one imported tree, 1..4194304

	Limits        sandbox.Limits
	AgentTimeout  time.Duration // silence of a guest agent after which its sandbox is ended
	KillTimeout   time.Duration // unconfirmed kill after which a sandbox is ended
	StoppedRetain time.Duration // how long a stopped sandbox stays readable

	Version string
	Logger  *slog.Logger
	Notify  string // socket of the service manager (sd_notify(3)); "" is none
}

// Defaults is the configuration for a host of so many cores and so much
// memory. A quarter of the memory, at least 512 MiB, is left to the host;
// vCPUs are overcommitted by four, since most sandboxes wait most of the time.
func Defaults(cores, memMiB int) Config {
	give := max(memMiB-max(memMiB/4, 512), sandbox.MinMemMiB+sandbox.VMOverheadMiB)
	return Config{
		Instance:     "microvm",
		StateDir:     "/var/lib/microvm",
		Socket:       "/run/microvm/microvmd.sock",
		Listen:       "127.0.0.1:7080",
		CgroupRoot:   cgroup.DefaultRoot,
		NetnsDir:     hostnet.DefaultDir,
		UIDBase:      firecracker.DefaultUIDBase,
		MaxBodyBytes: httpapi.DefaultMaxBodyBytes,
		MaxConns:     1024,
		OutputMiB:    4096,
		BoxOutputMiB: 64,
		ImageMiB:     16 << 10,
		ImageMembers: 200_000,
		Limits: sandbox.Limits{
			Slots:       max(1, give/(sandbox.DefaultMemMiB+sandbox.VMOverheadMiB)),
			VCPUs:       max(4*cores, 8),
			MemMiB:      give,
			MaxVCPUs:    min(32, max(cores, 2)),
			MaxTTL:      24 * time.Hour,
			ScratchMiB:  2048,
			Templates:   8,
			BootsAtOnce: max(2, cores),
			BootTurn:    15 * time.Second,

			BootTimeout:    3 * time.Minute,
			StallTimeout:   30 * time.Second,
			StepTimeout:    30 * time.Second,
			ReconcileEvery: time.Minute,
		},
		AgentTimeout:  time.Minute,
		KillTimeout:   5 * time.Second,
		StoppedRetain: time.Hour,
	}
}

var instanceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,15}$`)

// filled computes what was left to be.
func (c Config) filled() Config {
	if c.Limits.MaxMemMiB == 0 {
		c.Limits.MaxMemMiB = c.Limits.MemMiB - sandbox.VMOverheadMiB
	}
	if c.Limits.DiskMiB == 0 { // disks are sparse: nobody fills all of them
		c.Limits.DiskMiB = c.Limits.Slots * c.Limits.ScratchMiB
	}
	return c
}

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
	wrong(c.BoxOutputMiB >= 4 && c.BoxOutputMiB <= c.OutputMiB, "sandbox-output-mib is %d and must be 4 to output-mib, %d", c.BoxOutputMiB, c.OutputMiB)
	wrong(c.OutputMiB >= 64 && c.OutputMiB <= 1<<30, "output-mib is %d and must be 64 to %d", c.OutputMiB, 1<<30)
	most := image.MaxBounds
	wrong(c.ImageMiB >= 1 && int64(c.ImageMiB) <= most.Bytes>>20, "image-mib is %d and must be 1 to %d", c.ImageMiB, most.Bytes>>20)
	wrong(c.ImageMembers >= 1 && c.ImageMembers <= most.Members, "image-members is %d and must be 1 to %d", c.ImageMembers, most.Members)
	wrong(c.MaxConns >= 8 && c.MaxConns <= 1<<16, "max-conns is %d and must be 8 to %d", c.MaxConns, 1<<16)
	for name, d := range map[string]time.Duration{"agent-timeout": c.AgentTimeout, "kill-timeout": c.KillTimeout, "stopped-retain": c.StoppedRetain} {
		wrong(d >= time.Second, "%s is %s and must be at least 1s", name, d)
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("check configuration: %w", err)
	}
	return nil
}

// imageBounds is what an imported tree may be at most.
func (c Config) imageBounds() image.Bounds {
	return image.Bounds{Bytes: int64(c.ImageMiB) << 20, Members: c.ImageMembers}
}

// database is where the store's is.
func (c Config) database() string {
	if c.Database != "" {
		return c.Database
	}
	return filepath.Join(c.StateDir, "microvm.db")
}
