package guest

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Work is the worker: it listens on vsock, says hello, and serves until that
// fails. version is the build's, for the hello. Its caller then ends the
// process, and with it PID 1 ends the microVM.
func Work(version string) error {
	memory, err := guestMemory()
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	if err := nameThread("guestd"); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	keep := keepTotal(memory)
	debug.SetMemoryLimit(agentBase/2 + keep)
	random, err := os.OpenFile("/dev/random", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	defer func() { _ = random.Close() }()
	score, err := protect()
	if err != nil {
		return fmt.Errorf("work: protect the agent from the OOM killer: %w", err)
	}
	defer func() { _ = score.Close() }()
	agent, err := New(Config{
		Version: version, Cgroup: programGroup, KeepTotal: keep,
		Apply: (&identity{random: random}).apply,
	})
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	agent.oomScore = score
	listener, err := listenVsock(guestwire.AgentPort)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	hello := guestwire.Hello{Protocol: guestwire.Protocol, Version: version}
	served := make(chan error, 1)
	go func() { served <- agent.Serve(listener) }()
	if err := sayHello(hello); err != nil {
		closed := agent.Close()
		return fmt.Errorf("work: %w", errors.Join(err, closed, <-served))
	}
	return <-served
}

// identity is what Configure changes in a guest that is a microVM.
type identity struct {
	random *os.File // /dev/random from before the image's programs could touch it
	done   int      // steps of the root file system that are done; owner: apply
}

// apply is Config.Apply of the worker. The root file system is put together at
// the first generation and not at boot, so that a snapshot can be taken before
// scratch is mounted.
func (i *identity) apply(conf guestwire.Configure) error {
	for i.done < len(rootSteps) {
		if err := rootSteps[i.done](); err != nil {
			return fmt.Errorf("put root together: %w", err)
		}
		i.done++
	}
	for _, step := range []func(guestwire.Configure) error{setClock, i.stir, setHostname, setMachineID} {
		if err := step(conf); err != nil {
			return fmt.Errorf("set identity: %w", err)
		}
	}
	return nil
}

// rootSteps make the guest's root file system, each once.
var rootSteps = []func() error{
	mountScratch,
	mountOverlay,
	mountGuest,
	linkDevices,
	enterRoot,
}

func mountScratch() error {
	file, err := waitForDevice(guestwire.ScratchDevice)
	if err != nil {
		return err
	}
	_ = file.Close()
	// The scratch lives as long as the microVM, so nothing is gained by
	// initialising its inode tables in the background or by access times.
	return mount{guestwire.ScratchDevice, scratchMount, "ext4", unix.MS_NODEV | unix.MS_NOATIME, "noinit_itable"}.do()
}

// mountOverlay lays scratch over the image. volatile: fsync of a program
// returns at once, for after the loss of the machine there is no scratch to
// come back to.
func mountOverlay() error {
	for _, dir := range []string{"/upper", "/work"} {
		if err := os.Mkdir(scratchMount+dir, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	data := "lowerdir=" + imageMount + ",upperdir=" + scratchMount + "/upper,workdir=" + scratchMount + "/work,volatile"
	return mount{"overlay", rootMount, "overlay", 0, data}.do()
}

func mountGuest() error {
	err := mountAll([]mount{
		{"proc", rootMount + "/proc", "proc", quiet, ""},
		{"sysfs", rootMount + "/sys", "sysfs", quiet, ""},
		{"cgroup2", rootMount + cgroupMount, "cgroup2", quiet, ""},
		{"devtmpfs", rootMount + "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", rootMount + "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", rootMount + "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", rootMount + "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	})
	if err != nil {
		return err
	}
	// /tmp stays on scratch: in RAM it would eat what programs have.
	if err := os.MkdirAll(rootMount+"/tmp", 0o755); err != nil {
		return err
	}
	return os.Chmod(rootMount+"/tmp", 0o777|os.ModeSticky)
}

// linkDevices adds what udev would: the usual links, and devices that
// programs of any user may open elsewhere too.
func linkDevices() error {
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2",
	} {
		if err := os.Symlink(target, rootMount+"/dev/"+name); err != nil && !os.IsExist(err) {
			return err
		}
	}
	for _, name := range []string{"fuse", "net/tun"} {
		if err := os.Chmod(rootMount+"/dev/"+name, 0o666); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// enterRoot moves the new root over the initial RAM file system, so that
// programs may make user namespaces (a plain chroot forbids them), and makes
// it the worker's. PID 1 stays where it is.
func enterRoot() error {
	if err := unix.Chdir(rootMount); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return unix.Chdir("/")
}
