package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of a start's waits, generous: the outer machine may be slow and busy.
const (
	sshWithin    = 3 * time.Minute
	healthWithin = 2 * time.Minute
	startPoll    = 100 * time.Millisecond
	portTries    = 3
)

// Started says what a start did and found.
type Started struct {
	// Already says that the machine was running before.
	Already bool
	// BootToSSH is the time from QEMU's start until SSH answered; 0 when Already.
	BootToSSH time.Duration
	// Pushed says which files were put into the host; nothing with Bare.
	Pushed Pushed
	// Endpoint is the API's; empty with Bare.
	Endpoint Endpoint
}

// Start makes the machine if there is none, starts it if it does not run, puts programs and artifacts into it and starts the
// daemon. On a machine that runs it only brings what changed. Two calls at once are safe: the second waits for the first.
func (m *Machine) Start(ctx context.Context) (Started, error) {
	var out Started
	p := &progress{w: m.cfg.Progress}
	if err := need(ctx, p); err != nil {
		return out, err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return out, fmt.Errorf("make machine directory: %w", err)
	}
	lock, err := waitLock(ctx, m.path(commandLock), func() { p.say("another command works on machine %s: waiting for it", m.cfg.Name) })
	if err != nil {
		return out, err
	}
	defer lock.Close()
	settings, err := m.settle()
	if err != nil {
		return out, err
	}
	if !m.cfg.Bare { // before anything is built or booted
		if err := m.checkPrograms(); err != nil {
			return out, err
		}
	}
	artifacts := m.artifacts(ctx)
	defer artifacts.end()
	out.Already = m.alive()
	if !out.Already {
		if out.BootToSSH, err = m.boot(ctx, p, settings); err != nil {
			return out, err
		}
	}
	if m.cfg.Bare {
		return out, nil
	}
	return out, m.install(ctx, p, artifacts, &out)
}

// settle merges the wanted settings with those that the machine has, and refuses what cannot be changed (now, or at all).
func (m *Machine) settle() (Settings, error) {
	have := Settings{MemoryMiB: min(DefaultMemoryMiB, max(MinMemoryMiB, outerMemoryMiB()-1024)), Cores: DefaultCores, DiskGiB: DefaultDiskGiB}
	err := readJSON(m.path(settingsFile), &have)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return have, err
	}
	want := have
	set := func(to *int, value int) {
		if value != 0 {
			*to = value
		}
	}
	set(&want.MemoryMiB, m.cfg.MemoryMiB)
	set(&want.Cores, m.cfg.Cores)
	set(&want.DiskGiB, m.cfg.DiskGiB)
	if m.cfg.Packages != nil {
		want.Packages = m.cfg.Packages
	}
	if !made {
		return want, nil
	}
	if want.DiskGiB != have.DiskGiB {
		return have, &ValueError{"disk", fmt.Sprintf("%d GiB", want.DiskGiB), fmt.Sprintf("%d: the disk of an existing machine cannot change (microvm machine delete removes it)", have.DiskGiB)}
	}
	same := want.MemoryMiB == have.MemoryMiB && want.Cores == have.Cores && slices.Equal(want.Packages, have.Packages)
	if !same && m.alive() {
		return have, fmt.Errorf("change memory, cores or packages of machine %s: %w", m.cfg.Name, ErrRunning)
	}
	return want, nil
}

// boot brings a machine that does not run to the point where SSH answers.
func (m *Machine) boot(ctx context.Context, p *progress, s Settings) (time.Duration, error) {
	// The last run's keeper may be about to end; and what it left is stale now.
	keeper, err := waitLock(ctx, m.path(keeperLock), func() { p.say("the last run still ends: waiting for it") })
	if err != nil {
		return 0, err
	}
	keeper.Close()
	m.disconnect(ctx)
	for _, name := range []string{runFile, exitFile, endpointFile} {
		if err := os.Remove(m.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("clear the last run: %w", err)
		}
	}
	l, err := m.roots(ctx, p, s)
	if err != nil {
		return 0, err
	}
	if err := m.prepare(ctx, p, s); err != nil {
		return 0, err
	}
	for try := 1; ; try++ {
		ports, err := choosePorts([]int{s.SSHPort, s.APIPort}, 2)
		if err != nil {
			return 0, err
		}
		s.SSHPort, s.APIPort = ports[0], ports[1]
		l.Settings = s
		if err := errors.Join(writeJSON(m.path(settingsFile), s), writeJSON(m.path(launchFile), l)); err != nil {
			return 0, err
		}
		err = m.keep(ctx)
		if err == nil {
			break
		}
		if try == portTries || !strings.Contains(err.Error(), "host forwarding") { // QEMU's word for a port that is taken
			return 0, err
		}
		s.SSHPort, s.APIPort = 0, 0
	}
	began := time.Now()
	err = p.step(fmt.Sprintf("machine %s: booting, waiting for SSH on port %d", m.cfg.Name, s.SSHPort), func() error { return m.waitSSH(ctx, s.SSHPort) })
	if err != nil {
		return 0, fmt.Errorf("start machine %s: %w\nthe end of its console:%s", m.cfg.Name, err, lastLines(m.path(serialFile), 20))
	}
	return time.Since(began), nil
}

// roots builds what is missing of the two roots, side by side, and puts the kernel where QEMU can open it.
func (m *Machine) roots(ctx context.Context, p *progress, s Settings) (launch, error) {
	l := launch{Name: m.cfg.Name}
	var qemuErr, hostErr error
	var wait sync.WaitGroup
	wait.Go(func() {
		qemuErr = p.step("building QEMU's root (Debian "+qemuSuite+" packages)", func() (err error) {
			l.QEMURoot, err = qemuRoot().ensure(ctx, m.cfg.Cache, p)
			return err
		})
	})
	wait.Go(func() {
		hostErr = p.step("building the host's root (Debian "+hostSuite+" packages)", func() (err error) {
			base, err := hostBase(s.Packages).ensure(ctx, m.cfg.Cache, p)
			if err == nil {
				l.HostRoot, err = hostRoot(base).ensure(ctx, m.cfg.Cache, p)
			}
			return err
		})
	})
	wait.Wait()
	if err := errors.Join(qemuErr, hostErr); err != nil {
		return l, err
	}
	release, err := os.ReadFile(filepath.Join(l.QEMURoot, "qemu-release"))
	if err != nil {
		return l, fmt.Errorf("read QEMU's release: %w", err)
	}
	l.Release, l.Boot = string(release), "/vm/"+filepath.Base(l.HostRoot)
	return l, placeKernel(l)
}

// placeKernel links kernel and initrd into QEMU's root: -kernel takes names only.
func placeKernel(l launch) error {
	to := filepath.Join(l.QEMURoot, l.Boot)
	if exists(to) {
		return nil
	}
	partial, err := os.MkdirTemp(filepath.Dir(to), ".partial-")
	if err != nil {
		return fmt.Errorf("place kernel: %w", err)
	}
	err = os.Chmod(partial, 0o755)
	for _, name := range []string{"vmlinuz", "initrd"} {
		err = errors.Join(err, os.Link(filepath.Join(l.HostRoot, name), filepath.Join(partial, name)), os.Chmod(filepath.Join(partial, name), 0o644))
	}
	if err == nil {
		if err = os.Rename(partial, to); err != nil && exists(to) { // another start was first
			return os.RemoveAll(partial)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("place kernel: %w", err), os.RemoveAll(partial))
	}
	return nil
}

// prepare makes keys and disks that are not there yet, and writes this boot's seed.
func (m *Machine) prepare(ctx context.Context, p *progress, s Settings) error {
	for _, key := range []string{"id_ed25519", "host_ed25519"} {
		if exists(m.path(key + ".pub")) {
			continue
		}
		_ = os.Remove(m.path(key)) // a half of an interrupted start
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "microvm-"+m.cfg.Name, "-f", m.path(key)).CombinedOutput(); err != nil {
			return fmt.Errorf("make key: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	if !exists(m.path(dataDisk)) {
		partial := m.path(dataDisk + ".partial")
		err := p.step("making the data disk", func() error {
			_ = os.Remove(partial)
			var log bytes.Buffer
			if err := command(ctx, &log, "mkfs.ext4", "-q", "-m", "0", "-i", "32768", partial, fmt.Sprintf("%dG", s.DiskGiB)); err != nil {
				return fmt.Errorf("make data disk: %w: %s", err, bytes.TrimSpace(log.Bytes()))
			}
			return os.Rename(partial, m.path(dataDisk))
		})
		if err != nil {
			return err
		}
	}
	box, err := os.OpenFile(m.path(mailboxDisk), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make mailbox: %w", err)
	}
	defer box.Close()
	if err := errors.Join(box.Truncate(mailboxSize), emptyMailbox(box)); err != nil {
		return err
	}
	return m.seed(ctx, box)
}

// keep starts the keeper, which outlives this process, and waits until QEMU runs.
func (m *Machine) keep(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	log, err := os.OpenFile(m.path(keeperLog), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Join(err, w.Close())
	}
	defer log.Close()
	// Not bound to ctx: the keeper lives on.
	cmd := exec.Command(m.cfg.Keeper[0], append(slices.Clone(m.cfg.Keeper[1:]), m.dir)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }() // takes its exit code, should it end before this process does
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	text, err := io.ReadAll(r)
	switch {
	case string(text) == keeperReady:
		return nil
	case context.Cause(ctx) != nil:
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return context.Cause(ctx)
	case len(text) > 0:
		return errors.New(string(text))
	default:
		return fmt.Errorf("start keeper: it ended at once: %w%s", err, lastLines(m.path(keeperLog), 5))
	}
}

// waitSSH waits for the host's SSH banner, then for a connection. QEMU accepts for the host as soon as it runs, so only what
// is read counts.
func (m *Machine) waitSSH(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sshWithin, fmt.Errorf("SSH did not answer within %.0f s", sshWithin.Seconds()))
	defer cancel()
	for {
		if !m.alive() {
			s, err := m.Status(ctx)
			return errors.Join(fmt.Errorf("it ended: %s", s.Reason), err)
		}
		if banner(ctx, port) {
			return m.connect(ctx, port)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(startPoll):
		}
	}
}

func banner(ctx context.Context, port int) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	defer conn.Close()
	buf := make([]byte, 4)
	if conn.SetReadDeadline(time.Now().Add(2*time.Second)) != nil {
		return false
	}
	_, err = io.ReadFull(conn, buf)
	return err == nil && string(buf) == "SSH-"
}
