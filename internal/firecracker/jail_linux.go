package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// Names in a jail's root, which is the VMM's "/". The jailer adds the binary,
// its pid file, dev/ and run/.
const (
	kernelName  = "vmlinux"
	initrdName  = "initrd"
	imageName   = "image"
	scratchName = "scratch"
	logName     = "log"
	apiName     = "a.sock"
	vsockName   = "v.sock"
	helloName   = vsockName + "_1025" // Firecracker's name for guestwire.HelloPort on the host

	// Beside the root, where the VMM cannot reach.
	rootName  = "root"
	debugName = "debug"
)

// Prepare makes the jail: <StateDir>/jails/firecracker/<host>/root, which the
// jailer takes over (it makes its directories only where they are missing).
// Everything is made by descriptor, so the length of the state directory's path
// does not count against the 107 bytes of a socket's path.
func (v *VMM) Prepare(ctx context.Context, plan sandbox.Plan) error {
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	scratch, links, err := v.sources(ctx, plan)
	if err != nil {
		return err
	}
	root, err := v.makeJail(plan.Host)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	at, uid := int(root.Fd()), v.UID(plan.Slot)
	for _, file := range links {
		if err := v.do("link "+file.name, func() error { return linkShared(file.path, at, file.name) }); err != nil {
			return err
		}
	}
	if err := v.do("copy scratch", func() error { return copySparse(scratch, at, scratchName, uid) }); err != nil {
		return err
	}
	i := &instance{template: plan.Template}
	err = v.do("make log", func() (err error) {
		i.log, err = followFIFO(at, logName, uid)
		return err
	})
	if err == nil && plan.Template == "" {
		err = v.do("listen for hello", func() (err error) {
			i.hello, err = listenHello(at, helloName, uid)
			return err
		})
	}
	if err != nil {
		i.close()
		return err
	}
	v.mu.Lock()
	old := v.running[plan.Host]
	v.running[plan.Host] = i
	v.mu.Unlock()
	if old != nil {
		old.close()
	}
	return nil
}

type link struct{ path, name string }

// sources says what a jail is made of: the scratch disk to copy, and the files
// to link. A restored microVM needs neither kernel nor initrd: both are in its
// memory.
func (v *VMM) sources(ctx context.Context, plan sandbox.Plan) (scratch string, links []link, err error) {
	image := link{plan.Image.Path, imageName}
	if plan.Template == "" {
		scratch, err = v.blankScratch(ctx, plan.ScratchMiB)
		return scratch, []link{{v.files.kernel, kernelName}, {v.files.initrd, initrdName}, image}, err
	}
	if want := v.TemplateOf(plan); plan.Template != want {
		return "", nil, fmt.Errorf("prepare jail: template %.40q is none of this plan, which is %s", plan.Template, want)
	}
	dir := filepath.Join(v.templatesDir(), plan.Template)
	if _, err := os.Lstat(dir); err != nil {
		return "", nil, fmt.Errorf("prepare jail: find template: %w", err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	return in(scratchName), []link{image, {in(memoryName), memoryName}, {in(stateName), stateName}}, nil
}

func checkPlan(plan sandbox.Plan) error {
	if err := validHost(plan.Host); err != nil {
		return err
	}
	if plan.Slot < 0 || plan.Slot >= maxSlots {
		return fmt.Errorf("slot %d is not in 0 to %d", plan.Slot, maxSlots-1)
	}
	if plan.VCPUs < 1 || plan.VCPUs > 32 || plan.MemMiB < 1 || plan.ScratchMiB < 1 {
		return fmt.Errorf("%d vCPUs, %d MiB of memory, %d MiB of scratch are no microVM", plan.VCPUs, plan.MemMiB, plan.ScratchMiB)
	}
	if !filepath.IsAbs(plan.Image.Path) {
		return fmt.Errorf("image path %q is not absolute", plan.Image.Path)
	}
	return nil
}

// makeJail makes the directories of a jail, which must not be there: a jail is
// used once, and the jailer makes its device nodes only where none are.
func (v *VMM) makeJail(host string) (root *os.File, err error) {
	err = v.do("make jail", func() error {
		if err := unix.Mkdirat(int(v.jails.Fd()), host, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: host, Err: err}
		}
		jail, err := openDir(int(v.jails.Fd()), host)
		if err != nil {
			return err
		}
		defer func() { _ = jail.Close() }()
		if err := unix.Mkdirat(int(jail.Fd()), rootName, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: rootName, Err: err}
		}
		root, err = openDir(int(jail.Fd()), rootName)
		return err
	})
	return root, err
}

// openRoot opens a jail's root, which may belong to a hostile VMM.
func (v *VMM) openRoot(host string) (*os.File, error) {
	if err := validHost(host); err != nil {
		return nil, err
	}
	return openDir(int(v.jails.Fd()), host+"/"+rootName)
}

// followFIFO makes a FIFO for uid and reads it. It is opened for reading and
// writing, so that it never ends, on both sides: Firecracker opens its log like
// this too, and therefore outlives us without a SIGPIPE or a wait.
func followFIFO(dir int, name string, uid int) (*tail, error) {
	if err := unix.Mkfifoat(dir, name, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	if err := unix.Fchownat(dir, name, uid, uid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return reopenFIFO(dir, name)
}

// reopenFIFO reads a FIFO that is there. A VMM may have put something else in
// its place: that is looked at before it is opened.
func reopenFIFO(dir int, name string) (*tail, error) {
	path, err := openBeneath(dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(path) }()
	var stat unix.Stat_t
	if err := unix.Fstat(path, &stat); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, fmt.Errorf("%s is no FIFO (mode %o)", name, stat.Mode)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	fifo := os.NewFile(uintptr(fd), name) // non-blocking: it goes into Go's poller
	conn, err := fifo.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, fifo.Close())
	}
	pending := func() (n int) {
		_ = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return n
	}
	return follow(fifo, pending), nil
}

// processes lists the processes in a sandbox's cgroup.
func (v *VMM) processes(host string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(v.conf.CgroupDir, host, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return parsePIDs(string(data))
}

// SlotOf tells the slot for which a VMM was launched in a jail, by the owner of
// its root, which the jailer gave it and a VMM cannot change; -1 where none was.
func (v *VMM) SlotOf(_ context.Context, host string) (int, error) {
	root, err := v.openRoot(host)
	if errors.Is(err, os.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("tell slot: %w", err)
	}
	defer func() { _ = root.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("tell slot: %w", err)
	}
	switch slot := int(stat.Uid) - v.conf.UIDBase; {
	case stat.Uid == 0:
		return -1, nil
	case slot < 0 || slot >= maxSlots:
		return 0, fmt.Errorf("tell slot: %s belongs to uid %d, which is none of this daemon's (from %d on): was it started with another --uid-base?", host, stat.Uid, v.conf.UIDBase)
	default:
		return slot, nil
	}
}
