//go:build kvm && linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
)

// eaterEnv makes the test's binary a process that takes more memory than it may
// have.
const eaterEnv = "MICROVM_TEST_EATER"

// TestRealOOMKill: at the moment at which the cgroup is seen to be empty, the
// kernel has counted what its OOM killer did. Each round is one chance to be too
// early.
func TestRealOOMKill(t *testing.T) {
	if os.Getenv(eaterEnv) != "" {
		eat()
		return
	}
	c := newReal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const rounds = 5
	for round := range rounds {
		// As much as a VMM may have; the eater's own program needs some of it.
		if err := c.Create(ctx, sandbox.Plan{Host: testHost, VCPUs: 1, MemMiB: 32}); err != nil {
			t.Fatal(err)
		}
		told := func(want bool) {
			t.Helper()
			if killed, err := c.OOMKilled(ctx, testHost); err != nil || killed != want {
				t.Errorf("round %d: OOM killed %t %v, want %t", round, killed, err, want)
			}
		}
		told(false)
		var cmd *exec.Cmd
		if round == 0 { // a nested one counts as well
			if err := os.Mkdir(filepath.Join(c.dir, testHost, "nested"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd = runEater(t, filepath.Join(c.dir, testHost, "nested"))
		} else {
			cmd = runEater(t, filepath.Join(c.dir, testHost))
		}
		if err := c.Emptied(ctx, testHost); err != nil {
			t.Fatal(err)
		}
		told(true)
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("round %d: the eater ended with %v", round, err)
		}
		if err := c.Remove(ctx, testHost); err != nil {
			t.Fatal(err)
		}
	}

	// The same signal from anybody else is no OOM kill, and neither is our own.
	for name, kill := range map[string]func(*exec.Cmd) error{
		"kill -9":     func(cmd *exec.Cmd) error { return cmd.Process.Kill() },
		"cgroup.kill": func(*exec.Cmd) error { return c.Kill(ctx, testHost) },
	} {
		if err := c.Create(ctx, testPlan()); err != nil {
			t.Fatal(err)
		}
		cmd := run(t, c, "sleep", "1000")
		if err := errors.Join(kill(cmd), c.Emptied(ctx, testHost)); err != nil {
			t.Fatal(err)
		}
		if killed, err := c.OOMKilled(ctx, testHost); err != nil || killed {
			t.Errorf("%s: OOM killed %t %v", name, killed, err)
		}
		if err := c.Remove(ctx, testHost); err != nil {
			t.Fatal(err)
		}
	}
}

func runEater(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	place, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = place.Close() }()
	cmd := exec.Command(self, "-test.run=^TestRealOOMKill$")
	cmd.Env = append(os.Environ(), eaterEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(place.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// eat touches page after page, of which none is ever given back.
func eat() {
	var kept [][]byte
	for range 1 << 10 { // 4 GiB, should nobody stop it
		block := make([]byte, 4<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
	_ = kept
}
