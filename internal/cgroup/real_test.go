//go:build kvm && linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests need root and a cgroup v2, which MICROVM_TEST_CGROUP names, that
// is the tests' alone.
func newReal(t *testing.T) *Cgroups {
	t.Helper()
	root := os.Getenv("MICROVM_TEST_CGROUP")
	if root == "" {
		t.Fatal("MICROVM_TEST_CGROUP is not set")
	}
	c, err := New(Config{Root: root, Instance: "unit"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts a program right in the sandbox's cgroup.
func run(t *testing.T, c *Cgroups, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(filepath.Join(c.dir, testHost))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	return cmd
}

func TestRealLifeOfACgroup(t *testing.T) {
	c := newReal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Create(ctx, testPlan()); err != nil {
		t.Fatal(err)
	}
	emptied := make(chan error, 1)
	go func() { emptied <- c.Emptied(ctx, testHost) }()
	select {
	case err := <-emptied:
		t.Fatalf("a cgroup that never had a process emptied: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	nested := filepath.Join(c.dir, testHost, "nested/deeper")
	if err := os.MkdirAll(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := run(t, c, "sh", "-c", "trap '' TERM INT; sleep 1000 & wait")
	if populated, err := c.populated(filepath.Join(c.dir, testHost)); !populated || err != nil {
		t.Fatalf("populated %v %v", populated, err)
	}
	if err := c.Create(ctx, testPlan()); err == nil || !strings.Contains(err.Error(), "has processes") {
		t.Errorf("create over a process: %v", err)
	}
	short, stop := context.WithCancelCause(ctx)
	stop(errors.New("enough"))
	if err := c.Emptied(short, testHost); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("a watch whose context ended: %v", err)
	}
	began := time.Now()
	if err := c.Kill(ctx, testHost); err != nil {
		t.Fatal(err)
	}
	t.Logf("kill %v", time.Since(began))
	if err := <-emptied; err != nil {
		t.Error(err)
	}
	t.Logf("emptied %v", time.Since(began))
	_ = cmd.Wait()
	if err := errors.Join(c.Kill(ctx, testHost), c.Remove(ctx, testHost), c.Remove(ctx, testHost)); err != nil {
		t.Error(err)
	}
	if hosts, err := c.List(ctx); err != nil || len(hosts) != 0 {
		t.Errorf("left %v %v", hosts, err)
	}
}

// TestRealCPUTime tells a process that works from one that waits, and from one
// that is stopped.
func TestRealCPUTime(t *testing.T) {
	c := newReal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	used := func() time.Duration {
		t.Helper()
		time, err := c.CPUTime(ctx, testHost)
		if err != nil {
			t.Fatal(err)
		}
		return time
	}
	if err := c.Create(ctx, testPlan()); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != 0 {
		t.Errorf("an unused cgroup used %v", got)
	}
	busy := run(t, c, "sh", "-c", "while :; do :; done")
	for began := used(); used() < began+100*time.Millisecond; {
		if ctx.Err() != nil {
			t.Fatal("a busy loop uses no processor time")
		}
	}
	if err := busy.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(busy.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
	stopped := used()
	for began := own(t); own(t) < began+200*time.Millisecond; { // a processor has time to give: we take it
	}
	if got := used(); got > stopped+50*time.Millisecond { // its last moment may be counted late
		t.Errorf("a stopped process used %v", got-stopped)
	}
	if err := c.Kill(ctx, testHost); err != nil {
		t.Fatal(err)
	}
	if got := used(); got < stopped {
		t.Errorf("processor time went back from %v to %v", stopped, got)
	}
	if err := c.Remove(ctx, testHost); err != nil {
		t.Fatal(err)
	}
}

// own is the processor time that this process has used.
func own(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestRealEndIsSeenAtOnce(t *testing.T) {
	c := newReal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 10 {
		if err := c.Create(ctx, testPlan()); err != nil {
			t.Fatal(err)
		}
		cmd := run(t, c, "sleep", "1000")
		emptied := make(chan error, 1)
		go func() { emptied <- c.Emptied(ctx, testHost) }()
		began := time.Now() // the kill may come before the first look: that counts as well
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := <-emptied; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > lookEvery/2 {
			t.Errorf("the end was seen after %v: the file's own event did not come", took)
		}
		if err := c.Remove(ctx, testHost); err != nil {
			t.Error(err)
		}
	}
}

func TestRealWatchOfARemovedCgroupEnds(t *testing.T) {
	c := newReal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Create(ctx, testPlan()); err != nil {
		t.Fatal(err)
	}
	emptied := make(chan error, 1)
	started := make(chan struct{})
	go func() { close(started); emptied <- c.Emptied(ctx, testHost) }()
	<-started
	if err := c.Remove(ctx, testHost); err != nil {
		t.Fatal(err)
	}
	if err := <-emptied; err != nil {
		t.Error(err)
	}
}
