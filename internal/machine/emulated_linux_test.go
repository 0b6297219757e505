//go:build emulated

package machine

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEmulatedHost boots real machines: its steps are one life, in order.
func TestEmulatedHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	cache := os.Getenv("MICROVM_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(user, "microvm")
	}
	m, err := Open(Config{Name: "e2e", Dir: base, Cache: cache, Bare: true, MemoryMiB: 2048, DiskGiB: 8, Keeper: []string{self, keeperArgument}, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if exists(m.Directory()) {
			if err := m.Delete(context.Background(), true); err != nil {
				t.Error(err)
			}
		}
	})
	state := func(t *testing.T, want State) Status {
		t.Helper()
		s, err := m.Status(ctx)
		if err != nil || s.State != want {
			t.Fatalf("status: %+v, %v; want %s", s, err, want)
		}
		return s
	}
	start := func(t *testing.T) Started {
		t.Helper()
		s, err := m.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("start: already %v, boot to SSH %.1f s", s.Already, s.BootToSSH.Seconds())
		return s
	}
	step := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.FailNow()
		}
	}

	state(t, StateAbsent)
	start(t)
	step("start twice does nothing", func(t *testing.T) {
		pid := state(t, StateRunning).PID
		began := time.Now()
		if s := start(t); !s.Already || state(t, StateRunning).PID != pid {
			t.Fatalf("second start: %+v", s)
		}
		t.Logf("second start took %.2f s", time.Since(began).Seconds())
		if err := Keep(ctx, m.Directory(), nil); !errors.Is(err, errLocked) {
			t.Fatalf("second keeper: %v", err)
		}
		if err := m.Delete(ctx, false); !errors.Is(err, ErrRunning) {
			t.Fatalf("delete while running: %v", err)
		}
	})
	step("exit codes and words", func(t *testing.T) {
		for _, code := range []int{0, 7, 255} {
			got, err := m.Shell(ctx, false, nil, nil, nil, "sh", "-c", "exit "+strconv.Itoa(code))
			if err != nil || got != code {
				t.Errorf("exit %d: got %d, %v", code, got, err)
			}
		}
		var out bytes.Buffer
		if _, err := m.Shell(ctx, false, strings.NewReader("in"), &out, nil, "sh", "-c", `printf '<%s>' "$@"; cat`, "sh", "a b", "", `it's "$HOME"`); err != nil || out.String() != `<a b><><it's "$HOME">in` {
			t.Errorf("words: %q, %v", out.String(), err)
		}
	})
	step("the host is what a host has to be", func(t *testing.T) {
		out, err := m.Run(ctx, "sh", "-ec", `
			systemctl is-system-running --wait; test -c /dev/kvm; test -c /dev/net/tun; nft list ruleset; mountpoint -q /var/lib/microvm
			for c in cpu memory pids io; do grep -qw $c /sys/fs/cgroup/cgroup.controllers; done
			systemctl start microvm-sandboxes.service; cd /sys/fs/cgroup/microvm.slice/microvm-sandboxes.service
			for c in cpu memory pids io; do grep -qw $c cgroup.subtree_control; done; mkdir sb-1; systemctl daemon-reload; test -e sb-1/memory.max; rmdir sb-1`)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	})
	step("nothing gets out", func(t *testing.T) {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if out, err := m.Run(ctx, "sh", "-c", "curl -s -m 3 http://10.0.2.2:"+port+"; test $? -eq 28 -o $? -eq 7"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Millisecond))
		if c, err := l.Accept(); err == nil {
			c.Close()
			t.Fatal("the host reached the outer machine")
		}
	})
	step("push", func(t *testing.T) { testPush(ctx, t, m) })
	step("programs and daemon", func(t *testing.T) { testPrograms(ctx, t, m, self) })
	step("QEMU killed", func(t *testing.T) {
		s := state(t, StateRunning)
		syscall.Kill(s.PID, syscall.SIGKILL)
		awaitEnd(ctx, t, m)
		if s := state(t, StateCrashed); !strings.Contains(s.Reason, "signal 9") {
			t.Fatalf("reason: %s", s.Reason)
		}
		if _, err := m.Run(ctx, "true"); !errors.Is(err, ErrNotRunning) {
			t.Fatalf("run after the end: %v", err)
		}
		start(t)
		if out, err := m.Run(ctx, "sha256sum", "/var/lib/microvm/big"); err != nil {
			t.Fatalf("the data disk is not what it was: %s, %v", out, err)
		}
	})
	step("keeper killed", func(t *testing.T) {
		s := state(t, StateRunning)
		syscall.Kill(s.KeeperPID, syscall.SIGKILL)
		awaitEnd(ctx, t, m)
		if s := state(t, StateCrashed); !strings.Contains(s.Reason, "keeper") {
			t.Fatalf("reason: %s", s.Reason)
		}
		if gone, err := identify(s.PID); err == nil {
			t.Fatalf("QEMU outlived its keeper: %+v", gone)
		}
		start(t)
	})
	step("host panics", func(t *testing.T) {
		// The connection ends with the host, so there is no exit code to look at.
		_, _ = m.Shell(ctx, false, nil, nil, nil, "sh", "-c", "echo c > /proc/sysrq-trigger")
		awaitEnd(ctx, t, m)
		s := state(t, StateCrashed)
		if !strings.Contains(s.Reason, "host kernel panic") || len(s.Console) < 3 {
			t.Fatalf("status: %+v", s)
		}
		start(t)
	})
	step("console is bounded", func(t *testing.T) {
		if _, err := m.Run(ctx, "sh", "-c", "head -c 3500000 /dev/zero | tr '\\0' x > /dev/ttyS0"); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, name := range []string{serialFile, serialFile + ".1"} {
			info, err := os.Stat(filepath.Join(m.Directory(), name))
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		if sum > 2*consoleLimit || sum < consoleLimit {
			t.Fatalf("console logs hold %d bytes", sum)
		}
	})
	step("stop", func(t *testing.T) {
		began := time.Now()
		if was, err := m.Stop(ctx); err != nil || !was {
			t.Fatal(was, err)
		}
		t.Logf("stop took %.1f s", time.Since(began).Seconds())
		if s := state(t, StateStopped); s.Reason != "" {
			t.Fatalf("stop was not plain: %s", s.Reason)
		}
		if was, err := m.Stop(ctx); err != nil || was {
			t.Fatal(was, err)
		}
	})
	step("delete leaves nothing", func(t *testing.T) {
		start(t)
		s := state(t, StateRunning)
		if err := m.Delete(ctx, true); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(m.Directory()); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the directory is still there")
		}
		for _, port := range []int{s.SSHPort, s.APIPort} {
			if c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
				c.Close()
				t.Errorf("port %d still answers", port)
			}
		}
		if left := processesIn(t, m.Directory()); left != nil {
			t.Errorf("processes left: %v", left)
		}
		state(t, StateAbsent)
	})
}

// testPrograms starts the running machine again with programs: this test's own is the daemon.
func testPrograms(ctx context.Context, t *testing.T, bare *Machine, self string) {
	cfg := bare.cfg
	cfg.Bare, cfg.Programs = false, t.TempDir()
	cfg.Files = func(context.Context) ([]File, error) {
		return []File{{Data: []byte("kernel"), Dst: stateDir + "/kernel/vmlinux", Mode: 0o444}}, nil
	}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Start(ctx); err == nil || !strings.Contains(err.Error(), "no microvmd, microvm, guestd") {
		t.Fatalf("start without programs: %v", err)
	}
	for _, p := range programs {
		if err := os.Link(self, filepath.Join(cfg.Programs, p.name)); err != nil {
			t.Fatal(err)
		}
	}
	for try, changed := range []int{4, 0} {
		began := time.Now()
		s, err := m.Start(ctx)
		if err != nil || !s.Already || len(s.Pushed.Changed) != changed {
			t.Fatalf("start %d: %+v, %v", try, s, err)
		}
		t.Logf("start %d took %.2f s, %d files sent", try, time.Since(began).Seconds(), changed)
		if e, err := ReadEndpoint(cfg.Dir, cfg.Name); err != nil || e != s.Endpoint || e.APIKey != "mvk_of_the_test" {
			t.Fatalf("endpoint %+v, %v", e, err)
		}
	}
	out, err := m.Run(ctx, "systemctl", "show", "-P", "NRestarts,ControlGroup", "microvmd.service")
	if err != nil || !strings.Contains(string(out), "/system.slice/microvmd.service") {
		t.Fatalf("unit: %s, %v", out, err)
	}
}

func testPush(ctx context.Context, t *testing.T, m *Machine) {
	big := make([]byte, 50<<20)
	rand.Read(big)
	src := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(src, big, 0o600); err != nil {
		t.Fatal(err)
	}
	const small = "/usr/local/bin/small"
	files := []File{
		{Src: src, Dst: "/var/lib/microvm/big", Mode: 0o644},
		{Data: []byte("#!/bin/sh\nsleep 60 & wait\n"), Dst: small, Mode: 0o755},
	}
	p, err := m.Push(ctx, files)
	if err != nil || len(p.Changed) != 2 {
		t.Fatalf("push: %+v, %v", p, err)
	}
	t.Logf("pushed %d MB in %.2f s: %.0f MB/s", p.Bytes>>20, p.Took.Seconds(), float64(p.Bytes)/1e6/p.Took.Seconds())
	sum := sha256.Sum256(big)
	if out, err := m.Run(ctx, "sha256sum", "/var/lib/microvm/big"); err != nil || !strings.HasPrefix(string(out), hex.EncodeToString(sum[:])) {
		t.Fatalf("checksum: %s, %v", out, err)
	}
	if p, err = m.Push(ctx, files); err != nil || len(p.Changed) != 0 || p.Same != 2 {
		t.Fatalf("push again: %+v, %v", p, err)
	}
	t.Logf("pushed nothing in %.2f s", p.Took.Seconds())
	// Other content through the same blocks of the mailbox, over a program that runs.
	if _, err := m.Run(ctx, "sh", "-c", small+" >/dev/null 2>&1 </dev/null &"); err != nil {
		t.Fatal(err)
	}
	rand.Read(big[:1<<20])
	if err := os.WriteFile(src, big, 0o600); err != nil {
		t.Fatal(err)
	}
	files[1].Data = []byte("#!/bin/sh\nexit 3\n")
	if p, err = m.Push(ctx, files); err != nil || len(p.Changed) != 2 {
		t.Fatalf("push changed: %+v, %v", p, err)
	}
	sum = sha256.Sum256(big)
	if out, err := m.Run(ctx, "sha256sum", "/var/lib/microvm/big"); err != nil || !strings.HasPrefix(string(out), hex.EncodeToString(sum[:])) {
		t.Fatalf("checksum of the changed file: %s, %v", out, err)
	}
	if code, err := m.Shell(ctx, false, nil, nil, nil, small); err != nil || code != 3 {
		t.Fatalf("replaced program: %d, %v", code, err)
	}
	// A file that somebody changed in the host is sent again.
	if _, err := m.Run(ctx, "rm", small); err != nil {
		t.Fatal(err)
	}
	if p, err = m.Push(ctx, files); err != nil || len(p.Changed) != 1 {
		t.Fatalf("push after rm: %+v, %v", p, err)
	}
}

// awaitEnd waits until keeper and QEMU are gone.
func awaitEnd(ctx context.Context, t *testing.T, m *Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	f, err := waitLock(ctx, m.path(keeperLock), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for m.alive() {
		select {
		case <-ctx.Done():
			t.Fatal("QEMU does not end")
		case <-time.After(lockPoll):
		}
	}
}

// processesIn finds processes whose command line or working directory names dir.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		cwd, _ := os.Readlink("/proc/" + e.Name() + "/cwd")
		if strings.Contains(string(line), dir) || strings.HasPrefix(cwd, dir) || strings.Contains(string(line), "microvm-e2e\x00") {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
