package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	// openFiles is RLIMIT_NOFILE of a VMM: 1023 vsock connections of two
	// descriptors each at worst, and what it holds besides.
	openFiles = 2048
	// fileSlack is what RLIMIT_FSIZE leaves beyond the larger of scratch disk
	// and guest RAM (a snapshot's memory file), in bytes.
	fileSlack = 16 << 20

	apiEvery = 2 * time.Millisecond // between two looks for the API's socket
)

// Subreaper makes this process the parent of VMMs whose jailer has ended, which
// is the only way to learn their exit codes. Call it once, before New.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// NoCores sets the limit on core files to 0, for this process and every jailer
// and VMM that it starts: a core of a VMM holds its guest's memory, and the
// jailer does not set this limit. Call it once, before New.
func NoCores() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	return nil
}

// ready makes sure that both were called.
func ready() error {
	var reaper int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&reaper)), 0, 0, 0); err != nil || reaper == 0 { //nolint:gosec // the call writes an int there
		return errors.Join(err, errors.New("the process is no subreaper: call Subreaper first"))
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core.Max != 0 {
		return errors.Join(err, errors.New("core files are allowed: call NoCores first"))
	}
	return nil
}

// jailerArgs are the arguments of the jailer and, after "--", of Firecracker.
func (v *VMM) jailerArgs(plan sandbox.Plan, netns string) []string {
	uid := strconv.Itoa(v.UID(plan.Slot))
	parent, _ := filepath.Rel(v.conf.CgroupMount, filepath.Join(v.conf.CgroupDir, plan.Host)) // checked in complete
	fsize := int64(max(plan.ScratchMiB, plan.MemMiB))<<20 + fileSlack
	return []string{
		"--id", plan.Host,
		"--exec-file", v.files.firecracker,
		"--uid", uid, "--gid", uid,
		"--chroot-base-dir", filepath.Dir(v.jailsDir()),
		"--cgroup-version", "2",
		"--parent-cgroup", parent,
		"--netns", netns,
		"--new-pid-ns",
		"--resource-limit", "no-file=" + strconv.Itoa(openFiles),
		"--resource-limit", "fsize=" + strconv.FormatInt(fsize, 10),
		"--",
		"--api-sock", "/" + apiName,
		"--log-path", "/" + logName,
		"--level", "Warning",
	}
}

// Launch starts jailer and VMM and returns when the VMM's API answers. After an
// error the caller kills the cgroup: a VMM may be in it. The context bounds it.
func (v *VMM) Launch(ctx context.Context, plan sandbox.Plan) error {
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("launch VMM: %w", err)
	}
	i := v.instance(plan.Host)
	if i == nil || i.adopted {
		return fmt.Errorf("launch VMM: %s was not prepared by this process", plan.Host)
	}
	if err := ready(); err != nil {
		return fmt.Errorf("launch VMM: %w", err)
	}
	netns, err := v.conf.Netns(ctx, plan)
	if err != nil {
		return fmt.Errorf("launch VMM: %w", err)
	}
	if err := v.do("run jailer", func() error { return v.runJailer(ctx, plan, netns, i) }); err != nil {
		return v.explain(plan.Host, err)
	}
	if err := v.do("find VMM", func() error { return v.awaitVMM(ctx, plan.Host, i) }); err != nil {
		return v.explain(plan.Host, err)
	}
	return nil
}

// runJailer starts the jailer and waits until it has cloned into the VMM and
// ended. Standard input and output are /dev/null: a pipe whose reader dies with
// the daemon would stop the VMM at its next line. The session is a new one, so
// that no signal of our terminal reaches a VMM.
func (v *VMM) runJailer(ctx context.Context, plan sandbox.Plan, netns string, i *instance) error {
	// Without this cgroup the jailer would leave the VMM in ours, and say nothing.
	if _, err := os.Stat(filepath.Join(v.conf.CgroupDir, plan.Host, "cgroup.procs")); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, v.files.jailer, v.jailerArgs(plan, netns)...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	hint := "; microvmd --debug-vmm keeps what it prints"
	if v.conf.Debug {
		console, err := v.openConsole(plan.Host, i)
		if err != nil {
			return err
		}
		defer func() { _ = console.Close() }()
		cmd.Stdout, cmd.Stderr = console, console
		hint = ""
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	i.mu.Lock()
	i.launched = true
	i.mu.Unlock()
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%w%s", err, hint)
	}
	return nil
}

// openConsole makes the FIFO that takes stdout and stderr when debugging, beside
// the jail's root. It is open for reading and writing and never waits: a flood
// from the guest is dropped, and the VMM outlives us.
func (v *VMM) openConsole(host string, i *instance) (*os.File, error) {
	jail, err := openDir(int(v.jails.Fd()), host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = jail.Close() }()
	console, err := followFIFO(int(jail.Fd()), debugName, 0)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.debug = console
	i.mu.Unlock()
	fd, err := openBeneath(int(jail.Fd()), debugName, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	writer := os.NewFile(uintptr(fd), debugName)
	// Only now: a file that os knows to be non-blocking is made blocking again
	// when its descriptor is handed to a child.
	return writer, unix.SetNonblock(fd, true)
}

// awaitVMM finds the VMM's process, makes sure that it is in its cgroup, and
// waits until its API answers.
func (v *VMM) awaitVMM(ctx context.Context, host string, i *instance) error {
	pidfd, err := v.findVMM(host, i)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	vmm := v.api(host)
	defer vmm.close()
	for {
		info, err := vmm.info(ctx)
		switch {
		case err == nil && info.ID == host && info.State == "Not started":
			return nil
		case err == nil:
			return fmt.Errorf("the API answers for %.70q in state %.20q", info.ID, info.State)
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED):
			return fmt.Errorf("ask the API: %w", err)
		}
		ended, err := waitPidfd(pidfd, apiEvery)
		if err != nil || ended {
			return errors.Join(err, errors.New("the VMM ended before its API answered"))
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the API: %w", context.Cause(ctx))
		}
	}
}

// findVMM returns a pidfd of the one process in the sandbox's cgroup. The jailer
// has ended, so it is the VMM; the number is read again once the descriptor is
// held, so it is this process and no later one of that number.
func (v *VMM) findVMM(host string, i *instance) (pidfd int, err error) {
	pid, err := v.onlyProcess(host)
	if err != nil {
		return -1, err
	}
	pidfd, err = unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("hold process %d: %w", pid, err)
	}
	again, err := v.onlyProcess(host)
	if err == nil && again != pid {
		err = fmt.Errorf("process %d became %d", pid, again)
	}
	if err == nil {
		err = v.checkPlace(pid, host)
	}
	if err == nil {
		err = expendable(pid)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(pidfd))
	}
	i.mu.Lock()
	i.pid = pid
	i.mu.Unlock()
	return pidfd, nil
}

// vmmOOMScore makes the kernel choose a VMM when the host is short of memory,
// before any service of the host: a child inherits the daemon's own score, which
// spares it.
const vmmOOMScore = 500

func expendable(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(vmmOOMScore)), 0)
}

func (v *VMM) onlyProcess(host string) (int, error) {
	pids, err := v.processes(host)
	if err != nil {
		return 0, err
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("%d processes in its cgroup, want the VMM alone", len(pids))
	}
	return pids[0], nil
}

// checkPlace compares the process's own word with where it should be.
func (v *VMM) checkPlace(pid int, host string) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(v.conf.CgroupMount, filepath.Join(v.conf.CgroupDir, host))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			if strings.TrimSuffix(path, " (deleted)") == "/"+rel {
				return nil
			}
			return fmt.Errorf("process %d is in cgroup %q, want %q", pid, path, "/"+rel)
		}
	}
	return fmt.Errorf("process %d is in no cgroup of v2", pid)
}

// waitPidfd waits for at most the given time and reports whether the process
// has ended.
func waitPidfd(pidfd int, wait time.Duration) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	n, err := unix.Poll(fds, int(wait.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("poll: %w", err)
	}
	return n > 0, nil
}

func parsePIDs(text string) ([]int, error) {
	var pids []int
	for _, field := range strings.Fields(text) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid < 1 {
			return nil, fmt.Errorf("list processes: %q is no process", field)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
