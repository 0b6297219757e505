//go:build kvm && linux

package firecracker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/cgroup"
	"github.com/microvmd/microvm/internal/firecracker"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/hostnet"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

// These tests run the released Firecracker and jailer, as root, on a host with
// /dev/kvm and cgroup v2. MICROVM_TEST_DIR holds firecracker, jailer, vmlinux,
// guestd and rootfs; MICROVM_TEST_STATE is an empty directory on the same file
// system; MICROVM_TEST_CGROUP a cgroup that is the tests' alone.
func TestMain(m *testing.M) {
	for _, set := range []func() error{firecracker.Subreaper, firecracker.NoCores} {
		if err := set(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

type host struct {
	*firecracker.VMM
	cgroups *cgroup.Cgroups
	image   image.Image
}

func newHost(t *testing.T, change func(*firecracker.Config)) *host {
	t.Helper()
	dir, state, root := need(t, "MICROVM_TEST_DIR"), need(t, "MICROVM_TEST_STATE"), need(t, "MICROVM_TEST_CGROUP")
	cgroups, err := cgroup.New(cgroup.Config{Root: root, Instance: "test"})
	if err != nil {
		t.Fatal(err)
	}
	network, err := hostnet.New(hostnet.Config{Instance: "test"})
	if err != nil {
		t.Fatal(err)
	}
	conf := firecracker.Config{
		StateDir:        state,
		FirecrackerPath: filepath.Join(dir, "firecracker"),
		JailerPath:      filepath.Join(dir, "jailer"),
		KernelPath:      filepath.Join(dir, "vmlinux"),
		GuestdPath:      filepath.Join(dir, "guestd"),
		CgroupDir:       cgroups.Dir(),
		Netns:           func(ctx context.Context, _ sandbox.Plan) (string, error) { return network.Empty(ctx) },
	}
	if change != nil {
		change(&conf)
	}
	began := time.Now()
	vmm, err := firecracker.New(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("new %v, firecracker %s", time.Since(began), vmm.Version())
	t.Cleanup(func() {
		if err := vmm.Close(); err != nil {
			t.Error(err)
		}
	})
	return &host{VMM: vmm, cgroups: cgroups, image: image.Image{ID: "test", Path: filepath.Join(dir, "rootfs")}}
}

func need(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set", name)
	}
	return value
}

func (h *host) plan(slot int) sandbox.Plan {
	id := ident.New(ident.Sandbox)
	return sandbox.Plan{ID: id, Host: ident.Host(id), Slot: slot, VCPUs: 1, MemMiB: 256, Image: h.image, ScratchMiB: 2048}
}

// timed runs one step and says how long it took.
func timed(t *testing.T, name string, step func() error) {
	t.Helper()
	began := time.Now()
	if err := step(); err != nil {
		t.Fatalf("%s after %v: %v", name, time.Since(began), err)
	}
	t.Logf("%-8s %v", name, time.Since(began).Round(100*time.Microsecond))
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// launch brings a sandbox up to its API, and takes it down at the end.
func (h *host) launch(t *testing.T, ctx context.Context, plan sandbox.Plan) {
	t.Helper()
	t.Cleanup(func() { h.remove(t, plan.Host) })
	timed(t, "cgroup", func() error { return h.cgroups.Create(ctx, plan) })
	timed(t, "prepare", func() error { return h.Prepare(ctx, plan) })
	timed(t, "launch", func() error { return h.Launch(ctx, plan) })
}

// remove takes a sandbox down and looks for what is left of it.
func (h *host) remove(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	timed(t, "kill", func() error { return h.cgroups.Kill(ctx, name) })
	timed(t, "remove", func() error { return h.Remove(ctx, name) })
	timed(t, "rmdir", func() error { return h.cgroups.Remove(ctx, name) })
	if err := h.Remove(ctx, name); err != nil {
		t.Errorf("remove again: %v", err)
	}
	for list, f := range map[string]func(context.Context) ([]string, error){"jails": h.List, "cgroups": h.cgroups.List} {
		left, err := f(ctx)
		if err != nil || strings.Contains(fmt.Sprint(left), name) {
			t.Errorf("%s: %v %v", list, left, err)
		}
	}
	if out, _ := exec.Command("pgrep", "-f", name).Output(); len(out) > 0 {
		t.Errorf("processes left: %s", out)
	}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, file := range children {
		if data, _ := os.ReadFile(file); len(data) > 0 {
			t.Errorf("children left: %s", data)
		}
	}
}

func (h *host) pid(t *testing.T, name string) int {
	t.Helper()
	var pid int
	data, err := os.ReadFile(filepath.Join(h.cgroups.Dir(), name, "cgroup.procs"))
	if err == nil {
		_, err = fmt.Sscan(string(data), &pid)
	}
	if err != nil {
		t.Fatalf("find VMM: %v", err)
	}
	return pid
}

func TestBootToHelloAndBack(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	for slot := range 3 {
		plan := h.plan(slot)
		h.launch(t, ctx, plan)
		began := time.Now()
		timed(t, "start", func() error { return h.Start(ctx, plan) })
		timed(t, "hello", func() error {
			hello, err := h.Hello(ctx, plan.Host)
			t.Logf("%+v", hello)
			return err
		})
		t.Logf("start to hello %v", time.Since(began))
		client := h.Client(plan.Host)
		for range 3 {
			timed(t, "echo", func() error { return client.Echo(ctx, "some text") })
		}
		h.checkJail(t, plan)
		emptied := make(chan error, 1)
		go func() { emptied <- h.cgroups.Emptied(ctx, plan.Host) }()
		timed(t, "kill", func() error { return h.cgroups.Kill(ctx, plan.Host) })
		timed(t, "emptied", func() error { return <-emptied })
		exit, known := h.Exit(plan.Host)
		if !known || exit.String() != "ended by SIGKILL" {
			t.Errorf("exit %v %v", exit, known)
		}
	}
}

// TestGuestEndsItself proves that the end of a VMM is seen, and its code.
func TestGuestEndsItself(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	plan := h.plan(8)
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	timed(t, "hello", func() error { _, err := h.Hello(ctx, plan.Host); return err })
	client := h.Client(plan.Host)
	timed(t, "conf", func() error {
		_, err := client.Configure(ctx, guestwire.Configure{
			Generation: 1, Hostname: "test", TimeNS: time.Now().UnixNano(), Entropy: bytes.Repeat([]byte{7}, 32),
			User: "user", Workdir: "/workspace", Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
		})
		return err
	})
	emptied := make(chan error, 1)
	go func() { emptied <- h.cgroups.Emptied(ctx, plan.Host) }()
	reboot := "import ctypes; ctypes.CDLL(None).reboot(0x1234567)"
	_, err := client.Start(ctx, "exe_01HZZZZZZZZZZZZZZZZZZZZZZZ", guestwire.Start{Cmd: "python3", Args: []string{"-c", reboot}, User: "root"}, guestwire.Sink{})
	if err != nil {
		t.Logf("start: %v", err) // the guest may be gone before it answers
	}
	timed(t, "reboot", func() error { return <-emptied })
	exit, known := h.Exit(plan.Host)
	if !known || exit != (firecracker.Exit{}) {
		t.Errorf("exit %v, known %v", exit, known)
	}
}

func TestClientAndAdoption(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	plan := h.plan(40)
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	if _, err := h.Hello(ctx, plan.Host); err != nil {
		t.Fatal(err)
	}
	client := h.Client(plan.Host)
	results := make(chan error)
	began := time.Now()
	for n := range 10 {
		go func() { results <- client.Echo(ctx, fmt.Sprint("caller ", n)) }()
	}
	for range 10 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	t.Logf("ten echoes %v", time.Since(began))

	// A second daemon knows nothing but the directory.
	other := newHost(t, nil)
	timed(t, "adopted echo", func() error { return other.Client(plan.Host).Echo(ctx, "hi") })
	if _, known := other.Exit(plan.Host); known {
		t.Error("an adopted VM has an exit")
	}
	if err := h.Remove(ctx, plan.Host); err == nil || !strings.Contains(err.Error(), "still run") {
		t.Errorf("removing a running jail: %v", err)
	}
}

// TestVMSurvivesItsDaemon boots a VM in a process that then kills itself, and
// goes on to use it from here.
func TestVMSurvivesItsDaemon(t *testing.T) {
	const child = "MICROVM_TEST_NAME_FILE"
	h, ctx := newHost(t, nil), deadline(t)
	if file := os.Getenv(child); file != "" {
		plan := h.plan(60)
		err := errors.Join(h.cgroups.Create(ctx, plan), h.Prepare(ctx, plan), h.Launch(ctx, plan), h.Start(ctx, plan))
		if err == nil {
			_, err = h.Hello(ctx, plan.Host)
		}
		if err == nil {
			err = h.Client(plan.Host).Echo(ctx, "x")
		}
		if err = errors.Join(err, os.WriteFile(file, []byte(plan.Host), 0o600)); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	file := filepath.Join(t.TempDir(), "name")
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVMSurvivesItsDaemon$")
	cmd.Env = append(os.Environ(), child+"="+file)
	out, err := cmd.CombinedOutput() // its end also shows that the VMM holds none of its files
	name, err2 := os.ReadFile(file)
	if err2 != nil || !strings.Contains(fmt.Sprint(err), "signal: killed") {
		t.Fatalf("%v %v: %s", err, err2, out)
	}
	pid := h.pid(t, string(name))
	plan := h.plan(60)
	plan.Host = string(name)
	timed(t, "adopt", func() error { return h.Adopt(ctx, plan) })
	for range 20 {
		if err := h.Client(string(name)).Echo(ctx, "still there"); err != nil {
			t.Fatal(err)
		}
	}
	if after := h.pid(t, string(name)); after != pid {
		t.Errorf("pid was %d, is %d", pid, after)
	}
	emptied := make(chan error, 1)
	go func() { emptied <- h.cgroups.Emptied(ctx, string(name)) }()
	timed(t, "kill", func() error { return h.cgroups.Kill(ctx, string(name)) })
	timed(t, "emptied", func() error { return <-emptied })
	if exit, known := h.Exit(string(name)); known {
		t.Errorf("the exit of an adopted VM: %v", exit)
	}
	var status unix.WaitStatus // the tests are the subreaper above it; an init would be
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("%v %v", status, err)
	}
	h.remove(t, string(name))
}

// checkJail reads from /proc how the VMM of a plan lives.
func (h *host) checkJail(t *testing.T, plan sandbox.Plan) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", h.pid(t, plan.Host))
	root, err := os.Stat(proc + "/root/")
	if err != nil {
		t.Fatal(err)
	}
	jail, err := os.Stat(filepath.Join(os.Getenv("MICROVM_TEST_STATE"), "jails/firecracker", plan.Host, "root"))
	if err != nil || !os.SameFile(root, jail) {
		t.Errorf("root is not its jail: %v", err)
	}
	for _, ns := range []string{"mnt", "pid", "net"} {
		theirs, err1 := os.Readlink(proc + "/ns/" + ns)
		ours, err2 := os.Readlink("/proc/self/ns/" + ns)
		if err1 != nil || err2 != nil || theirs == ours {
			t.Errorf("namespace %s: %q, ours %q, %v %v", ns, theirs, ours, err1, err2)
		}
	}
	uid := h.UID(plan.Slot)
	tasks, _ := filepath.Glob(proc + "/task/*/status")
	if len(tasks) < 3 {
		t.Errorf("%d threads", len(tasks))
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"Seccomp:\t2\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Groups:\t \n",
			fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid), fmt.Sprintf("Gid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid),
		} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s lacks %q:\n%s", task, want, data)
			}
		}
	}
	limits, _ := os.ReadFile(proc + "/limits")
	for _, want := range []string{"core file size 0 0", "open files 2048 2048", fmt.Sprintf("file size %d", 2048<<20+16<<20)} {
		if !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), want) {
			t.Errorf("limits lack %q:\n%s", want, limits)
		}
	}
	fds, _ := filepath.Glob(proc + "/fd/*")
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		t.Logf("fd %s %s", filepath.Base(fd), target)
	}
	for _, file := range []string{"memory.current", "memory.peak", "memory.max", "memory.swap.max", "memory.oom.group", "pids.current", "pids.peak", "pids.max", "cpu.max"} {
		data, err := os.ReadFile(filepath.Join(h.cgroups.Dir(), plan.Host, file))
		t.Logf("%s %s %v", file, strings.TrimSpace(string(data)), err)
	}
}

// TestFourAtOnceLeaveNothing boots four side by side, and counts descriptors and
// goroutines before and after.
func TestFourAtOnceLeaveNothing(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	count := func() (files, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	files, goroutines := count()
	began := time.Now()
	errs := make(chan error)
	for slot := range 4 {
		go func() {
			plan := h.plan(50 + slot)
			err := errors.Join(h.cgroups.Create(ctx, plan), h.Prepare(ctx, plan))
			for _, step := range []func() error{
				func() error { return h.Launch(ctx, plan) },
				func() error { return h.Start(ctx, plan) },
				func() error { _, err := h.Hello(ctx, plan.Host); return err },
				func() error { return h.Client(plan.Host).Echo(ctx, "x") },
			} {
				if err == nil {
					err = step()
				}
			}
			errs <- errors.Join(err, h.cgroups.Kill(ctx, plan.Host), h.Remove(ctx, plan.Host), h.cgroups.Remove(ctx, plan.Host))
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("four boots %v", time.Since(began))
	// A transport's goroutines end a moment after their connection was closed.
	for range 100 {
		if f, g := count(); f <= files && g <= goroutines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	f, g := count()
	t.Errorf("%d files and %d goroutines, before %d and %d", f, g, files, goroutines)
}

func TestStateDirMustTakeDevicesAndPrograms(t *testing.T) {
	for _, flag := range []uintptr{unix.MS_NODEV, unix.MS_NOEXEC} {
		dir := t.TempDir()
		if err := unix.Mount("test", dir, "tmpfs", flag, "mode=0700"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		_, err := firecracker.New(t.Context(), firecracker.Config{
			StateDir: dir, FirecrackerPath: "/x", JailerPath: "/x", KernelPath: "/x", GuestdPath: "/x", CgroupDir: "/sys/fs/cgroup/x",
			Netns: func(context.Context, sandbox.Plan) (string, error) { return "", nil },
		})
		if err == nil || !strings.Contains(err.Error(), "is mounted nodev or noexec") {
			t.Errorf("flag %d: got %v", flag, err)
		}
	}
}

func TestPrepareTwice(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	plan := h.plan(7)
	h.launch(t, ctx, plan)
	if err := h.Prepare(ctx, plan); err == nil {
		t.Error("a jail was prepared twice")
	}
	if err := h.cgroups.Create(ctx, plan); err == nil {
		t.Error("a cgroup with a process was made anew")
	}
}

func TestFailedLaunches(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*firecracker.Config)
		cgroup bool
		want   string
	}{
		"no cgroup": {nil, false, "cgroup.procs"},
		"no namespace": {func(c *firecracker.Config) {
			c.Debug = true
			c.Netns = func(context.Context, sandbox.Plan) (string, error) { return "/nonexistent", nil }
		}, true, "/nonexistent"},
		"quiet": {func(c *firecracker.Config) {
			c.Netns = func(context.Context, sandbox.Plan) (string, error) { return "/nonexistent", nil }
		}, true, "run jailer: signal: aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			h, ctx := newHost(t, c.change), deadline(t)
			plan := h.plan(20)
			t.Cleanup(func() { h.remove(t, plan.Host) })
			if c.cgroup {
				timed(t, "cgroup", func() error { return h.cgroups.Create(ctx, plan) })
			}
			timed(t, "prepare", func() error { return h.Prepare(ctx, plan) })
			err := h.Launch(ctx, plan)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			t.Log(err)
		})
	}
}

func TestBadConfigurationIsTold(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	plan := h.plan(21)
	h.launch(t, ctx, plan)
	jail := filepath.Join(os.Getenv("MICROVM_TEST_STATE"), "jails/firecracker", plan.Host, "root")
	if err := os.Remove(filepath.Join(jail, "scratch")); err != nil {
		t.Fatal(err)
	}
	err := h.Start(ctx, plan)
	if err == nil || !strings.Contains(err.Error(), "put /drives/scratch") || !strings.Contains(err.Error(), "status 400") {
		t.Errorf("start: %v", err)
	}
	t.Log(err)
}

func TestDebugConsole(t *testing.T) {
	h, ctx := newHost(t, func(c *firecracker.Config) { c.Debug = true }), deadline(t)
	plan := h.plan(22)
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	timed(t, "hello", func() error { _, err := h.Hello(ctx, plan.Host); return err })
	_, err := h.Hello(ctx, plan.Host)
	if err == nil || !strings.Contains(err.Error(), "console") {
		t.Errorf("a second hello: %v", err)
	}
	t.Log(err)
}
