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
	// growth is what the daemon may take more, at its peak, while five agents at
	// once do their worst.
	growth = 64 << 20
	// answerWait bounds every call about a sandbox whose agent is hostile. The
	// daemon gives an agent agentTimeout; the rest is the emulated host's.
	answerWait   = 3 * time.Minute
	agentTimeout = "10s"
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

	turns := make(chan struct{}, 5)
	var all sync.WaitGroup
	for _, way := range []string{
		"headers", "one header", "continues", "body", "length", "short", "drip", "deep", "huge frame", "a million frames", "redirect", "lies", "silent", "closes",
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
	spec := microvm.ExecutionCreate{Cmd: "python3", Args: []string{"hostile.py", way}, User: harness.Ptr("root"), TimeoutSeconds: harness.Ptr(60)}
	exe := start(t, d, sb.ID, spec)

	// Callers that use it meanwhile get an answer, and no lie.
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			ran, err := d.Client.Executions.Run(ctx, sb.ID, sh("echo honest"))
			if err == nil && ran.Status == microvm.ExecutionStatusExited && ran.Stdout != "honest\n" {
				t.Errorf("a run answers %+v", ran)
			}
			if ctx.Err() != nil {
				t.Error("a run gets no answer")
			}
		})
	}
	callers.Go(func() {
		_, _ = d.Client.Files.Read(ctx, sb.ID, "/etc/hostname")
		if ctx.Err() != nil {
			t.Error("a read gets no answer")
		}
	})
	callers.Wait()
	exe, err := d.Client.Executions.Wait(ctx, sb.ID, exe.ID)
	if err != nil {
		t.Fatal(err)
	}
	got := ending(exe)
	switch got {
	case "vanished agent_died", "timed_out timeout": // what lies well is ended by its timeout
	default:
		t.Errorf("it ended as %q: %.300q", got, exe.Stderr)
	}
	gone, err := d.Client.Sandboxes.Delete(ctx, sb.ID)
	if err != nil || gone.Reason == nil || *gone.Reason != "agent_died" && got != "timed_out timeout" {
		t.Errorf("the sandbox: %+v %v", gone, err)
	}
	t.Logf("%s: %s", way, got)
}
