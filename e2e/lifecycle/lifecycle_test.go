// Package lifecycle proves on booted microVMs that sandboxes are made, used and
// ended as the API says, and that nothing is left of them.
package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestOneSandbox walks the main job on one sandbox.
func TestOneSandbox(t *testing.T) {
	d := harness.Start(t, "one")
	sb := d.Create(t, microvm.SandboxCreate{Tags: microvm.Tags{"suite": "lifecycle"}})
	if sb.State != "running" || sb.Boot == nil || *sb.Boot != "cold" {
		t.Fatalf("created: %+v", sb)
	}

	t.Run("main.py runs", func(t *testing.T) {
		program := []byte("import os, sys\nprint('hello from', os.uname().nodename)\nprint('on stderr', file=sys.stderr)\nsys.exit(3)\n")
		if _, err := d.Client.Files.Write(t.Context(), sb.ID, "main.py", program); err != nil {
			t.Fatal(err)
		}
		back, err := d.Client.Files.Read(t.Context(), sb.ID, "/workspace/main.py")
		if err != nil || !bytes.Equal(back, program) {
			t.Fatalf("read back: %q %v", back, err)
		}
		exe := d.Exec(t, sb.ID, "python3", "main.py")
		hostname := strings.ReplaceAll(strings.ToLower(sb.ID), "_", "-")
		if exe.Status != "exited" || exe.ExitCode == nil || *exe.ExitCode != 3 ||
			exe.Stdout != "hello from "+hostname+"\n" || exe.Stderr != "on stderr\n" || exe.Err() != nil {
			t.Fatalf("execution: %+v", exe)
		}
	})

	t.Run("endings are told apart", func(t *testing.T) {
		code := func(n int) func(*microvm.Execution) bool {
			return func(e *microvm.Execution) bool { return e.ExitCode != nil && *e.ExitCode == n && e.Signal == nil }
		}
		for _, c := range []struct {
			name   string
			cmd    string
			args   []string
			status microvm.ExecutionStatus
			reason microvm.ExecutionReason
			ok     func(*microvm.Execution) bool
		}{
			{"zero", "true", nil, "exited", "", code(0)},
			{"one", "false", nil, "exited", "", code(1)},
			{"137 is a code", "sh", []string{"-c", "exit 137"}, "exited", "", code(137)},
			{"a kill is a signal", "sh", []string{"-c", "kill -9 $$"}, "exited", "", func(e *microvm.Execution) bool {
				return e.ExitCode == nil && e.Signal != nil && *e.Signal == "SIGKILL" && !e.OOMKilled
			}},
			{"no such program", "no-such-program", nil, "failed", "command_not_found", nil},
			{"no permission", "/etc/hostname", nil, "failed", "permission_denied", nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				exe := d.Exec(t, sb.ID, c.cmd, c.args...)
				reason := microvm.ExecutionReason("")
				if exe.Reason != nil {
					reason = *exe.Reason
				}
				if exe.Status != c.status || reason != c.reason || c.ok != nil && !c.ok(exe) {
					t.Fatalf("%+v", exe)
				}
				if c.status == "failed" && (exe.Err() == nil || exe.ExitCode != nil || exe.Signal != nil) {
					t.Fatalf("a program that never ran: %+v %v", exe, exe.Err())
				}
			})
		}
	})

	t.Run("bad directory and user", func(t *testing.T) {
		for reason, spec := range map[microvm.ExecutionReason]microvm.ExecutionCreate{
			"bad_directory":  {Cmd: "true", Cwd: harness.Ptr("no/such/dir")},
			"user_not_found": {Cmd: "true", User: harness.Ptr("nobody-here")},
		} {
			exe, _ := d.Client.Executions.Run(t.Context(), sb.ID, spec)
			if exe == nil || exe.Status != "failed" || exe.Reason == nil || *exe.Reason != reason {
				t.Errorf("%s: %+v", reason, exe)
			}
		}
	})

	t.Run("a timeout kills", func(t *testing.T) {
		exe, err := d.Client.Executions.Run(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "sleep", Args: []string{"600"}, TimeoutSeconds: harness.Ptr(1)})
		var ending *microvm.EndingError
		if exe == nil || exe.Status != "timed_out" || exe.ExitCode != nil || !errors.As(exe.Err(), &ending) {
			t.Fatalf("%+v %v", exe, err)
		}
		left := d.Exec(t, sb.ID, "pgrep", "-x", "sleep")
		if left.ExitCode == nil || *left.ExitCode != 1 {
			t.Fatalf("the program still runs: %+v", left)
		}
	})

	t.Run("who and where", func(t *testing.T) {
		exe := d.Exec(t, sb.ID, "sh", "-c", "id -un; pwd; sudo -n id -u; cat /proc/1/comm; ls /sys/class/net")
		if exe.Stdout != "user\n/workspace\n0\n"+"init\nlo\n" {
			t.Fatalf("stdout %q stderr %q", exe.Stdout, exe.Stderr)
		}
	})

	t.Run("pip needs no flag", func(t *testing.T) {
		// There is no network: a wheel made on the spot is installed.
		script := `set -e
python3 - <<'END'
import zipfile
with zipfile.ZipFile("mini-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("mini.py", "def main():\n    print('mini runs')\n")
    info = "mini-1.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: mini\nVersion: 1\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "entry_points.txt", "[console_scripts]\nmini = mini:main\n")
    wheel.writestr(info + "RECORD", "mini.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "entry_points.txt,,\n" + info + "RECORD,,\n")
END
pip install --no-index ./mini-1-py3-none-any.whl >/tmp/pip.log 2>&1 || { cat /tmp/pip.log; exit 1; }
cd / && mini && python3 -c 'import mini'`
		exe := d.Exec(t, sb.ID, "sh", "-c", script)
		if exe.ExitCode == nil || *exe.ExitCode != 0 || exe.Stdout != "mini runs\n" {
			t.Fatalf("stdout %q stderr %q", exe.Stdout, exe.Stderr)
		}
	})

	t.Run("the VMM is jailed", func(t *testing.T) { jailed(t, d, sb.ID) })

	t.Run("delete leaves nothing", func(t *testing.T) {
		gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
		if err != nil || gone.State != "stopped" || gone.StopReason == nil || *gone.StopReason != "stopped" {
			t.Fatalf("%+v %v", gone, err)
		}
		again, err := d.Client.Sandboxes.Retrieve(t.Context(), sb.ID)
		if err != nil || again.State != "stopped" {
			t.Fatalf("a stopped sandbox is not readable: %+v %v", again, err)
		}
		_, err = d.Client.Run(t.Context(), sb.ID, "true")
		if !microvm.HasCode(err, "sandbox_not_running") {
			t.Fatalf("a run after the end: %v", err)
		}
	})
}

// jailed reads the live VMM's confinement from /proc.
func jailed(t *testing.T, d *harness.Daemon, sandbox string) {
	proc := filepath.Join("/proc", d.VMM(t, sandbox))
	root, err := os.Readlink(filepath.Join(proc, "root"))
	name := strings.ReplaceAll(strings.ToLower(sandbox), "_", "-")
	if want := filepath.Join(d.StateDir, "jails/firecracker", name, "root"); err != nil || root != want && root != "/" {
		t.Errorf("root is %s (%v), not %s", root, err, want)
	}
	// The daemon's own score spares it; a host short of memory ends sandboxes first.
	if score, err := os.ReadFile(filepath.Join(proc, "oom_score_adj")); err != nil || string(score) != "500\n" {
		t.Errorf("oom_score_adj is %q: %v", score, err)
	}
	if _, err := os.Stat(filepath.Join(proc, "root", "etc", "passwd")); err == nil {
		t.Error("the VMM sees the host's files")
	}
	for _, namespace := range []string{"mnt", "pid", "net"} {
		its, err := os.Readlink(filepath.Join(proc, "ns", namespace))
		ours, _ := os.Readlink(filepath.Join("/proc/self/ns", namespace))
		if err != nil || its == ours {
			t.Errorf("%s namespace is the host's: %s %v", namespace, its, err)
		}
	}
	tasks, err := filepath.Glob(filepath.Join(proc, "task", "*", "status"))
	if err != nil || len(tasks) < 3 {
		t.Fatalf("threads: %v %v", tasks, err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		field := func(name string) string {
			_, rest, _ := strings.Cut(string(status), "\n"+name+":")
			line, _, _ := strings.Cut(rest, "\n")
			return strings.Join(strings.Fields(line), " ")
		}
		if field("Seccomp") != "2" || field("NoNewPrivs") != "1" {
			t.Errorf("%s: seccomp %s no_new_privs %s", task, field("Seccomp"), field("NoNewPrivs"))
		}
		if uid := field("Uid"); uid != "1950000000 1950000000 1950000000 1950000000" {
			t.Errorf("%s: uid %s", task, uid)
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"} {
			if set != "CapBnd" && strings.Trim(field(set), "0") != "" {
				t.Errorf("%s: %s %s", task, set, field(set))
			}
		}
		if groups := field("Groups"); groups != "" {
			t.Errorf("%s: groups %s", task, groups)
		}
	}
}

func TestTTLEndsASandbox(t *testing.T) {
	d := harness.Start(t, "ttl")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{TTLSeconds: harness.Ptr(20)})
	exe, err := d.Client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	exe, err = d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
	if exe == nil || exe.Status != "vanished" || exe.Reason == nil || *exe.Reason != "ttl" || exe.ExitCode != nil {
		t.Fatalf("%+v %v", exe, err)
	}
	if err := exe.Err(); err == nil || !strings.Contains(err.Error(), "did not fail") {
		t.Fatalf("the error does not say that the code did not fail: %v", err)
	}
	// A delete of what is ending already returns when nothing is left.
	gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
	if err != nil || *gone.StopReason != "expired" || *gone.Reason != "ttl" {
		t.Fatalf("%+v %v", gone, err)
	}
	check()
}

func TestADeadVMMIsToldFromFailedCode(t *testing.T) {
	d := harness.Start(t, "dead")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{})
	exe, err := d.Client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(d.VMM(t, sb.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // found in the cgroup just now
		t.Fatal(err)
	}
	exe, err = d.Client.Executions.Wait(t.Context(), sb.ID, exe.ID)
	if exe == nil || exe.Status != "vanished" || *exe.Reason != "vm_died" {
		t.Fatalf("%+v %v", exe, err)
	}
	gone, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID)
	if err != nil || *gone.StopReason != "failed" || *gone.Reason != "vm_died" {
		t.Fatalf("%+v %v", gone, err)
	}
	check()
}

// TestTenAtOnce creates ten sandboxes together; each runs its own program.
func TestTenAtOnce(t *testing.T) {
	d := harness.Start(t, "ten", "--slots", "10", "--vcpus", "10", "--mem-mib", "4096", "--boot-timeout", "10m")
	check := d.Census(t)
	var group sync.WaitGroup
	for i := range 10 {
		group.Go(func() {
			word := strings.Repeat("x", i+1)
			sb, err := d.Client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
			if err != nil {
				t.Error(err)
				return
			}
			exe, err := d.Client.Run(t.Context(), sb.ID, "echo", word)
			if err != nil || exe.Stdout != word+"\n" {
				t.Errorf("%d: %+v %v", i, exe, err)
			}
			if _, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	check()
}

func TestWrongRequestsGetTheirErrors(t *testing.T) {
	d := harness.Start(t, "wrong", "--slots", "1", "--max-vcpus", "2", "--max-mem-mib", "512", "--mem-mib", "1024", "--vcpus", "2")
	create := func(spec microvm.SandboxCreate) *microvm.Error {
		t.Helper()
		_, err := d.Client.Sandboxes.Create(t.Context(), spec)
		var refusal *microvm.Error
		if !errors.As(err, &refusal) {
			t.Fatalf("%+v: %v", spec, err)
		}
		return refusal
	}
	if e := create(microvm.SandboxCreate{Image: "cobol"}); e.Status != 404 || e.Code != "image_not_found" {
		t.Errorf("unknown image: %+v", e)
	}
	if e := create(microvm.SandboxCreate{Image: "python", Vcpus: harness.Ptr(3)}); e.Status != 400 || e.Param != "vcpus" || !strings.Contains(e.Message, "2") {
		t.Errorf("too many vCPUs: %+v", e)
	}
	if e := create(microvm.SandboxCreate{Image: "python", MemMib: harness.Ptr(513)}); e.Status != 400 || e.Param != "mem_mib" || !strings.Contains(e.Message, "512") {
		t.Errorf("too much memory: %+v", e)
	}

	sb := d.Create(t, microvm.SandboxCreate{})
	began := time.Now()
	client := microvm.New(microvm.WithSocket(d.Socket), microvm.WithMaxRetries(0))
	_, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
	var full *microvm.Error
	if !errors.As(err, &full) || full.Status != 429 || full.Code != "node_at_capacity" || full.RetryAfter <= 0 {
		t.Errorf("a full node: %v", err)
	}
	t.Logf("refused after %s", time.Since(began))

	t.Run("a body too large is told, not reset", func(t *testing.T) {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket)
		}}
		body := `{"path":"big","content":"` + strings.Repeat("A", 9<<20) + `"}`
		reply, err := (&http.Client{Transport: transport}).Post("http://node/v1/sandboxes/"+sb.ID+"/files", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = reply.Body.Close() }()
		if reply.StatusCode != http.StatusRequestEntityTooLarge {
			t.Fatalf("status %d", reply.StatusCode)
		}
	})
}
