package contract

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	patience = time.Minute           // for anything that ends by itself; a busy machine is slow
	again    = 10 * time.Millisecond // between two looks
)

var programs string // directory of the built microvmd and microvm

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "contract tests:", err)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getuid() != 0 {
		return 1, errors.New("run as root: the daemon's images and socket are root's")
	}
	// Programs of a daemon that was killed become our children, so that none
	// of them outlives its test.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("become subreaper: %w", err)
	}
	programs, err = os.MkdirTemp("", "mvbin")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	build := exec.Command("go", "build", "-tags", "fakevmm", "-o", programs, "../cmd/microvmd", "../cmd/microvm")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return 1, fmt.Errorf("build programs: %w", err)
	}
	return m.Run(), nil
}

// daemon is a microvmd with a state directory of its own.
type daemon struct {
	dir    string // its state directory
	socket string
	addr   string // of its TCP listener, chosen by the kernel at each start
	key    string // the admin key
	flags  []string

	cmd    *exec.Cmd
	log    *daemonLog
	exited chan struct{} // closed when cmd has been waited for
}

// start makes a state directory with one image, python, and starts a daemon on
// it. When the test ends the daemon is stopped, and must have left nothing.
func start(t *testing.T, flags ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "mv") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{dir: dir, socket: filepath.Join(dir, "s"), flags: flags}
	addImage(t, filepath.Join(dir, "images", "python"))
	d.configure(t, nil)
	t.Cleanup(func() {
		if d.running() {
			if code := d.stop(t); code != 0 {
				t.Errorf("the daemon ended with %d", code)
			}
			d.checkNoProgram(t)
		}
		d.killPrograms(t)
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log.text())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	d.run(t)
	return d
}

// addImage puts an image there as the recipes do. Its file system is never
// looked at: the fake's guests are directories of this machine.
func addImage(t *testing.T, dir string) {
	t.Helper()
	content := []byte("a root filesystem")
	digest := sha256.Sum256(content)
	about, err := json.Marshal(map[string]any{
		"id": filepath.Base(dir), "language": "python", "language_version": "3.13", "arch": runtime.GOARCH,
		"size_bytes": len(content), "digest": "sha256:" + hex.EncodeToString(digest[:]), "format": "erofs",
		"env": map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}, "workdir": "/workspace",
		"uid": 1000, "gid": 1000, "user": "user", "debian_release": "trixie", "packages_count": 1,
	})
	err = errors.Join(err, os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "image.json"), about, 0o644), os.WriteFile(filepath.Join(dir, "rootfs.erofs"), content, 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// settings are what the configuration file of every daemon has. It drains: a fake
// microVM is a part of its daemon, and cannot be left to the next one.
var settings = map[string]string{
	"drain": "true", "slots": "16", "vcpus": "32", "mem-mib": "16384", "max-mem-mib": "2048", "max-vcpus": "4",
}

func (d *daemon) config() string { return filepath.Join(d.dir, "microvmd.yaml") }

// configure writes the configuration file: settings, and these before them.
func (d *daemon) configure(t *testing.T, other map[string]string) {
	t.Helper()
	all := maps.Clone(settings)
	maps.Copy(all, other)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s: %s\n", name, all[name])
	}
	if err := os.WriteFile(d.config(), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// command is a microvmd on this state directory; later flags win.
func (d *daemon) command(flags ...string) *exec.Cmd {
	args := []string{"--config", d.config(), "--state-dir", d.dir, "--socket", d.socket, "--listen", "127.0.0.1:0", "--log-format", "json"}
	return exec.Command(filepath.Join(programs, "microvmd"), append(append(args, d.flags...), flags...)...)
}

// run starts the daemon and returns when it says that it is ready.
func (d *daemon) run(t *testing.T) {
	t.Helper()
	d.cmd, d.log, d.exited = d.command(), newDaemonLog(), make(chan struct{})
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, exited := d.cmd, d.exited
	go func() { _ = cmd.Wait(); close(exited) }()
	select {
	case d.addr = <-d.log.ready:
	case <-d.exited:
		t.Fatalf("microvmd: %v\n%s", d.cmd.ProcessState, d.log.text())
	case <-time.After(patience):
		t.Fatalf("microvmd is not ready\n%s", d.log.text())
	}
	key, err := os.ReadFile(filepath.Join(d.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	d.key = strings.TrimSpace(string(key))
}

func (d *daemon) running() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// stop ends the daemon as an init system would, and returns its exit code.
func (d *daemon) stop(t *testing.T) int {
	t.Helper()
	return d.signal(t, syscall.SIGTERM)
}

// kill ends the daemon as a crash would, and the programs in its fake microVMs:
// the real ones end when their sandboxes are reaped.
func (d *daemon) kill(t *testing.T) {
	t.Helper()
	d.signal(t, syscall.SIGKILL)
	d.killPrograms(t)
}

func (d *daemon) signal(t *testing.T, s os.Signal) int {
	t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	select {
	case <-d.exited:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		t.Fatalf("microvmd does not end\n%s", d.log.text())
	}
	return d.cmd.ProcessState.ExitCode()
}

// programs lists the processes of the daemon's fake microVMs: all that work
// below its state directory.
func (d *daemon) programs() (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		var pid int
		if _, err := fmt.Sscanf(link, "/proc/%d/cwd", &pid); err != nil {
			continue
		}
		if dir, err := os.Readlink(link); err == nil && strings.HasPrefix(dir, d.dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (d *daemon) checkNoProgram(t *testing.T) {
	t.Helper()
	if left := d.programs(); len(left) > 0 {
		t.Errorf("programs left: %v", left)
	}
}

// killPrograms ends what a killed daemon left, and waits for each: it is our
// child by then.
func (d *daemon) killPrograms(t *testing.T) {
	t.Helper()
	for _, pid := range d.programs() {
		_ = unix.Kill(pid, unix.SIGKILL)
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) {
			t.Errorf("wait for program %d: %v", pid, err)
		}
	}
}

func (d *daemon) url() string { return "http://" + d.addr }

// local is a client by the socket, remote one by TCP and key. None repeats.
func (d *daemon) local() *microvm.Client {
	return microvm.New(microvm.WithSocket(d.socket), microvm.WithMaxRetries(0))
}

func (d *daemon) remote() *microvm.Client {
	return microvm.New(microvm.WithURL(d.url()), microvm.WithAPIKey(d.key), microvm.WithMaxRetries(0))
}

// eventually looks until look is content.
func eventually(t *testing.T, what string, look func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !look() {
		select {
		case <-deadline:
			t.Fatalf("not in %s: %s", patience, what)
		case <-time.After(again):
		}
	}
}

func ptr[T any](v T) *T { return &v }

// daemonLog takes the daemon's output, and tells when it is ready.
type daemonLog struct {
	ready chan string // the TCP address, once

	mu   sync.Mutex
	all  bytes.Buffer // guarded by mu
	rest []byte       // guarded by mu: a line that has begun
}

func newDaemonLog() *daemonLog { return &daemonLog{ready: make(chan string, 1)} }

func (l *daemonLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Write is called by one goroutine at a time.
func (l *daemonLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(data)
	l.rest = append(l.rest, data...)
	reader := bufio.NewReader(bytes.NewReader(l.rest))
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			l.rest = bytes.Clone(line)
			return len(data), nil
		}
		var entry struct{ Msg, Listen string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "ready" {
			l.ready <- entry.Listen
		}
	}
}
