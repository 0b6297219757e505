// Package executions proves on booted microVMs that what is told of an execution
// is true, that its output survives, and that a program which does its worst
// hurts nobody but itself.
package executions

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// sh is a shell script as an execution.
func sh(script string) microvm.ExecutionCreate {
	return microvm.ExecutionCreate{Cmd: "sh", Args: []string{"-c", script}}
}

// run runs a program to its end.
func run(t *testing.T, d *harness.Daemon, sandbox string, spec microvm.ExecutionCreate) *microvm.Execution {
	t.Helper()
	exe, err := d.Client.Executions.Run(t.Context(), sandbox, spec)
	if err != nil {
		t.Fatalf("%s %q: %v", spec.Cmd, spec.Args, err)
	}
	return exe
}

// start starts a program that is to run on.
func start(t *testing.T, d *harness.Daemon, sandbox string, spec microvm.ExecutionCreate) *microvm.Execution {
	t.Helper()
	exe, err := d.Client.Executions.Create(t.Context(), sandbox, spec)
	if err != nil || exe.Status != microvm.ExecutionStatusRunning {
		t.Fatalf("%s %q: %+v %v", spec.Cmd, spec.Args, exe, err)
	}
	return exe
}

// printed waits until a running program has printed text.
func printed(t *testing.T, d *harness.Daemon, exe *microvm.Execution, text string) {
	t.Helper()
	for {
		now, err := d.Client.Executions.Retrieve(t.Context(), exe.Sandbox, exe.ID)
		if err != nil || now.Ended() {
			t.Fatalf("waiting for %q: %+v %v", text, now, err)
		}
		if strings.Contains(now.Stdout, text) {
			return
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// ending is how an execution ended, as one line.
func ending(e *microvm.Execution) string {
	all := []string{string(e.Status)}
	if e.Reason != nil {
		all = append(all, string(*e.Reason))
	}
	if e.ExitCode != nil {
		all = append(all, string(rune('0'+*e.ExitCode/100))+string(rune('0'+*e.ExitCode/10%10))+string(rune('0'+*e.ExitCode%10)))
	}
	if e.Signal != nil {
		all = append(all, *e.Signal)
	}
	if e.OOMKilled {
		all = append(all, "oom")
	}
	return strings.Join(all, " ")
}

// nobody checks that no process of that name is left in the sandbox.
func nobody(t *testing.T, d *harness.Daemon, sandbox, name string) {
	t.Helper()
	if left := d.Exec(t, sandbox, "pgrep", "-f", "^"+name); left.ExitCode == nil || *left.ExitCode != 1 {
		t.Errorf("%s still runs: %+v", name, left)
	}
}

// TestHowItEnds: what ends an execution, and what is told of it.
func TestHowItEnds(t *testing.T) {
	d := harness.Start(t, "ends")
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1)})
	as := func(spec microvm.ExecutionCreate, change func(*microvm.ExecutionCreate)) microvm.ExecutionCreate {
		change(&spec)
		return spec
	}
	for name, c := range map[string]struct {
		spec microvm.ExecutionCreate
		want string
	}{
		"a code":                                   {sh("exit 3"), "exited 003"},
		"a code that looks like a kill":            {sh("exit 137"), "exited 137"},
		"its own kill is no OOM":                   {sh("kill -9 $$"), "exited SIGKILL"},
		"a named signal":                           {sh("kill -SEGV $$"), "exited SIGSEGV"},
		"what goes on behind it is not part of it": {sh("sleep 60 & echo done"), "exited 000"},
		"no such program":                          {microvm.ExecutionCreate{Cmd: "no-such-program"}, "failed command_not_found"},
		"no such path":                             {microvm.ExecutionCreate{Cmd: "./none"}, "failed command_not_found"},
		"without the x bit":                        {microvm.ExecutionCreate{Cmd: "/etc/hostname"}, "failed permission_denied"},
		"a directory":                              {microvm.ExecutionCreate{Cmd: "/tmp"}, "failed permission_denied"},
		"no such directory":                        {as(sh("true"), func(e *microvm.ExecutionCreate) { e.Cwd = harness.Ptr("none") }), "failed bad_directory"},
		"a directory that the user may not enter":  {as(sh("true"), func(e *microvm.ExecutionCreate) { e.Cwd = harness.Ptr("/root") }), "failed bad_directory"},
		"no such user":                             {as(sh("true"), func(e *microvm.ExecutionCreate) { e.User = harness.Ptr("nobody-here") }), "failed user_not_found"},
		"too slow":                                 {as(sh("exec sleep 600"), func(e *microvm.ExecutionCreate) { e.TimeoutSeconds = harness.Ptr(1) }), "timed_out timeout SIGKILL"},
		"too slow, in a session of its own": {
			as(sh("setsid sleep 777 & sleep 30"), func(e *microvm.ExecutionCreate) { e.TimeoutSeconds = harness.Ptr(1) }), "timed_out timeout SIGKILL",
		},
		"too slow, with a clock that was set back": {
			as(sh("date -s '2001-01-01'; exec sleep 600"), func(e *microvm.ExecutionCreate) {
				e.TimeoutSeconds, e.User = harness.Ptr(2), harness.Ptr("root")
			}), "timed_out timeout SIGKILL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			exe := run(t, d, sb.ID, c.spec)
			if got := ending(exe); got != c.want {
				t.Errorf("%s: told %q, want %q (stderr %q)", name, got, c.want, exe.Stderr)
			}
			if own := exe.Err() == nil; own != (exe.Status == microvm.ExecutionStatusExited) {
				t.Errorf("%s: Err() is %v", name, exe.Err())
			}
		})
	}
	nobody(t, d, sb.ID, "sleep 777")
	nobody(t, d, sb.ID, "sleep 600")
}

// TestCancelReachesAll: the program, its group, and what left the group; a
// program that ignores the signal is killed after its grace.
func TestCancelReachesAll(t *testing.T) {
	d := harness.Start(t, "cancel")
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1)})
	// The one that left its group says on a file which signal it got.
	left := `setsid sh -c 'trap "echo got it >/tmp/left; exit" TERM; echo apart >/tmp/left; while :; do sleep 0.1; done' & until [ -s /tmp/left ]; do sleep 0.1; done; `
	for _, c := range []struct {
		name, script string
		cancel       microvm.ExecutionCancel
		want         string
		left         string // what the one that left its group has to say
	}{
		{"kill", left + "echo up; exec sleep 888", microvm.ExecutionCancel{}, "canceled canceled SIGKILL", "apart\n"},
		{"TERM", left + "echo up; exec sleep 888", microvm.ExecutionCancel{Signal: harness.Ptr(microvm.ExecutionCancelSignal("SIGTERM"))}, "canceled canceled SIGTERM", "got it\n"},
		{"exits with 0 on TERM", left + "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done", microvm.ExecutionCancel{Signal: harness.Ptr(microvm.ExecutionCancelSignal("SIGTERM"))}, "canceled canceled 000", "got it\n"},
		{"ignores TERM", left + "trap '' TERM; echo up; while :; do sleep 0.1; done", microvm.ExecutionCancel{Signal: harness.Ptr(microvm.ExecutionCancelSignal("SIGTERM")), GraceSeconds: harness.Ptr(2)}, "canceled canceled SIGKILL", "got it\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.Exec(t, sb.ID, "rm", "-f", "/tmp/left")
			exe := start(t, d, sb.ID, sh(c.script))
			printed(t, d, exe, "up\n")
			if _, err := d.Client.Executions.Cancel(t.Context(), sb.ID, exe.ID, c.cancel); err != nil {
				t.Fatal(err)
			}
			exe, err := d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
			if err != nil || ending(exe) != c.want {
				t.Fatalf("%+v %v", exe, err)
			}
			if got := d.Exec(t, sb.ID, "cat", "/tmp/left"); got.Stdout != c.left {
				t.Errorf("the one that left its group says %q", got.Stdout)
			}
			if c.want == "canceled canceled SIGKILL" {
				nobody(t, d, sb.ID, "sleep 888")
				nobody(t, d, sb.ID, "sh -c trap")
			}
			_, err = d.Client.Executions.Cancel(t.Context(), sb.ID, exe.ID, c.cancel)
			if !microvm.HasCode(err, microvm.ErrorCodeExecutionNotRunning) {
				t.Errorf("a cancel of what has ended: %v", err)
			}
		})
	}
}

// TestAVMMThatDiesIsSeen: at once, in the state, the executions and the next
// request.
func TestAVMMThatDiesIsSeen(t *testing.T) {
	d := harness.Start(t, "died")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	exe := start(t, d, sb.ID, sh("echo up; exec sleep 600"))
	printed(t, d, exe, "up\n")
	killed := time.Now()
	if err := os.WriteFile(harness.Cgroup(d.Instance, sb.ID)+"/cgroup.kill", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	exe, err := d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
	t.Logf("told after %s", time.Since(killed))
	if err != nil || ending(exe) != "vanished vm_died" || exe.Stdout != "up\n" {
		t.Fatalf("%+v %v", exe, err)
	}
	now, err := d.Client.Sandboxes.Retrieve(t.Context(), sb.ID)
	if err != nil || now.State != "stopped" || *now.StopReason != "failed" || *now.Reason != "vm_died" {
		t.Fatalf("%+v %v", now, err)
	}
	if _, err := d.Client.Run(t.Context(), sb.ID, "true"); !microvm.HasCode(err, microvm.ErrorCodeSandboxNotRunning) {
		t.Errorf("the next request: %v", err)
	}
	if _, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID); err != nil { // returns when nothing is left
		t.Fatal(err)
	}
	check()
}

// TestAHostWithoutMemoryIsTold: the host's OOM killer takes a VMM, and nobody says
// that the program failed.
func TestAHostWithoutMemoryIsTold(t *testing.T) {
	d := harness.Start(t, "hostoom")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	exe := start(t, d, sb.ID, sh("echo up; exec python3 -c 'b = bytearray(100 << 20); print(\"more\", flush=True); import time; time.sleep(600)'"))
	printed(t, d, exe, "up\n")
	// What the VMM has is over this at once, and there is no swap to go to.
	if err := os.WriteFile(harness.Cgroup(d.Instance, sb.ID)+"/memory.max", []byte("4194304"), 0); err != nil {
		t.Fatal(err)
	}
	exe, err := d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
	if err != nil || ending(exe) != "vanished host_oom" || exe.OOMKilled {
		t.Fatalf("%+v %v", exe, err)
	}
	if err := exe.Err(); err == nil || !strings.Contains(err.Error(), "did not fail") {
		t.Errorf("Err() is %v", err)
	}
	gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
	if err != nil || *gone.StopReason != "failed" || *gone.Reason != "host_oom" {
		t.Fatalf("%+v %v", gone, err)
	}
	check()
}

// TestTheHostOwnsTheTimeout: an agent that is held still confirms no kill; its
// sandbox is ended, and the execution told as what it is.
func TestTheHostOwnsTheTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		timeout int
		cancel  bool
		want    string
	}{"timeout": {20, false, "timed_out timeout"}, "cancel": {600, true, "canceled canceled"}} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t, "held")
			check := d.Census(t)
			sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1)})
			spec := sh("echo up; kill -STOP $(pgrep -x guestd); exec sleep 600")
			spec.User, spec.TimeoutSeconds = harness.Ptr("root"), &c.timeout
			exe := start(t, d, sb.ID, spec)
			for held := false; !held; { // it answers no more
				ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
				_, err := d.Client.Files.Read(ctx, sb.ID, "/etc/hostname")
				held = err != nil && ctx.Err() != nil
				stop()
			}
			if c.cancel {
				if _, err := d.Client.Executions.Cancel(t.Context(), sb.ID, exe.ID, microvm.ExecutionCancel{}); err != nil {
					t.Fatal(err)
				}
			}
			exe, err := d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
			if err != nil || ending(exe) != c.want {
				t.Fatalf("%+v %v", exe, err)
			}
			gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
			if err != nil || *gone.StopReason != "failed" || *gone.Reason != "agent_died" {
				t.Fatalf("%+v %v", gone, err)
			}
			check()
		})
	}
}

// TestRootThatKillsTheAgent ends its own sandbox, and nobody takes that for an
// answer of a program.
func TestRootThatKillsTheAgent(t *testing.T) {
	for name, script := range map[string]string{
		"the agent":  "kill -9 $(pgrep -x guestd); exec sleep 600",
		"everything": "kill -9 -1; exec sleep 600",
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t, "agent")
			check := d.Census(t)
			sb := d.Create(t, microvm.SandboxCreate{})
			spec := sh(script)
			spec.User = harness.Ptr("root")
			exe, err := d.Client.Executions.Run(t.Context(), sb.ID, spec)
			if exe == nil || exe.Status != microvm.ExecutionStatusVanished || exe.ExitCode != nil || exe.Signal != nil {
				t.Fatalf("%+v %v", exe, err)
			}
			var told *microvm.EndingError
			if !errors.As(exe.Err(), &told) || !strings.Contains(told.Message, "did not fail") {
				t.Errorf("Err() is %v", exe.Err())
			}
			gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
			if err != nil || *gone.StopReason != "failed" || *gone.Reason != microvm.SandboxReason(*exe.Reason) {
				t.Fatalf("%+v %v", gone, err)
			}
			t.Logf("told as %s", *exe.Reason)
			check()
		})
	}
}
