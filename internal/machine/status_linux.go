package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// State of a machine.
type State string

// The states.
const (
	StateAbsent  State = "absent"
	StateStopped State = "stopped"
	StateRunning State = "running"
	StateCrashed State = "crashed"
)

var (
	// ErrNotRunning is returned by whatever needs a running machine.
	ErrNotRunning = errors.New("machine is not running (start it with: microvm machine start)")
	// ErrRunning is returned by Delete without force.
	ErrRunning = errors.New("machine is running (stop it with: microvm machine stop)")
	// ErrGone says that the machine ended while a command ran in it.
	ErrGone = errors.New("machine ended meanwhile (see: microvm machine status)")
)

// Status is what a machine is at one moment.
type Status struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"` // of a crash, or of a stop that was not plain
	// Console holds the kernel's panic as it stood on the host's console.
	Console       []string   `json:"console,omitempty"`
	PID           int        `json:"pid,omitempty"` // QEMU's
	KeeperPID     int        `json:"keeper_pid,omitempty"`
	Started       *time.Time `json:"started,omitempty"`
	Ended         *time.Time `json:"ended,omitempty"`
	UptimeSeconds int64      `json:"uptime_seconds,omitempty"`
	SSHPort       int        `json:"ssh_port,omitempty"`
	APIPort       int        `json:"api_port,omitempty"`
	URL           string     `json:"url,omitempty"`
	MemoryMiB     int        `json:"memory_mib,omitempty"`
	Cores         int        `json:"cores,omitempty"`
	DiskGiB       int        `json:"disk_gib,omitempty"`
	DiskUsedBytes int64      `json:"disk_used_bytes,omitempty"` // of the outer machine's disk, by this machine's directory
	QEMURelease   string     `json:"qemu_release,omitempty"`
	HostKernel    string     `json:"host_kernel,omitempty"`
	Directory     string     `json:"directory"`
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

// live reads the running machine's record, or nil when no machine runs.
func (m *Machine) live() *run {
	var r run
	if readJSON(m.path(runFile), &r) != nil || !r.QEMU.Alive() || !r.Keeper.Alive() {
		return nil
	}
	return &r
}

func (m *Machine) alive() bool { return m.live() != nil }

func (m *Machine) running() (*run, error) {
	if r := m.live(); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("use machine %s: %w", m.cfg.Name, ErrNotRunning)
}

// Status reads what the machine is. It asks neither QEMU nor the host, so it answers when both hang.
func (m *Machine) Status(context.Context) (Status, error) {
	s := Status{Name: m.cfg.Name, State: StateAbsent, Directory: m.dir}
	var made Settings
	switch err := readJSON(m.path(settingsFile), &made); {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("read machine %s: %w", m.cfg.Name, err)
	}
	s.MemoryMiB, s.Cores, s.DiskGiB = made.MemoryMiB, made.Cores, made.DiskGiB
	s.DiskUsedBytes = diskUse(m.dir)
	if e, err := ReadEndpoint(m.cfg.Dir, m.cfg.Name); err == nil {
		s.URL = e.URL
	}
	if r := m.live(); r != nil {
		s.State, s.PID, s.KeeperPID, s.Started = StateRunning, r.QEMU.PID, r.Keeper.PID, &r.Started
		s.UptimeSeconds = int64(time.Since(r.Started).Seconds())
		s.SSHPort, s.APIPort, s.QEMURelease = r.Settings.SSHPort, r.Settings.APIPort, r.Release
		s.HostKernel = hostKernel(filepath.Join(m.cfg.Cache, r.Root, "packages.txt"))
		return s, nil
	}
	if exists(m.path(runFile)) {
		s.State, s.Reason = StateCrashed, "its keeper was killed, or this machine restarted"
		return s, nil
	}
	var e exit
	if readJSON(m.path(exitFile), &e) != nil {
		s.State = StateStopped // made, never run
		return s, nil
	}
	s.State, s.Reason = e.state()
	s.Console, s.Ended = e.Lines, &e.Ended
	return s, nil
}

// state says what an ending left, and why.
func (e exit) state() (State, string) {
	switch e.Ending {
	case EndAsked:
		return StateStopped, e.Detail
	case EndPoweroff:
		return StateStopped, "the host powered itself off"
	case EndPanic:
		return StateCrashed, "host kernel panic: " + e.Detail
	default:
		return StateCrashed, e.Detail
	}
}

// hostKernel reads the kernel's release from the host root's package list: the kernel package itself is only unpacked, so
// its release stands in the root's own record.
func hostKernel(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "linux-image\t"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// diskUse sums the blocks of a directory's files, in bytes.
func diskUse(dir string) int64 {
	var sum int64
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return sum
}
