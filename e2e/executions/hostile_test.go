package executions

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

//go:embed hostile.py
var hostile []byte

// memory reads one line of a process's status, in bytes.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// resetPeak makes VmHWM begin anew (proc(5), clear_refs).
func resetPeak(t *testing.T, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

const (
	// growth is what the daemon may take more, at its peak, while three agents at
	// once do their worst.
	growth = 64 << 20
	// answerWait bounds every call about a sandbox whose agent is hostile. The
	// daemon gives an agent agentTimeout; the rest is the emulated host's.
	answerWait   = 8 * time.Minute
	agentTimeout = "20s"
)

// TestAHostileAgentHurtsOnlyItself is claim 15: guest root takes the agent's
// place and misbehaves in every way there is. The daemon's memory and time stay
// within bounds, the sandbox ends, and another one goes on.
func TestAHostileAgentHurtsOnlyItself(t *testing.T) {
	d := harness.Start(t, "hostile", "--slots", "6", "--templates", "1", "--agent-timeout", agentTimeout, "--scratch-mib", "128")
	other := newNeighbour(t, d)
	d.AwaitTemplate(t)
	settled := memory(t, d.PID(), "VmRSS")
	resetPeak(t, d.PID())

	turns := make(chan struct{}, 3)
	var all sync.WaitGroup
	for _, way := range []string{
		"a million frames", "headers", "one header", "continues", "body", "length", "short", "drip", "deep", "huge frame", "redirect", "lies", "silent", "closes",
	} {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.Run(way, func(t *testing.T) { misbehave(t, d, way) })
		})
	}
	all.Wait()
	if peak := memory(t, d.PID(), "VmHWM"); peak > settled+growth {
		t.Errorf("the daemon grew from %d to %d KiB", settled>>10, peak>>10)
	} else {
		t.Logf("the daemon: %d KiB before, at most %d KiB", settled>>10, peak>>10)
	}
	other.goesOn(t)
}

func misbehave(t *testing.T, d *harness.Daemon, way string) {
	ctx, cancel := context.WithTimeout(t.Context(), answerWait)
	defer cancel()
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1)})
	if _, err := d.Client.Files.Write(ctx, sb.ID, "hostile.py", hostile); err != nil {
		t.Fatal(err)
	}
	spec := microvm.ExecutionCreate{Cmd: "python3", Args: []string{"hostile.py", way}, User: harness.Ptr("root"), TimeoutSeconds: harness.Ptr(3600)}
	exe := start(t, d, sb.ID, spec)
	for taken := false; !taken; { // it takes a moment until it has the agent's place
		try, stop := context.WithTimeout(ctx, 20*time.Second)
		ran, err := d.Client.Executions.Run(try, sb.ID, sh("echo honest"))
		taken = err != nil || ran.Status != microvm.ExecutionStatusExited || ran.Stdout != "honest\n"
		stop()
	}
	// Callers that use it until it ends get an answer each time, and no lie.
	var callers sync.WaitGroup
	call := func(name string, do func() error) {
		callers.Go(func() {
			for !microvm.HasCode(do(), microvm.ErrorCodeSandboxNotRunning) {
				if ctx.Err() != nil {
					t.Errorf("%s gets no answer", name)
					return
				}
			}
		})
	}
	call("a run", func() error {
		ran, err := d.Client.Executions.Run(ctx, sb.ID, sh("echo honest"))
		if err == nil && ran.Status == microvm.ExecutionStatusExited && ran.Stdout != "honest\n" {
			t.Errorf("a run answers %+v", ran)
		}
		return err
	})
	call("a read", func() error {
		_, err := d.Client.Files.Read(ctx, sb.ID, "/etc/hostname")
		return err
	})
	exe, err := d.Client.Executions.Wait(ctx, sb.ID, exe.ID)
	if err != nil {
		t.Fatal(err)
	}
	// However well it lies: it holds the agent still, which had a request of the host.
	if got := ending(exe); got != "vanished agent_died" {
		t.Errorf("it ended as %q: %.300q", got, exe.Stderr)
	}
	callers.Wait()
	gone, err := d.Client.Sandboxes.Delete(ctx, sb.ID)
	if err != nil || gone.Reason == nil || *gone.Reason != "agent_died" {
		t.Errorf("the sandbox: %+v %v", gone, err)
	}
}
