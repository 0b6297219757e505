// Package harness is what tests that boot real microVMs share: a daemon of
// their own beside whatever runs on the host, a client for it, and the leak
// census around it. It runs on a host with KVM, as root.
//
// Nothing is skipped: where something is missing, Main fails and says what.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// Where a prepared host keeps things: "microvm setup" and "microvm machine
// start" put them there.
const (
	Programs  = "/usr/local/bin"
	Installed = "/var/lib/microvm"
)

// Times in an emulated host are some twenty times those of hardware, so every
// wait is long; a test that hangs is ended by go test's own timeout.
const (
	readyWait = 2 * time.Minute
	stopWait  = 2 * time.Minute
)

// Daemon is a running microvmd.
type Daemon struct {
	Instance string
	StateDir string
	Socket   string
	Client   *microvm.Client
	LogPath  string

	flags  []string
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
}

// Main checks that this is a host for e2e tests and runs them.
func Main(m *testing.M) {
	if err := checkHost(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e tests need a prepared host (make test-e2e):", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func checkHost() error {
	var all []error
	if os.Getuid() != 0 {
		all = append(all, errors.New("not root"))
	}
	for _, path := range []string{
		"/dev/kvm", Programs + "/microvmd", Programs + "/microvm", Programs + "/census",
		Installed + "/bin/firecracker", Installed + "/kernel/vmlinux", Installed + "/guest/guestd", Installed + "/images/python",
	} {
		if _, err := os.Stat(path); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// Start makes a state directory of its own that shares the installed files by
// hard links, starts a daemon there, and ends it with its sandboxes when the test
// ends. After that nothing of it may be left.
func Start(t testing.TB, instance string, flags ...string) *Daemon {
	t.Helper()
	d := &Daemon{
		Instance: instance,
		StateDir: filepath.Join(Installed, "e2e", instance),
		Socket:   filepath.Join("/run/microvm-e2e", instance+".sock"),
		LogPath:  filepath.Join(os.TempDir(), "microvmd-"+instance+".log"),
	}
	for _, path := range []string{d.StateDir, d.LogPath} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "kernel", "guest", "images"} {
		if err := link(filepath.Join(Installed, dir), filepath.Join(d.StateDir, dir)); err != nil {
			t.Fatal(err)
		}
	}
	before := d.census(t, "take")
	d.Run(t, flags...)
	t.Cleanup(func() {
		d.end(t)
		d.compare(t, before)
		if t.Failed() {
			log, _ := os.ReadFile(d.LogPath)
			t.Logf("the daemon's log:\n%s", log[max(0, len(log)-16<<10):])
		}
		_ = os.RemoveAll(d.StateDir)
	})
	return d
}

// Run starts the daemon and waits until it answers. Without flags it gets those
// that it had last.
func (d *Daemon) Run(t testing.TB, flags ...string) {
	t.Helper()
	if len(flags) > 0 {
		d.flags = flags
	}
	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()
	if err := d.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the daemon, which has ended, once more, and returns when it
// answers. Its log goes on.
func (d *Daemon) Restart(ctx context.Context) error {
	log, err := os.OpenFile(d.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	args := append([]string{
		"--instance", d.Instance, "--state-dir", d.StateDir, "--socket", d.Socket, "--listen", "",
		"--uid-base", fmt.Sprint(1_950_000_000), "--allow-unsupported-firecracker", "--log-level", "debug",
		"--templates", "0", // one in the making is a leak to a census that does not wait; who wants some says so
	}, d.flags...)
	cmd := exec.Command(filepath.Join(Programs, "microvmd"), args...) //nolint:gosec,noctx // it outlives the call
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	d.cmd, d.exited = cmd, exited
	go func() { _ = cmd.Wait(); close(exited) }()
	d.Client = microvm.New(microvm.WithSocket(d.Socket))
	for {
		if _, err := d.Client.Health(ctx); err == nil {
			return nil
		}
		select {
		case <-exited:
			text, _ := os.ReadFile(d.LogPath)
			return fmt.Errorf("microvmd ended: %v\n%s", cmd.ProcessState, text[max(0, len(text)-16<<10):])
		case <-ctx.Done():
			return errors.New("microvmd does not answer")
		case <-time.After(20 * time.Millisecond): // between two tries
		}
	}
}

// end deletes what still runs, and stops the daemon. One that a failed test left
// dead is started once more for that.
func (d *Daemon) end(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWait)
	defer cancel()
	if d.ended() {
		if err := d.Restart(ctx); err != nil {
			t.Error(err)
			return
		}
	}
	for sb, err := range d.Client.Sandboxes.All(ctx, microvm.ListSandboxesParams{State: Ptr(microvm.SandboxStateRunning)}) {
		if err == nil {
			_, err = d.Client.Sandboxes.Delete(ctx, sb.ID)
		}
		if err != nil {
			t.Error(err)
		}
	}
	d.Stop(t)
}

func (d *Daemon) ended() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// Stop ends the daemon as an init system would and waits for its end.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	if err := d.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
}

// Kill ends the daemon with SIGKILL and waits for its end.
func (d *Daemon) Kill(t testing.TB) {
	t.Helper()
	if err := d.Signal(os.Kill); err != nil {
		t.Fatal(err)
	}
}

// Signal sends the daemon a signal that ends it, and waits for its end.
func (d *Daemon) Signal(signal os.Signal) error {
	if err := d.cmd.Process.Signal(signal); err != nil {
		return err
	}
	select {
	case <-d.exited:
		return nil
	case <-time.After(stopWait):
		_ = d.cmd.Process.Kill()
		return errors.New("microvmd does not stop")
	}
}

// PID is the daemon's process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// compare fails the test for everything that is on the host now and was not
// when the census file was taken.
func (d *Daemon) compare(t testing.TB, before string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(Programs, "census"), "compare", before, "--state-dir", d.StateDir).CombinedOutput()
	if err != nil {
		t.Errorf("leak census: %v\n%s", err, out)
	}
}

// Census takes a census now and returns a function that fails the test for
// whatever has been added since.
func (d *Daemon) Census(t testing.TB) (check func()) {
	t.Helper()
	before := d.census(t, "take")
	return func() { t.Helper(); d.compare(t, before) }
}

func (d *Daemon) census(t testing.TB, verb string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(Programs, "census"), verb, "--state-dir", d.StateDir)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("census: %v\n%s", err, stderr.String())
	}
	path := filepath.Join(t.TempDir(), "census.json")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// link copies a tree by hard links: the state directory of a daemon is one
// file system.
func link(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return os.Link(path, target)
	})
}
