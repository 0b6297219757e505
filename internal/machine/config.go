package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Limits of a machine. Memory is at least what the host needs beside one sandbox; the disk file is sparse.
const (
	MinMemoryMiB, MaxMemoryMiB, DefaultMemoryMiB = 2048, 262144, 6144
	MinCores, MaxCores, DefaultCores             = 1, 64, 2
	MinDiskGiB, MaxDiskGiB, DefaultDiskGiB       = 4, 2048, 20
	// DefaultName is the machine that is meant when none is named.
	DefaultName = "default"
)

// namePattern bounds a name: it becomes a directory, a host name and an SSH alias.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// packagePattern is Debian's rule for package names (Policy 5.6.1), so that none can be an option or a command.
var packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// Config names a machine and says how it is to be. The zero value of a field means its default.
type Config struct {
	// Name of the machine: lower case letters, digits and -, at most 32. Default: DefaultName.
	Name string
	// Dir holds one directory per machine. Default: ~/.local/share/microvm/machines.
	Dir string
	// Cache holds the built roots. Required; absolute.
	Cache string
	// MemoryMiB, Cores and DiskGiB of the host; 0 means as it was made with, and the defaults for a new one. The disk of an
	// existing machine cannot change.
	MemoryMiB, Cores, DiskGiB int
	// Packages are Debian packages that the host root holds beside its own; nil means as it was made with.
	Packages []string
	// Bare stops Start when SSH answers: no programs, no daemon.
	Bare bool
	// Programs is the directory that holds microvmd, microvm and guestd; it must, unless Bare.
	Programs string
	// Files names the artifacts to put into the host beside the programs, asked once for each Start; nil: none.
	Files func(context.Context) ([]File, error)
	// Keeper is the command that calls Keep; the machine's directory is appended. Default: this program, "machine keeper".
	Keeper []string
	// Progress receives a line for every step that takes over two seconds. Default: nowhere.
	Progress io.Writer
}

// Machine is a handle on one machine. It holds no state of the machine: every call reads what is there. Its methods may be
// called from several goroutines and processes.
type Machine struct {
	cfg Config
	dir string
}

// Open checks cfg as a whole and returns a handle; it touches nothing. The error joins one *ValueError per wrong field.
func Open(cfg Config) (*Machine, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Machine{cfg: cfg, dir: filepath.Join(cfg.Dir, cfg.Name)}, nil
}

// Name is the machine's name.
func (m *Machine) Name() string { return m.cfg.Name }

// Directory is the directory that holds everything of this machine.
func (m *Machine) Directory() string { return m.dir }

func (c *Config) fill() error {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.Dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("find home directory: %w", err)
		}
		c.Dir = filepath.Join(home, ".local", "share", "microvm", "machines")
	}
	if c.Keeper == nil {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find own executable: %w", err)
		}
		c.Keeper = []string{self, "machine", "keeper"}
		if c.Programs == "" {
			c.Programs = filepath.Dir(self)
		}
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return nil
}

// ValueError is a setting out of its range.
type ValueError struct{ Field, Value, Want string }

func (e *ValueError) Error() string {
	return fmt.Sprintf("%s is %s: want %s", e.Field, e.Value, e.Want)
}

func (c *Config) validate() error {
	var errs []error
	bad := func(field, value, want string) { errs = append(errs, &ValueError{field, value, want}) }
	number := func(field string, value, low, high int, unit string) {
		if value != 0 && (value < low || value > high) {
			bad(field, fmt.Sprintf("%d %s", value, unit), fmt.Sprintf("%d to %d", low, high))
		}
	}
	if !namePattern.MatchString(c.Name) {
		bad("name", fmt.Sprintf("%q", c.Name), "1 to 32 lower case letters, digits and -, the ends no -")
	}
	if !filepath.IsAbs(c.Dir) {
		bad("machine directory", fmt.Sprintf("%q", c.Dir), "an absolute path")
	}
	if !filepath.IsAbs(c.Cache) {
		bad("cache directory", fmt.Sprintf("%q", c.Cache), "an absolute path (MICROVM_CACHE sets it)")
	}
	number("memory", c.MemoryMiB, MinMemoryMiB, MaxMemoryMiB, "MiB")
	number("cores", c.Cores, MinCores, MaxCores, "cores")
	number("disk", c.DiskGiB, MinDiskGiB, MaxDiskGiB, "GiB")
	if have := outerMemoryMiB(); have > 0 && c.MemoryMiB > have-512 && c.MemoryMiB <= MaxMemoryMiB {
		bad("memory", fmt.Sprintf("%d MiB", c.MemoryMiB), fmt.Sprintf("at most %d: this machine has %d MiB, and 512 stay for itself", have-512, have))
	}
	for _, p := range c.Packages {
		if !packagePattern.MatchString(p) {
			bad("package", fmt.Sprintf("%q", p), "a Debian package name")
		}
	}
	return errors.Join(errs...)
}

// outerMemoryMiB is what the machine has on which this runs, 0 where /proc does not tell.
func outerMemoryMiB() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	return 0
}
