package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// A device may appear after PID 1 has started: deviceWait bounds the wait for
// it and devicePoll is how often its name is looked for.
const (
	deviceWait = 20 * time.Second
	devicePoll = time.Millisecond
)

// Where Boot puts things in the initial RAM file system.
const (
	imageMount   = "/image"
	scratchMount = "/scratch"
	rootMount    = "/root"
	cgroupMount  = "/sys/fs/cgroup"
	agentGroup   = cgroupMount + "/agent"
	programGroup = cgroupMount + "/microvm"
)

// WorkerArgument is what Boot starts its own binary with, to be the worker.
const WorkerArgument = "worker"

// Boot is PID 1. It prepares the initial RAM file system, starts the worker,
// and reaps orphans until the worker ends; then it reboots, which ends the
// microVM. It returns only an error from before that.
func Boot() error {
	for _, step := range []func() error{
		mountKernel, linkDevices, makeGroups, raiseLoopback, raiseLimits, mountImage,
	} {
		if err := step(); err != nil {
			return fmt.Errorf("boot: %w", err)
		}
	}
	worker, err := startWorker()
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	reapUntil(worker)
	return Reboot()
}

// Reboot ends the microVM: with reboot=k the VMM exits.
func Reboot() error {
	return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// mount is one line of a table of mounts.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// guestMounts are moved, with what is mounted below them, from the initial RAM
// file system into the guest's root.
var guestMounts = []string{"/proc", "/sys", "/dev", "/run"}

func mountKernel() error {
	for _, m := range []mount{
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
		{"cgroup2", cgroupMount, "cgroup2", quiet, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// linkDevices adds what udev would: the usual links, and devices that
// programs of any user may open elsewhere too.
func linkDevices() error {
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !os.IsExist(err) {
			return err
		}
	}
	for _, name := range []string{"fuse", "net/tun"} {
		if err := os.Chmod("/dev/"+name, 0o666); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	return nil
}

// raiseLimits lets programs open as many files as they do elsewhere; the soft
// limit of 1024 is what select(2) can hold.
func raiseLimits() error {
	err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1024, Max: 512 << 10})
	if err != nil {
		return fmt.Errorf("raise limit of open files: %w", err)
	}
	unix.Umask(0o022)
	return nil
}

func mountImage() error {
	kind, err := waitForImage(guestwire.ImageDevice)
	if err != nil {
		return err
	}
	return mount{guestwire.ImageDevice, imageMount, kind, unix.MS_RDONLY, ""}.do()
}

// waitForImage waits until the device is there and says which file system it
// holds.
func waitForImage(device string) (kind string, err error) {
	file, err := waitForDevice(device)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	return fileSystemKind(file)
}

func waitForDevice(device string) (*os.File, error) {
	deadline := time.Now().Add(deviceWait)
	for {
		file, err := os.Open(device)
		if err == nil {
			return file, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("wait for device: %w", err)
		}
		time.Sleep(devicePoll)
	}
}

// fileSystemKind tells erofs from ext4 by their magic numbers (Linux:
// include/uapi/linux/magic.h; both superblocks lie at 1024).
func fileSystemKind(device io.ReaderAt) (string, error) {
	const (
		superblock = 1024
		ext4Magic  = 0x38 // offset in the superblock
	)
	head := make([]byte, 64)
	if _, err := device.ReadAt(head, superblock); err != nil {
		return "", fmt.Errorf("read superblock: %w", err)
	}
	switch {
	case bytes.Equal(head[:4], []byte{0xe2, 0xe1, 0xf5, 0xe0}):
		return "erofs", nil
	case binary.LittleEndian.Uint16(head[ext4Magic:]) == 0xef53:
		return "ext4", nil
	}
	return "", errors.New("image is neither erofs nor ext4")
}

// workerSlack is how late the kernel may wake a thread of the worker that
// sleeps: one tick. While Go code runs, its runtime's monitor sleeps for 20 us
// at a time; each such wake-up is a timer to set and an interrupt to take, both
// of which leave the virtual machine, and they were a quarter of the time that
// an execution took. With slack they ride on the tick. Programs get the usual
// slack: see Agent.fork.
const workerSlack = 4 * time.Millisecond

// startWorker starts this binary again. PID 1 and worker are two processes so
// that reaping orphans never takes the exit code of a program.
func startWorker() (pid int, err error) {
	if err := setTimerSlack(workerSlack); err != nil {
		return 0, err
	}
	return syscall.ForkExec("/proc/self/exe", []string{"guestd", WorkerArgument}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// reapUntil collects every child of PID 1, orphans too, until worker ends.
func reapUntil(worker int) {
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if pid == worker || errors.Is(err, unix.ECHILD) {
			return
		}
	}
}
