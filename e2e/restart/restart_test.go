// Package restart proves on booted microVMs that a sandbox and what runs in it
// outlive their daemon, however it ends, unless it drains; and that one daemon's
// end is no other's.
package restart

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	"github.com/microvmd/microvm/e2e/soak"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// counter is a program that counts in a sandbox, under one pid and one boot_id,
// or its lines say so.
type counter struct {
	t       *testing.T
	client  *microvm.Client
	sandbox string
	soak.Program
	id   string
	vmm  string // pid on the host
	seen int    // bytes
}

// wait is how long a line may take to be seen, in an emulated host.
const wait = 2 * time.Minute

// count starts a counter and returns when it has counted.
func count(t *testing.T, client *microvm.Client, instance, sandbox string) *counter {
	t.Helper()
	c := &counter{t: t, client: client, sandbox: sandbox, vmm: harness.VMM(t, instance, sandbox)}
	c.Program = soak.Program{Seed: "counter", Lines: 100_000, Pace: 300 * time.Millisecond}
	cmd, args := c.Command()
	e, err := client.Executions.Create(t.Context(), sandbox, microvm.ExecutionCreate{Cmd: cmd, Args: args, TimeoutSeconds: harness.Ptr(3600)})
	if err != nil {
		t.Fatal(err)
	}
	c.id = e.ID
	c.goesOn()
	return c
}

// goesOn waits until the program has written more than was seen, and checks that
// all that it wrote is there once, from one program and one kernel.
func (c *counter) goesOn() {
	c.t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) { // between two looks
		e, err := c.client.Executions.Retrieve(c.t.Context(), c.sandbox, c.id)
		if err != nil || e.Status != "running" {
			c.t.Fatalf("the program does not go on: %+v %v", e, err)
		}
		c.check(e)
		if len(e.Stdout) > c.seen {
			c.seen = len(e.Stdout)
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the program does not count: %q", e.Stdout)
		}
	}
}

func (c *counter) check(e *microvm.Execution) {
	c.t.Helper()
	if len(e.Stdout) < c.seen || e.StdoutTruncated {
		c.t.Fatalf("output is gone: %d bytes of %d", len(e.Stdout), c.seen)
	}
	me := strings.Fields(e.Stdout)
	if len(me) < 4 {
		return // no whole line yet
	}
	short := c.Program
	short.Lines = strings.Count(e.Stdout, "\n") + 1
	if text := string(short.Text(0, me[2], me[3])); !strings.HasPrefix(text, e.Stdout) {
		c.t.Fatalf("it did not count under one pid and boot_id:\n%s", e.Stdout)
	}
}

// goesOnIn checks that it goes on in the same microVM.
func (c *counter) goesOnIn(client *microvm.Client, instance string) {
	c.t.Helper()
	c.client = client
	sb, err := client.Sandboxes.Retrieve(c.t.Context(), c.sandbox)
	if err != nil || sb.State != "running" {
		c.t.Fatalf("the sandbox does not go on: %+v %v", sb, err)
	}
	if vmm := harness.VMM(c.t, instance, c.sandbox); vmm != c.vmm {
		c.t.Fatalf("its VMM is process %s and was %s", vmm, c.vmm)
	}
	c.goesOn()
}

// sameBoot checks that a new program finds the kernel of the first.
func (c *counter) sameBoot() {
	c.t.Helper()
	now, err := c.client.Run(c.t.Context(), c.sandbox, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil || now.Stdout == "" {
		c.t.Fatalf("%+v %v", now, err)
	}
	e, err := c.client.Executions.Retrieve(c.t.Context(), c.sandbox, c.id)
	if err != nil || !strings.Contains(e.Stdout, " "+now.Stdout) {
		c.t.Fatalf("boot_id is %s, and was another: %+v %v", now.Stdout, e, err)
	}
}

func TestAProgramGoesOnOverARestart(t *testing.T) {
	d := harness.Start(t, "again")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	c := count(t, d.Client, d.Instance, sb.ID)
	for _, end := range []struct {
		name   string
		signal os.Signal
	}{{"kill -9", os.Kill}, {"SIGTERM", syscall.SIGTERM}, {"kill -9 once more", os.Kill}} {
		t.Run(end.name, func(t *testing.T) {
			c.t = t
			if err := d.Signal(end.signal); err != nil {
				t.Fatal(err)
			}
			d.Run(t)
			c.goesOnIn(d.Client, d.Instance)
			c.sameBoot()
		})
	}
	gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
	if err != nil || gone.Reason == nil || *gone.Reason != "deleted" {
		t.Fatalf("%+v %v", gone, err)
	}
	e, err := d.Client.Executions.Wait(t.Context(), sb.ID, c.id)
	if err != nil || e.Status != "vanished" || e.Reason == nil || *e.Reason != "deleted" || e.ExitCode != nil {
		t.Fatalf("%+v %v", e, err)
	}
	c.t = t
	c.check(e)
	check()
}

// TestAVMMThatDiesWhileNoDaemonIsThere: the next one tells it as it was.
func TestAVMMThatDiesWhileNoDaemonIsThere(t *testing.T) {
	d := harness.Start(t, "widow")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	c := count(t, d.Client, d.Instance, sb.ID)
	d.Kill(t)
	if err := os.WriteFile(harness.Cgroup(d.Instance, sb.ID)+"/cgroup.kill", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	d.Run(t)
	e, err := d.Client.Executions.Wait(t.Context(), sb.ID, c.id)
	if err != nil || e.Status != "vanished" || e.Reason == nil || *e.Reason != "vm_died" || e.ExitCode != nil {
		t.Fatalf("%+v %v", e, err)
	}
	c.check(e)
	gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID) // returns when nothing is left
	if err != nil || *gone.StopReason != "failed" || *gone.Reason != "vm_died" {
		t.Fatalf("%+v %v", gone, err)
	}
	check()
}

func TestADrainEndsSandboxes(t *testing.T) {
	d := harness.Start(t, "drain", "--drain")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	c := count(t, d.Client, d.Instance, sb.ID)
	d.Stop(t)
	check()
	d.Run(t)
	gone, err := d.Client.Sandboxes.Retrieve(t.Context(), sb.ID)
	if err != nil || gone.State != "stopped" || *gone.StopReason != "failed" || *gone.Reason != "host_restarted" {
		t.Fatalf("%+v %v", gone, err)
	}
	e, err := d.Client.Executions.Retrieve(t.Context(), sb.ID, c.id)
	if err != nil || e.Status != "vanished" || *e.Reason != "host_restarted" || e.ExitCode != nil {
		t.Fatalf("%+v %v", e, err)
	}
	c.check(e)
}
