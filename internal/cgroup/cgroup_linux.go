// Package cgroup owns the cgroups of the node's sandboxes: one per sandbox,
// named after it, below a directory that carries the daemon's instance name, on
// cgroup v2. It sets every limit of a plan before anything runs, kills, waits
// until a cgroup is empty, and removes it.
//
// It knows nothing of VMMs, jails and networks, and remembers nothing: what
// exists is what the kernel lists.
//
// States of one cgroup: absent -> limited (made, all limits set, no process
// yet) -> populated -> empty -> absent.
//
// Facts come from Documentation/admin-guide/cgroup-v2.rst of the kernel;
// cgroup.kill needs Linux 5.14.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

var _ sandbox.Cgroups = (*Cgroups)(nil)

// DefaultRoot is where packaging/ delegates a tree to the daemon under systemd:
// a service, because a slice cannot be delegated.
const DefaultRoot = "/sys/fs/cgroup/microvm.slice/microvm-sandboxes.service"

const (
	cpuPeriod = 100_000 // µs, the kernel's default
	// pidsBeyondVCPUs is pids.max less the vCPUs. pids.max counts tasks of the
	// VMM, never processes of the guest: main and API thread (2), the thread
	// that KVM adds per VM for huge page recovery (1). At the start the jailer
	// and its clone share the cgroup (2), before any thread exists. The other
	// five are room for a later Firecracker; a broken VMM still cannot fork
	// the host full.
	pidsBeyondVCPUs = 8

	busyEvery = 2 * time.Millisecond // between two tries to remove a cgroup whose last process just ended
	busyFor   = 5 * time.Second      // then it is an error
	lookEvery = 5 * time.Second      // a wait for an event looks by itself this often
)

// Config says where the cgroups are. Set at construction.
type Config struct {
	// Root is a directory of cgroup v2 that is the daemon's alone and holds no
	// process. Default DefaultRoot. Made if missing.
	Root string
	// Instance names this daemon among those of the host; letters, digits, '-'.
	Instance string
	// Trace, if set, is told each effect on the host before it happens; an
	// error of it is that effect's failure. For tests.
	Trace func(op string) error
}

// Cgroups is the node's cgroups. It is safe for concurrent use; calls for one
// name come one at a time, except Emptied.
type Cgroups struct {
	conf Config
	dir  string // Root/Instance
}

// New checks that Root is a cgroup v2 with the controllers and files that are
// needed, makes Root/Instance and hands the controllers down.
func New(conf Config) (*Cgroups, error) {
	if conf.Root == "" {
		conf.Root = DefaultRoot
	}
	c := &Cgroups{conf: conf, dir: filepath.Join(conf.Root, conf.Instance)}
	if !filepath.IsAbs(conf.Root) || filepath.Clean(conf.Root) != conf.Root {
		return nil, fmt.Errorf("check cgroup root: %q is not a clean absolute path", conf.Root)
	}
	if !validInstance(conf.Instance) {
		return nil, fmt.Errorf("check cgroup root: instance %q is not 1 to 32 letters, digits and '-'", conf.Instance)
	}
	if err := c.setUp(); err != nil {
		return nil, err
	}
	return c, nil
}

func validInstance(name string) bool {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 32 && name[0] != '-'
}

func (c *Cgroups) setUp() error {
	if err := c.do("make cgroup root", func() error { return os.MkdirAll(c.conf.Root, 0o755) }); err != nil {
		return err
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(c.conf.Root, &stat); err != nil {
		return fmt.Errorf("check cgroup root: %w", err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("check cgroup root: %s is not on cgroup v2; boot with systemd.unified_cgroup_hierarchy=1", c.conf.Root)
	}
	procs, err := os.ReadFile(filepath.Join(c.conf.Root, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("check cgroup root: %w", err)
	}
	if len(procs) > 0 {
		return fmt.Errorf("check cgroup root: %s holds processes, so its children get no controllers; it must be ours alone", c.conf.Root)
	}
	if err := c.handDown(c.conf.Root); err != nil {
		return err
	}
	if err := c.do("make instance cgroup", func() error { return mkdir(c.dir) }); err != nil {
		return err
	}
	if err := c.handDown(c.dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(c.dir, "cgroup.kill")); err != nil {
		return fmt.Errorf("check cgroup root: no cgroup.kill, the kernel is older than 5.14: %w", err)
	}
	return nil
}

// handDown enables the controllers for the children of dir: cpu, memory and
// pids must be there, io is taken where it is.
func (c *Cgroups) handDown(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	have := strings.Fields(string(data))
	wanted := "+cpu +memory +pids"
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(have, name) {
			return fmt.Errorf("hand down controllers: %s has no %s controller; delegate it (systemd: Delegate=yes) or enable it in the parent's cgroup.subtree_control", dir, name)
		}
	}
	if slices.Contains(have, "io") {
		wanted += " +io"
	}
	return c.do("hand down controllers", func() error { return write(filepath.Join(dir, "cgroup.subtree_control"), wanted) })
}

// Dir is the directory that holds one cgroup per sandbox, named Plan.Host.
func (c *Cgroups) Dir() string { return c.dir }

type limit struct{ file, value string }

// limits are a plan's, in the order in which they are written.
func limits(plan sandbox.Plan) []limit {
	memory := int64(plan.MemMiB+sandbox.VMOverheadMiB) << 20
	return []limit{
		{"memory.max", strconv.FormatInt(memory, 10)},
		{"memory.swap.max", "0"},  // guest RAM on the host's disk would outlive the sandbox
		{"memory.oom.group", "1"}, // a VMM without one of its threads is worse than none
		{"pids.max", strconv.Itoa(plan.VCPUs + pidsBeyondVCPUs)},
		{"cpu.max", fmt.Sprintf("%d %d", plan.VCPUs*cpuPeriod, cpuPeriod)},
	}
}

// Create makes the cgroup with all its limits set and read back. One that is
// there already is made anew if it is empty, so that its counters start at
// zero, and is an error if it is not.
func (c *Cgroups) Create(ctx context.Context, plan sandbox.Plan) error {
	dir, err := c.path(plan.Host)
	if err != nil {
		return err
	}
	if plan.VCPUs < 1 || plan.MemMiB < 1 {
		return fmt.Errorf("create cgroup: %d vCPUs and %d MiB are no limits", plan.VCPUs, plan.MemMiB)
	}
	populated, err := c.populated(dir)
	switch {
	case err != nil:
		return fmt.Errorf("create cgroup: %w", err)
	case populated:
		return fmt.Errorf("create cgroup: %s has processes in it", dir)
	}
	if err := c.Remove(ctx, plan.Host); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	if err := c.do("make cgroup", func() error { return os.Mkdir(dir, 0o755) }); err != nil {
		return err
	}
	for _, l := range limits(plan) {
		err := c.do("set "+l.file, func() error { return c.set(filepath.Join(dir, l.file), l.value) })
		if err != nil {
			return errors.Join(err, os.Remove(dir))
		}
	}
	return nil
}

// set writes a limit and reads it back. memory.swap.max is absent on a kernel
// without swap, which is what is wanted.
func (c *Cgroups) set(file, value string) error {
	err := write(file, value)
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(file) == "memory.swap.max" {
		return nil
	}
	if err != nil {
		return err
	}
	got, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(got)) != value {
		return fmt.Errorf("wrote %s, read %q", value, strings.TrimSpace(string(got)))
	}
	return nil
}

// Remove deletes the cgroup, and any that are nested in it. The last process
// may be gone from it a moment later than from cgroup.events, so a busy one is
// tried again for a while.
func (c *Cgroups) Remove(ctx context.Context, host string) error {
	dir, err := c.path(host)
	if err != nil {
		return err
	}
	nested, err := nestedIn(dir)
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return c.do("remove cgroup", func() error {
		for _, path := range append(nested, dir) {
			if err := rmdir(ctx, path); err != nil {
				return err
			}
		}
		return nil
	})
}

func rmdir(ctx context.Context, path string) error {
	last := time.Now().Add(busyFor)
	for {
		err := unix.Rmdir(path)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(last):
			return &fs.PathError{Op: "rmdir", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is busy: %w", path, context.Cause(ctx))
		case <-time.After(busyEvery):
		}
	}
}

// nestedIn lists the directories below dir, deepest first.
func nestedIn(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // vanished, or never there
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && path != dir {
			found = append(found, path)
		}
		return nil
	})
	slices.Reverse(found)
	return found, err
}

// List names the cgroups of this instance that Create made, sorted.
func (c *Cgroups) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	var hosts []string
	for _, entry := range entries {
		if _, ok := ident.FromHost(ident.Sandbox, entry.Name()); ok && entry.IsDir() {
			hosts = append(hosts, entry.Name())
		}
	}
	return hosts, nil
}

// path of a sandbox's cgroup. Only names that ident.Host made are taken, so
// none leads out of the directory.
func (c *Cgroups) path(host string) (string, error) {
	if _, ok := ident.FromHost(ident.Sandbox, host); !ok {
		return "", fmt.Errorf("find cgroup: %q is no name of a sandbox", host)
	}
	return filepath.Join(c.dir, host), nil
}

// do is the one way to an effect on the host: it carries the label that errors,
// traces and injected faults share.
func (c *Cgroups) do(op string, effect func() error) error {
	if c.conf.Trace != nil {
		if err := c.conf.Trace(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := effect(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func mkdir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// write puts a value into a file of the kernel: one write, never creating it.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
