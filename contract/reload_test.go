package contract

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// reloaded is what the daemon logs of a reload.
type reloaded struct {
	Msg, Error string
	Changes    int
	Changed    map[string]string
}

// hangup has the daemon read its configuration again and returns what it says.
func (d *daemon) hangup(t *testing.T) (last reloaded) {
	t.Helper()
	before := len(d.reloads())
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is reloaded, or not", func() bool {
		all := d.reloads()
		if len(all) > before {
			last = all[len(all)-1]
		}
		return len(all) > before
	})
	return last
}

func (d *daemon) reloads() (all []reloaded) {
	for line := range strings.Lines(d.log.text()) {
		var entry reloaded
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, "configuration ") {
			all = append(all, entry)
		}
	}
	return all
}

func (d *daemon) fills(t *testing.T, slots string) {
	t.Helper()
	reply := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python"}`)
	checkRefusal(t, reply, 429, "capacity_error", "node_at_capacity", "")
	if !strings.Contains(string(reply.body), "all "+slots+" slots") {
		t.Errorf("full, but not with %s slots: %s", slots, reply.body)
	}
}

// TestReload: limits change while sandboxes run, which notice nothing; a file
// with a fault, or with a change that wants a restart, changes nothing at all.
func TestReload(t *testing.T) {
	d := start(t)
	client := d.remote()
	first := create(t, client, microvm.SandboxCreate{Image: "python"})
	second := create(t, client, microvm.SandboxCreate{Image: "python"})
	exe, err := client.Executions.Create(t.Context(), first.ID, microvm.ExecutionCreate{
		Cmd: "sh", Args: []string{"-c", "until test -e go; do sleep 0.02; done; echo undisturbed"},
	})
	if err != nil {
		t.Fatal(err)
	}

	d.configure(t, map[string]string{"slots": "1"}) // fewer than there are
	if got := d.hangup(t); got.Msg != "configuration reloaded" || got.Changes != 1 || got.Changed["slots"] != "16 -> 1" {
		t.Errorf("%+v", got)
	}
	d.fills(t, "1")

	d.configure(t, map[string]string{"slots": "3", "max-ttl": "1h"})
	if got := d.hangup(t); got.Changes != 2 || got.Changed["slots"] != "1 -> 3" || got.Changed["max-ttl"] != "24h0m0s -> 1h0m0s" {
		t.Errorf("%+v", got)
	}
	long := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python","ttl_seconds":3601}`)
	checkRefusal(t, long, 400, "invalid_request_error", "parameter_invalid", "ttl_seconds")
	create(t, client, microvm.SandboxCreate{Image: "python"})
	d.fills(t, "3")

	for _, c := range []struct {
		text string
		want []string
	}{
		{"slots: 9\nslot: 9\nvcpus: many\n", []string{":2:1: slot is no setting", ":3:8: vcpus"}},
		{"slots: 9\ninstance: other\nlisten: 127.0.0.1:1\n", []string{"instance"}}, // --listen is a flag here
		{"slots: 9\nscratch-mib: 1\nreconcile-every: 5s\nboots-at-once: 9\n", []string{"boots-at-once, reconcile-every, scratch-mib: changes only with a restart"}},
		{"slots: 9\nvcpus: 0\nmax-ttl: 0s\n", []string{"vcpus is 0", "max-ttl is 0s"}},
		{"slots: [9", []string{":1:"}},
	} {
		if err := os.WriteFile(d.config(), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := d.hangup(t)
		for _, want := range c.want {
			if !strings.Contains(got.Msg, "nothing is changed") || !strings.Contains(got.Error, want) {
				t.Errorf("%q: no %q in %+v", c.text, want, got)
			}
		}
		d.fills(t, "3")
	}
	if err := os.Remove(d.config()); err != nil {
		t.Fatal(err)
	}
	if got := d.hangup(t); !strings.Contains(got.Error, "no such file") {
		t.Errorf("without its file: %+v", got)
	}
	d.fills(t, "3")

	if _, err := client.Files.Write(t.Context(), first.ID, "go", nil); err != nil {
		t.Fatal(err)
	}
	if exe, err := client.Executions.Wait(t.Context(), first.ID, exe.ID); err != nil || exe.Status != "exited" || exe.Stdout != "undisturbed\n" {
		t.Errorf("what ran: %+v %v", exe, err)
	}
	runs(t, client, second.ID)
}

// TestReloadOfAll: everything that is said to be live is.
func TestReloadOfAll(t *testing.T) {
	d := start(t)
	all := map[string]string{
		"slots": "17", "vcpus": "33", "mem-mib": "16385", "disk-mib": "99999", "max-vcpus": "5", "max-mem-mib": "2049", "max-ttl": "25h",
		"templates": "9", "boot-turn": "16s", "boot-timeout": "4m", "stall-timeout": "31s", "step-timeout": "32s", "drain": "false", "log-level": "debug",
	}
	d.configure(t, all)
	if got := d.hangup(t); got.Changes != len(all) {
		t.Errorf("%+v", got)
	}
	if code := d.stop(t); code != 0 || !strings.Contains(d.log.text(), "sandboxes go on") {
		t.Errorf("ended with %d, and as if it had not reloaded", code)
	}
	d.run(t)
	if again := d.hangup(t); again.Msg != "configuration reloaded" || again.Changes != 0 {
		t.Errorf("a start with the same file, and a reload: %+v", again)
	}
}

// TestConfigurationFile: it counts less than flags, and a fault in it says where.
func TestConfigurationFile(t *testing.T) {
	d := start(t, "--max-ttl", "1h")
	d.configure(t, map[string]string{"max-ttl": "2h", "slots": "1"})
	if got := d.hangup(t); got.Changes != 1 || !strings.Contains(d.log.text(), `"settings":"max-ttl"`) {
		t.Errorf("%+v\n%s", got, d.log.text())
	}
	long := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python","ttl_seconds":3601}`)
	checkRefusal(t, long, 400, "invalid_request_error", "parameter_invalid", "ttl_seconds")

	path := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(path, []byte("# ours\nslots: 4\nstate: /x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"MICROVM_CONFIG=" + path, nil, path + ":3:1: state is no setting"},
		{"MICROVM_CONFIG=/none", []string{"--config", path}, path + ":3:1: state is no setting"},
		{"MICROVM_CONFIG=/none", nil, "/none: no such file"},
	} {
		cmd := exec.Command(filepath.Join(programs, "microvmd"), c.args...)
		cmd.Env = append(os.Environ(), c.env)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%+v: %v: %s", c, err, out)
		}
	}
}

// TestServiceManagerIsTold: a daemon is up when it serves, and not before.
func TestServiceManagerIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	told := func(want string) {
		t.Helper()
		_ = manager.SetReadDeadline(time.Now().Add(patience))
		text := make([]byte, 256)
		if n, err := manager.Read(text); err != nil || !strings.HasPrefix(string(text[:n]), want) {
			t.Fatalf("told %q, want %s: %v", text[:n], want, err)
		}
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	d := start(t)
	told("READY=1")
	if reply := request(t, d, "", "GET", "/v1/health", ""); reply.StatusCode != 200 {
		t.Errorf("ready, and then %d", reply.StatusCode)
	}
	d.hangup(t)
	told("RELOADING=1\nMONOTONIC_USEC=")
	told("READY=1")
	environment := create(t, d.local(), microvm.SandboxCreate{Image: "python"})
	if exe, err := d.local().Run(t.Context(), environment.ID, "env"); err != nil || strings.Contains(exe.Stdout, "NOTIFY_SOCKET") {
		t.Errorf("a program can talk to our service manager: %v %v", exe, err)
	}
	d.stop(t)
	told("STOPPING=1")
	if left, err := readable(manager); left {
		t.Errorf("told more: %v", err)
	}
}

// readable reports whether another message is there.
func readable(conn *net.UnixConn) (bool, error) {
	_ = conn.SetReadDeadline(time.Now().Add(again))
	n, err := conn.Read(make([]byte, 256))
	if err != nil {
		return false, err
	}
	return true, fmt.Errorf("%d bytes", n)
}
