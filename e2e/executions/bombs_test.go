package executions

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// neighbour is a program in another sandbox that writes the longest pause
// between two of its lines: it notices what a bomb does to others.
type neighbour struct {
	d   *harness.Daemon
	exe *microvm.Execution
}

func newNeighbour(t *testing.T, d *harness.Daemon) *neighbour {
	t.Helper()
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1)})
	const script = `
import time
last = time.monotonic()
for i in range(1000000):
    now = time.monotonic()
    print(i, round(now - last, 2), flush=True)
    last = now
    time.sleep(0.2)
`
	spec := microvm.ExecutionCreate{Cmd: "python3", Args: []string{"-c", script}, TimeoutSeconds: harness.Ptr(3600)}
	n := &neighbour{d: d, exe: start(t, d, sb.ID, spec)}
	n.goesOn(t)
	return n
}

// goesOn waits for some more lines, all of which must be there, and logs the
// longest pause.
func (n *neighbour) goesOn(t *testing.T) {
	t.Helper()
	before := -1
	for {
		now, err := n.d.Client.Executions.Retrieve(t.Context(), n.exe.Sandbox, n.exe.ID)
		if err != nil || now.Status != microvm.ExecutionStatusRunning {
			t.Fatalf("the other sandbox's program does not run: %+v %v", now, err)
		}
		lines := strings.Split(strings.TrimSuffix(now.Stdout, "\n"), "\n")
		if before < 0 {
			before = len(lines)
		}
		if len(lines) < before+5 {
			time.Sleep(100 * time.Millisecond) // between two looks
			continue
		}
		longest := 0.0
		for i, line := range lines[:len(lines)-1] {
			number, pause, _ := strings.Cut(line, " ")
			seconds, err := strconv.ParseFloat(pause, 64)
			if number != strconv.Itoa(i) || err != nil {
				t.Fatalf("line %d of the other sandbox is %q", i, line)
			}
			longest = max(longest, seconds)
		}
		t.Logf("longest pause of the other sandbox so far: %.2f s", longest)
		return
	}
}

// TestBombsHurtNobodyElse: each has the end that it must have, the agent answers
// while it goes off and after it, and another sandbox goes on.
func TestBombsHurtNobodyElse(t *testing.T) {
	d := harness.Start(t, "bombs", "--slots", "4", "--scratch-mib", "256")
	check := d.Census(t)
	other := newNeighbour(t, d)
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1), TTLSeconds: harness.Ptr(3600)})
	limited := func(spec microvm.ExecutionCreate, seconds int) microvm.ExecutionCreate {
		spec.TimeoutSeconds = &seconds
		return spec
	}
	for _, c := range []struct {
		name  string
		spec  microvm.ExecutionCreate
		wants []string // endings, one of which it must have
	}{
		{"memory", sh("exec tail /dev/zero"), []string{"exited SIGKILL oom"}}, // it looks for the end of a line
		{"memory of a child", sh(`tail /dev/zero; code=$?; echo "child said $code"; exit 5`), []string{"exited 005 oom"}},
		{"no memory bomb, but a kill", sh("kill -9 $$"), []string{"exited SIGKILL"}},
		{"forks", limited(sh("bomb() { bomb | bomb & }; bomb; exec sleep 600"), 10), []string{"timed_out timeout SIGKILL", "exited 002", "exited 000"}},
		{"recursion", sh("ulimit -s 1024; exec bash -c 'f() { f; }; f'"), []string{"exited SIGSEGV"}}, // 8 MiB of stack take an emulated guest a minute
		{"disk", sh("dd if=/dev/zero of=/workspace/full bs=1M 2>/tmp/dd; code=$?; df /workspace | tail -1; rm -f /workspace/full; exit $code"), []string{"exited 001"}},
		{"endless output", limited(sh("exec yes"), 8), []string{"timed_out timeout SIGKILL"}},
		{"kills all that it may", sh("kill -9 -1"), []string{"exited SIGKILL", "exited 000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			exe := run(t, d, sb.ID, c.spec)
			got, ok := ending(exe), false
			for _, want := range c.wants {
				ok = ok || got == want
			}
			if !ok {
				t.Errorf("told %q, want one of %q; stderr %.300q", got, c.wants, exe.Stderr)
			}
			if c.name == "endless output" && (!exe.StdoutTruncated || exe.StdoutBytes <= 1<<20 || len(exe.Stdout) > 1<<20+4) {
				t.Errorf("%d bytes kept of %d, truncated: %t", len(exe.Stdout), exe.StdoutBytes, exe.StdoutTruncated)
			}
			if answer := d.Exec(t, sb.ID, "echo", "still here"); answer.Stdout != "still here\n" {
				t.Errorf("afterwards: %+v", answer)
			}
			other.goesOn(t)
		})
	}
	// While one goes off the agent answers, too.
	t.Run("the agent answers beside a fork bomb", func(t *testing.T) {
		bomb := start(t, d, sb.ID, limited(sh("bomb() { bomb | bomb & }; bomb; exec sleep 600"), 300))
		for i := range 3 {
			// Only as root: a bomb takes every process number that its own user may have.
			answer := run(t, d, sb.ID, microvm.ExecutionCreate{Cmd: "cat", Args: []string{"/etc/hostname"}, User: harness.Ptr("root")})
			if got := ending(answer); got != "exited 000" && got != "failed agent_unreachable" {
				t.Errorf("try %d: %s %q", i, got, answer.Stderr)
			}
			if _, err := d.Client.Files.Write(t.Context(), sb.ID, fmt.Sprint("note-", i), []byte("x")); err != nil {
				t.Errorf("try %d: write a file: %v", i, err)
			}
		}
		bomb, err := d.Client.Executions.Cancel(t.Context(), sb.ID, bomb.ID, microvm.ExecutionCancel{})
		if err == nil && !bomb.Ended() {
			bomb, err = d.Client.Executions.Wait(t.Context(), sb.ID, bomb.ID)
		}
		if err != nil || bomb.Status != microvm.ExecutionStatusCanceled {
			t.Fatalf("%+v %v", bomb, err)
		}
		if answer := d.Exec(t, sb.ID, "echo", "still here"); answer.Stdout != "still here\n" {
			t.Errorf("afterwards: %+v", answer)
		}
		other.goesOn(t)
	})
	for _, id := range []string{sb.ID, other.exe.Sandbox} {
		if _, err := d.Client.Sandboxes.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	check()
}
