package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// Names are the figures that Config.Only may name, in the order of the report.
var Names = []string{"exec", "output", "upload", "download", MemoryName, "cold-create", "snapshot-create"}

const (
	uidBase   = 1_960_000_000 // bare VMs' uids: no daemon's range (internal/firecracker, DefaultUIDBase)
	folder    = "bench"       // below the state directory and below the cgroup root
	tagKey    = "microvm-bench"
	lockName  = "@microvm-bench" // an abstract socket: held as long as the process lives
	cleanWait = time.Minute      // for what must go away, on an emulated host
	execEach  = 5                // executions are short: more of them in one round
)

// Config says where the daemon is that is measured. All fields are required.
type Config struct {
	Client      *microvm.Client // over the Unix socket of the daemon on this host
	StateDir    string          // of that daemon
	CgroupMount string          // where cgroup v2 is mounted
	CgroupRoot  string          // of that daemon
	NetnsDir    string          // of that daemon
	Image       string          // of every microVM
	Rounds      int             // at least 1
	Only        []string        // of Names and LanguageNames; empty is all of Names
	KVM         string          // the verdict on this host's KVM, for the report
	Version     string          // of this program, for the report
	Progress    io.Writer       // a line for each step
}

// check refuses at once what cannot succeed.
func (c Config) check() error {
	var all []error
	if c.Rounds < 1 || c.Rounds > 1000 {
		all = append(all, fmt.Errorf("%d rounds are not 1 to 1000", c.Rounds))
	}
	known := append(slices.Clone(Names), LanguageNames()...)
	for _, name := range c.Only {
		if !slices.Contains(known, name) {
			all = append(all, fmt.Errorf("no figure %q; there are %s", name, strings.Join(known, ", ")))
		}
	}
	for _, path := range []string{c.StateDir, c.CgroupMount, c.CgroupRoot, c.NetnsDir} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			all = append(all, fmt.Errorf("%q is not a clean absolute path", path))
		}
	}
	return errors.Join(all...)
}

// run is one run of the benchmarks.
type run struct {
	Config
	tag    string // of every sandbox that it makes
	bares  *bares
	probed microvm.Sandbox
	booted string // what the daemon's VMM calls its release
}

// Run measures and returns the report. It is over before it returns: nothing
// that it made is left, also after an error or when ctx ends. It makes this
// process the parent of the VMMs whose jailers it starts.
func Run(ctx context.Context, c Config) (report Report, err error) {
	if err := c.check(); err != nil {
		return Report{}, fmt.Errorf("check benchmark: %w", err)
	}
	r := &run{Config: c, tag: strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	back := &undo{}
	defer func() {
		if failed := back.run(); failed != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", failed))
		}
	}()
	if err := r.takeOver(back); err != nil {
		return Report{}, err
	}
	back.add("delete sandboxes", func() error { return r.deleteAll(ctx) })
	if err := r.readSandbox(ctx); err != nil {
		return Report{}, interrupted(ctx, err)
	}
	report = Report{Object: "benchmark", Version: c.Version, Rounds: c.Rounds, Host: r.host()}
	if len(c.Only) == 0 || slices.Contains(c.Only, MemoryName) {
		if report.Memory, err = r.measureMemory(ctx); err != nil {
			return Report{}, err
		}
	}
	for _, f := range r.figures() {
		if len(c.Only) > 0 && !slices.Contains(c.Only, f.name) {
			continue
		}
		if !f.inside && r.probed.ID != "" { // no VM idles beside what is measured
			if err := r.remove(ctx, r.probed.ID); err != nil {
				return Report{}, err
			}
			r.probed.ID = ""
		}
		result, err := f.measure(ctx, c.Rounds, c.Progress)
		if err != nil {
			return Report{}, err
		}
		report.Figures = append(report.Figures, result)
	}
	if r.probed.ID != "" {
		if err := r.remove(ctx, r.probed.ID); err != nil {
			return Report{}, err
		}
		r.probed.ID = ""
	}
	report.Languages, err = r.measureLanguages(ctx)
	if err != nil {
		return Report{}, err
	}
	return report, nil
}

// takeOver makes sure that this is the only run on the host, removes what one
// that was killed left, and makes the two folders.
func (r *run) takeOver(back *undo) error {
	lock, err := net.ListenUnix("unix", &net.UnixAddr{Name: lockName, Net: "unix"})
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = errors.New("another one runs on this host")
		}
		return fmt.Errorf("begin benchmark: %w", err)
	}
	back.add("give up lock", lock.Close)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil { // a core holds a guest's memory
		return fmt.Errorf("forbid core files: %w", err)
	}
	groups := &kernelCgroups{dir: filepath.Join(r.CgroupRoot, folder)}
	dir := filepath.Join(r.StateDir, folder)
	if err := errors.Join(clearCgroups(groups), os.RemoveAll(dir)); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	if err := os.Mkdir(groups.dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	back.add("check processes", func() error { return noProcess(uidBase, uidBase+1<<16) })
	back.add("remove cgroups", func() error { return clearCgroups(groups) })
	if err := handDown(groups.dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	back.add("remove folder", func() error { return os.RemoveAll(dir) })
	r.bares = &bares{cgroups: groups, uidBase: uidBase}
	return nil
}

// handDown enables for the children what the parent hands to us.
func handDown(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	var all []string
	for _, name := range strings.Fields(string(have)) {
		all = append(all, "+"+name)
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	if err := os.WriteFile(file, []byte(strings.Join(all, " ")), 0); err != nil { //nolint:gosec // the operator's own path
		return fmt.Errorf("hand down controllers: %w", err)
	}
	return nil
}

// clearCgroups kills and removes whatever is below our folder, and the folder.
func clearCgroups(c *kernelCgroups) error {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var all []error
	for _, entry := range entries {
		if entry.IsDir() {
			all = append(all, c.kill(entry.Name()), c.remove(entry.Name()))
		}
	}
	return errors.Join(append(all, os.Remove(c.dir))...)
}

// noProcess makes sure that nothing runs under uids from low to below high. A
// zombie counts too.
func noProcess(low, high uint32) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var all []error
	for _, dir := range dirs {
		var stat unix.Stat_t
		if unix.Stat(dir, &stat) == nil && stat.Uid >= low && stat.Uid < high {
			all = append(all, fmt.Errorf("process %s of uid %d is left", filepath.Base(dir), stat.Uid))
		}
	}
	return errors.Join(all...)
}

// readSandbox makes a sandbox and reads off it what a bare VM must be made of
// to be comparable: files, sizes, limits, boot line. No stranger's code runs in
// it, so its jail is read by path.
func (r *run) readSandbox(ctx context.Context) error {
	say(r.Progress, "create a sandbox and read what it is made of\n")
	sb, err := r.create(ctx, true) // the jail of a restored one lacks kernel and initrd
	if err != nil {
		return err
	}
	r.probed = *sb
	host := hostName(sb.ID)
	jail := r.jail(sb.ID)
	groups, err := filepath.Glob(filepath.Join(r.CgroupRoot, "*", host))
	if err != nil || len(groups) != 1 {
		return errors.Join(err, fmt.Errorf("read sandbox: %d cgroups %s below %s, want 1: is this the daemon's own host?", len(groups), host, r.CgroupRoot))
	}
	limits, err := readLimits(groups[0])
	if err != nil {
		return err
	}
	scratch, err := os.Stat(filepath.Join(jail, "scratch"))
	if err != nil {
		return fmt.Errorf("read sandbox: %w", err)
	}
	ours := filepath.Join(r.StateDir, folder)
	instance := filepath.Base(filepath.Dir(groups[0]))
	s := shape{
		kernel: filepath.Join(ours, "vmlinux"), initrd: filepath.Join(ours, "initrd"), image: filepath.Join(ours, "image"),
		scratch: filepath.Join(r.StateDir, "boot", fmt.Sprintf("scratch-%d.ext4", scratch.Size()>>20)),
		vcpus:   sb.Vcpus, memMiB: sb.MemMib,
		netns:       filepath.Join(r.NetnsDir, instance+"-empty"),
		cgroupMount: r.CgroupMount, chrootDir: filepath.Join(ours, "j"),
	}
	for _, path := range []string{s.kernel, s.initrd, s.image} {
		if err := os.Link(filepath.Join(jail, filepath.Base(path)), path); err != nil {
			return fmt.Errorf("read sandbox: %w", err)
		}
	}
	for _, file := range []struct {
		name   string
		placed *string
	}{{"jailer", &s.jailer}, {"firecracker", &s.firecracker}} {
		found, err := filepath.Glob(filepath.Join(r.StateDir, "boot", "*", file.name))
		if err != nil || len(found) != 1 {
			return errors.Join(err, fmt.Errorf("read sandbox: %d files %s below %s/boot, want 1", len(found), file.name, r.StateDir))
		}
		*file.placed = found[0]
	}
	for _, path := range []string{s.scratch, s.netns} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("read sandbox: %w", err)
		}
	}
	if length := len(filepath.Join(s.chrootDir, "firecracker", "bench-9999", "root", "v.sock_1025")); length > 107 {
		return fmt.Errorf("read sandbox: the state directory's path is %d characters too long for the sockets of a bare VM", length-107)
	}
	r.bares.shape = s
	if groups, real := r.bares.cgroups.(*kernelCgroups); real {
		groups.limits = limits
	}
	version, err := exec.CommandContext(ctx, s.firecracker, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask firecracker for its version: %w", err)
	}
	if words := strings.Fields(string(version)); len(words) > 1 {
		r.booted = strings.TrimPrefix(words[1], "v")
	}
	return r.compareBootLine(ctx, sb.ID)
}

// compareBootLine makes sure that a bare VM boots with what a sandbox boots
// with; the VMM adds words of its own after it.
func (r *run) compareBootLine(ctx context.Context, id string) error {
	done, err := r.Client.Run(ctx, id, "cat", "/proc/cmdline")
	if err == nil {
		err = done.Err()
	}
	if err != nil {
		return fmt.Errorf("read boot line: %w", err)
	}
	if want := bootArgs(runtime.GOARCH); !strings.HasPrefix(done.Stdout, want) {
		return fmt.Errorf("the daemon boots with another line than the floor: %.400q, and here it is %q", done.Stdout, want)
	}
	return nil
}

func (r *run) host() Host {
	h := Host{
		Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), KVM: r.KVM, Firecracker: r.booted,
		VCPUs: r.bares.shape.vcpus, MemMiB: r.bares.shape.memMiB, Image: r.Image,
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return h
}

// hostName is how the daemon names a sandbox's things on the host.
func hostName(id string) string { return strings.ReplaceAll(strings.ToLower(id), "_", "-") }

func (r *run) jail(id string) string {
	return filepath.Join(r.StateDir, "jails", "firecracker", hostName(id), "root")
}

// create makes a sandbox of the usual shape.
func (r *run) create(ctx context.Context, cold bool) (*microvm.Sandbox, error) {
	return r.createOf(ctx, microvm.SandboxCreate{Image: r.Image}, cold)
}

// createOf makes a sandbox of a shape: the fastest way that there is, or cold.
func (r *run) createOf(ctx context.Context, spec microvm.SandboxCreate, cold bool) (*microvm.Sandbox, error) {
	ttl := 3 * 3600
	spec.TTLSeconds, spec.Tags = &ttl, microvm.Tags{tagKey: r.tag}
	if cold {
		spec.Boot = new(microvm.SandboxCreateBootCold)
	}
	sb, err := r.Client.Sandboxes.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if sb.State != microvm.SandboxStateRunning {
		return nil, fmt.Errorf("create sandbox: it is %s", sb.State)
	}
	return sb, nil
}

// remove deletes a sandbox; an interrupted run does it too.
func (r *run) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
	defer cancel()
	_, err := r.Client.Sandboxes.Delete(ctx, id)
	return err
}

// deleteAll deletes what is left of our sandboxes, also one whose create was
// interrupted before its id came.
func (r *run) deleteAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
	defer cancel()
	var all []error
	for sb, err := range r.Client.Sandboxes.All(ctx, microvm.ListSandboxesParams{}) {
		if err != nil {
			return errors.Join(append(all, err)...)
		}
		if sb.Tags[tagKey] == r.tag && sb.State != microvm.SandboxStateStopped {
			_, err := r.Client.Sandboxes.Delete(ctx, sb.ID)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
