package guest

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Stopped programs go on, and end, as they are told.
func TestSignalStopsAndEnds(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	pid := b.must(t, "a", guestwire.Start{Cmd: "sleep", Args: []string{"1000"}})
	for _, step := range []struct {
		signal string
		seen   int // by wait
	}{{"SIGSTOP", unix.WSTOPPED}, {"SIGCONT", unix.WCONTINUED}, {"SIGSTOP", unix.WSTOPPED}, {"SIGKILL", unix.WEXITED}} {
		if err := b.Signal(t.Context(), "a", step.signal); err != nil {
			t.Fatal(err)
		}
		if step.signal == "SIGKILL" {
			break // the agent collects it
		}
		if err := unix.Waitid(unix.P_PID, pid, nil, step.seen|unix.WNOWAIT, nil); err != nil {
			t.Fatalf("%s: %v", step.signal, err)
		}
	}
	if o := b.finish(t, "a"); o.exit.Signal != "SIGKILL" || o.exit.OOMKilled {
		t.Errorf("got %+v", o.exit)
	}
}

// What left the process group gets each signal too; without a cgroup that is
// what stayed in the session.
func TestSignalReachesWhatLeftTheGroup(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	left := func(says string) string {
		return `set -m; bash -c 'trap "echo got it; exit" TERM; ` + says + `; sleep 1000 & wait' & `
	}
	// Both have to be ready: the one to ignore the signal, the other to get it.
	start := guestwire.Start{Cmd: "bash", Args: []string{"-c", left(">ready") + `trap "" TERM; until test -e ready; do sleep 0.01; done; echo away; wait $!; echo ended`}}
	b.must(t, "a", start)
	o := b.until(t, "a", "away\n")
	if err := b.Signal(t.Context(), "a", "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if o = b.finish(t, "a", o); string(o.out) != "away\ngot it\nended\n" || o.code(t) != 0 {
		t.Errorf("got %q %q %+v", o.out, o.err, o.exit)
	}
	// After the end, what the program left behind is signalled all the same.
	start.Args[1] = left("echo away") + `read go; echo $!`
	b.must(t, "b", open(start))
	o = b.until(t, "b", "away\n")
	b.feedAll(t, "b", 0, "\n", true)
	o = b.finish(t, "b", o)
	child := strings.TrimPrefix(strings.TrimSpace(string(o.out)), "away\n")
	if err := b.Signal(t.Context(), "b", "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	gone(t, child)
}

// gone waits for the end of a process that is nobody's child here.
func gone(t testing.TB, pid string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "timeout", "60", "tail", "--pid", pid, "-f", "/dev/null").CombinedOutput(); err != nil {
		t.Fatalf("process %s goes on: %s %v", pid, out, err)
	}
}

// A process that is no member any more when it is held is not signalled: its
// number may be somebody else's by then.
func TestSignalsMembersOnly(t *testing.T) {
	t.Parallel()
	var pids []int
	for range 3 {
		pid, err := syscall.ForkExec("/usr/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setpgid: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = syscall.Wait4(pid, nil, 0, nil) }()
		defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
		pids = append(pids, pid)
	}
	member, left, leader := pids[0], pids[1], pids[2]
	reads := 0
	members := func() ([]int, error) {
		if reads++; reads == 1 {
			return []int{member, left, leader, 1 << 30}, nil
		}
		return []int{leader, member}, nil
	}
	if err := signalOthers(members, leader, unix.SIGTERM); err != nil || reads != 2 {
		t.Fatalf("after %d reads: %v", reads, err)
	}
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(member, &status, 0, nil); pid != member || status.Signal() != syscall.SIGTERM {
		t.Errorf("the member: %v %v", status, err)
	}
	for _, pid := range []int{left, leader} {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got, err := syscall.Wait4(pid, &status, 0, nil); got != pid || status.Signal() != syscall.SIGKILL {
			t.Errorf("one that is none: %v %v", status, err)
		}
	}
	broken := errors.New("cannot be read")
	if err := signalOthers(func() ([]int, error) { return nil, broken }, 0, unix.SIGTERM); !errors.Is(err, broken) {
		t.Errorf("members that cannot be read: %v", err)
	}
	// Many are signalled in batches, each held while it is looked at again.
	reads = 0
	many := slices.Repeat([]int{syscall.Getpid()}, 3*signalBatch)
	err := signalOthers(func() ([]int, error) { reads++; return many, nil }, 0, 0)
	if err != nil || reads != 4 {
		t.Errorf("%d reads: %v", reads, err)
	}
}
