package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// Create makes a sandbox of python that is deleted when the test ends.
func (d *Daemon) Create(t testing.TB, spec microvm.SandboxCreate) *microvm.Sandbox {
	t.Helper()
	if spec.Image == "" {
		spec.Image = "python"
	}
	sb, err := d.Client.Sandboxes.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create sandbox: %v", err)
	}
	t.Cleanup(func() { _, _ = d.Client.Sandboxes.Delete(context.Background(), sb.ID) })
	return sb
}

// AwaitTemplate waits until the daemon has a template to restore from.
func (d *Daemon) AwaitTemplate(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()
	for {
		entries, err := os.ReadDir(filepath.Join(d.StateDir, "templates"))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), "new-") {
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond): // between two looks
		case <-ctx.Done():
			t.Fatal("no template is made")
		}
	}
}

// Exec runs a program to its end, whatever that is.
func (d *Daemon) Exec(t testing.TB, sandbox string, cmd string, args ...string) *microvm.Execution {
	t.Helper()
	exe, err := d.Client.Executions.Run(t.Context(), sandbox, microvm.ExecutionCreate{Cmd: cmd, Args: args})
	if exe == nil {
		t.Fatalf("run %s: %v", cmd, err)
	}
	return exe
}

// Cgroup is where a sandbox of an instance has its cgroup.
func Cgroup(instance, sandbox string) string {
	name := strings.ReplaceAll(strings.ToLower(sandbox), "_", "-")
	return filepath.Join("/sys/fs/cgroup/microvm.slice/microvm-sandboxes.service", instance, name)
}

// VMM finds the process of a sandbox's VMM by the cgroup that holds it.
func (d *Daemon) VMM(t testing.TB, sandbox string) (pid string) {
	t.Helper()
	return VMM(t, d.Instance, sandbox)
}

// VMM finds the process of a VMM of any daemon's.
func VMM(t testing.TB, instance, sandbox string) (pid string) {
	t.Helper()
	procs, err := os.ReadFile(filepath.Join(Cgroup(instance, sandbox), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	// Beside the VMM there may be a thread of the kernel's: KVM makes one for
	// each VM and puts it into the VMM's cgroup.
	for _, pid := range strings.Fields(string(procs)) {
		if comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm")); err == nil && string(comm) == "firecracker\n" {
			return pid
		}
	}
	t.Fatalf("no firecracker in the cgroup: %q", procs)
	return ""
}

// Ptr is for optional fields.
func Ptr[T any](v T) *T { return &v }
