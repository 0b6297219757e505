package machine

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
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of a graceful stop; after both QEMU is killed.
const (
	powerdownGrace = 25 * time.Second // the host shuts down by itself
	quitGrace      = 3 * time.Second  // QEMU ends by itself
	greetWithin    = 30 * time.Second // QEMU makes its devices
	nobody         = 65534
)

// keeperReady is what the keeper writes to its ready pipe when QEMU runs; anything else is why it does not.
const keeperReady = "ready\n"

// Keep runs the machine in dir until it ends, and writes down how it did: the keeper's whole life. A done ctx asks for a
// graceful stop. ready, when not nil, receives "ready" once QEMU runs, or the reason why it does not, and is closed.
func Keep(ctx context.Context, dir string, ready *os.File) error {
	err := keep(ctx, dir, func() {
		if ready != nil {
			_, _ = io.WriteString(ready, keeperReady) // who does not wait any more does not read
			_ = ready.Close()
			ready = nil
		}
	})
	if err != nil && ready != nil {
		_, _ = io.WriteString(ready, err.Error())
		_ = ready.Close()
	}
	return err
}

func keep(ctx context.Context, dir string, started func()) error {
	lock, err := tryLock(filepath.Join(dir, keeperLock))
	if err != nil {
		return err
	}
	defer lock.Close()
	var l launch
	if err := readJSON(filepath.Join(dir, launchFile), &l); err != nil {
		return err
	}
	serial, err := newBoundedLog(filepath.Join(dir, serialFile), consoleLimit)
	if err != nil {
		return err
	}
	cmd, ours, err := prepareQEMU(dir, l)
	if err != nil {
		return err
	}
	defer ours.Close()
	var complaints boundedBuffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// The parent death signal follows the thread that forked (prctl(2)), so this goroutine keeps its thread to the end.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(serial, out) }) // ends with QEMU
	end := func() error { return errors.Join(cmd.Process.Kill(), cmd.Wait()) }
	q, err := greet(ours, greetWithin)
	if err != nil {
		_ = end()
		return fmt.Errorf("start QEMU: %w: %s", err, complaints.text())
	}
	r := run{Started: time.Now().UTC(), Settings: l.Settings, Release: l.Release, Root: filepath.Base(l.HostRoot)}
	if r.Keeper, err = identify(os.Getpid()); err == nil {
		r.QEMU, err = identify(cmd.Process.Pid)
	}
	if err == nil {
		err = writeJSON(filepath.Join(dir, runFile), r)
	}
	if err != nil {
		return errors.Join(err, end())
	}
	started()

	reason := ""
	gone := make(chan struct{})
	readers.Go(func() { defer close(gone); reason = q.shutdownReason() })
	asked, forced := stopQEMU(ctx, q, cmd.Process, gone)
	readers.Wait()
	werr := cmd.Wait()
	e := classify(asked, forced, reason, cmd.ProcessState.Sys().(syscall.WaitStatus), serial.recent(), complaints.text())
	e.Ended = time.Now().UTC()
	err = errors.Join(writeJSON(filepath.Join(dir, exitFile), e), os.Remove(filepath.Join(dir, runFile)))
	if _, ended := errors.AsType[*exec.ExitError](werr); werr != nil && !ended {
		err = errors.Join(err, werr)
	}
	return err
}

// prepareQEMU opens the disks and makes the command and our end of its control connection.
func prepareQEMU(dir string, l launch) (cmd *exec.Cmd, ours net.Conn, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
		}
	}()
	for _, d := range []struct {
		path string
		flag int
	}{{filepath.Join(l.HostRoot, "host.img"), os.O_RDONLY}, {filepath.Join(dir, dataDisk), os.O_RDWR}, {filepath.Join(dir, dataDisk), os.O_RDONLY}, {filepath.Join(dir, mailboxDisk), os.O_RDONLY}} {
		f, err := os.OpenFile(d.path, d.flag, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("open disk: %w", err)
		}
		files = append(files, f)
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make control connection: %w", err)
	}
	files = append(files, os.NewFile(uintptr(pair[1]), "qmp"))
	end := os.NewFile(uintptr(pair[0]), "qmp")
	ours, err = net.FileConn(end)
	end.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("make control connection: %w", err)
	}
	args := qemuArgs(l)
	cmd = &exec.Cmd{
		Path: "/usr/bin/" + args[0], Args: args, Dir: "/",
		Env:        []string{"PATH=/usr/bin:/bin", "TMPDIR=/var/tmp", "LC_ALL=C"},
		ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{
			Chroot: l.QEMURoot, Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
			Setsid: true, Pdeathsig: syscall.SIGKILL,
		},
	}
	return cmd, ours, nil
}

// stopQEMU waits for QEMU to end (gone), or for ctx, and then ends it step by step. It says whether it was asked to, and
// whether it had to do more than press the power button.
func stopQEMU(ctx context.Context, q *qmp, p *os.Process, gone <-chan struct{}) (asked, forced bool) {
	select {
	case <-gone:
		return false, false
	case <-ctx.Done():
	}
	within := func(d time.Duration) bool {
		select {
		case <-gone:
			return true
		case <-time.After(d):
			return false
		}
	}
	// An error here means that the connection is gone, which gone says too.
	_ = q.send("system_powerdown")
	if within(powerdownGrace) {
		return true, false
	}
	_ = q.send("quit")
	if within(quitGrace) {
		return true, true
	}
	_ = p.Kill() // our own child, not yet waited for: its number is still its own
	<-gone
	return true, true
}

// classify says how a run ended: asked by a stop, reason from QEMU's last SHUTDOWN event, status from wait(2), console the
// end of what the host printed.
func classify(asked, forced bool, reason string, status syscall.WaitStatus, console []byte, complaints string) exit {
	lines := panicLines(console)
	switch {
	case lines != nil:
		detail := ""
		for _, l := range lines {
			if strings.Contains(l, panicMark) {
				detail = strings.TrimSpace(l)
			}
		}
		return exit{Ending: EndPanic, Detail: detail, Lines: lines}
	case asked && forced:
		return exit{Ending: EndAsked, Detail: fmt.Sprintf("the host did not shut down within %.0f s and was ended", powerdownGrace.Seconds())}
	case asked:
		return exit{Ending: EndAsked}
	case status.Signaled():
		return exit{Ending: EndKilled, Detail: fmt.Sprintf("QEMU was killed by signal %d (%s)", status.Signal(), status.Signal())}
	case reason == "guest-shutdown":
		return exit{Ending: EndPoweroff}
	case reason == "guest-reset":
		return exit{Ending: EndReset, Detail: "the host restarted, which ends it"}
	default:
		return exit{Ending: EndFailed, Detail: fmt.Sprintf("QEMU exited with code %d: %s", status.ExitStatus(), complaints)}
	}
}

// boundedBuffer keeps the first 4 KiB of what QEMU complains about.
type boundedBuffer struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p[:min(len(p), 4096-len(b.buf))]...)
	return len(p), nil
}

func (b *boundedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(string(b.buf))
}
