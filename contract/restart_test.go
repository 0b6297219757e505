package contract

import (
	"path/filepath"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// spread is a sandbox with one execution that ended and one that runs, which
// has said something.
type spread struct {
	sandbox, ended, running string
}

func spreadOut(t *testing.T, client *microvm.Client) spread {
	t.Helper()
	sb := create(t, client, microvm.SandboxCreate{Image: "python", Name: ptr("spread"), Tags: microvm.Tags{"of": "restart"}})
	ended, err := client.Run(t.Context(), sb.ID, "sh", "-c", "echo ended; echo badly >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	running, err := client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{
		Cmd: "sh", Args: []string{"-c", "seq 1000; echo on stderr >&2; exec sleep 600"},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the output is kept", func() bool {
		exe, err := client.Executions.Retrieve(t.Context(), sb.ID, running.ID)
		return err == nil && strings.HasSuffix(exe.Stdout, "\n1000\n") && exe.Stderr == "on stderr\n"
	})
	return spread{sb.ID, ended.ID, running.ID}
}

// checkOver: after the daemon's end, however it came, all is told and readable.
func (s spread) checkOver(t *testing.T, client *microvm.Client) {
	t.Helper()
	sb, err := client.Sandboxes.Retrieve(t.Context(), s.sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if sb.State != "stopped" || sb.Reason == nil || *sb.Reason != "host_restarted" || sb.Stopped == nil || sb.Name == nil || *sb.Name != "spread" || sb.Tags["of"] != "restart" {
		t.Errorf("sandbox %+v", sb)
	}
	ended, err := client.Executions.Retrieve(t.Context(), s.sandbox, s.ended)
	if err != nil || ended.Status != "exited" || ended.ExitCode == nil || *ended.ExitCode != 3 || ended.Stdout != "ended\n" || ended.Stderr != "badly\n" {
		t.Errorf("what had ended: %+v %v", ended, err)
	}
	exe, err := client.Executions.Wait(t.Context(), s.sandbox, s.running)
	if err != nil || exe.Status != "vanished" || exe.Reason == nil || *exe.Reason != "host_restarted" || exe.ExitCode != nil || exe.Signal != nil {
		t.Errorf("what ran: %+v %v", exe, err)
		return
	}
	if strings.Count(exe.Stdout, "\n") != 1000 || !strings.HasPrefix(exe.Stdout, "1\n2\n") || exe.StdoutTruncated || exe.Stderr != "on stderr\n" {
		t.Errorf("its output: %d lines, %.20q, stderr %q", strings.Count(exe.Stdout, "\n"), exe.Stdout, exe.Stderr)
	}
	if err := exe.Err(); err == nil || !strings.Contains(err.Error(), "did not fail") {
		t.Errorf("its error does not say that the code did not fail: %v", err)
	}
	if _, err := client.Run(t.Context(), s.sandbox, "true"); !microvm.HasCode(err, "sandbox_not_running") {
		t.Errorf("a run in what is over: %v", err)
	}
	// Its name and its place are free again.
	again := create(t, client, microvm.SandboxCreate{Image: "python", Name: ptr("spread")})
	if exe, err := client.Run(t.Context(), again.ID, "echo", "again"); err != nil || exe.Stdout != "again\n" {
		t.Errorf("a new sandbox: %+v %v", exe, err)
	}
	list, err := client.Executions.List(t.Context(), s.sandbox, microvm.ListExecutionsParams{})
	if err != nil || len(list.Data) != 2 {
		t.Errorf("its executions: %+v %v", list, err)
	}
}

func TestStopEndsSandboxes(t *testing.T) {
	d := start(t)
	s := spreadOut(t, d.local())
	waiting := make(chan error, 1)
	client := d.remote()
	go func() { // a caller that waits meanwhile gets an answer
		exe, err := client.Executions.Wait(t.Context(), s.sandbox, s.running)
		if err == nil && exe.Status != "vanished" {
			t.Errorf("the waiting caller: %+v", exe)
		}
		waiting <- err
	}()
	if len(d.programs()) == 0 {
		t.Error("no program is seen: what looks for those left is blind")
	}
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	<-waiting // it may have come too late to be served at all
	d.checkNoProgram(t)
	d.run(t)
	s.checkOver(t, d.local())
}

func TestAKilledDaemonKeepsWhatItKnew(t *testing.T) {
	d := start(t)
	s := spreadOut(t, d.local())
	d.kill(t)
	d.run(t)
	s.checkOver(t, d.local())

	// And once more: what was settled stays as it was told.
	first, err := d.local().Sandboxes.Retrieve(t.Context(), s.sandbox)
	if err != nil {
		t.Fatal(err)
	}
	d.kill(t)
	d.run(t)
	second, err := d.local().Sandboxes.Retrieve(t.Context(), s.sandbox)
	if err != nil || !second.Stopped.Equal(*first.Stopped) {
		t.Errorf("stopped at %v, then %v: %v", first.Stopped, second, err)
	}
}

// TestADaemonKilledAgainAndAgain: a create that a kill struck is never half there.
func TestADaemonKilledAgainAndAgain(t *testing.T) {
	d := start(t)
	for range 5 {
		client := d.local()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python", TTLSeconds: ptr(600)}); err != nil && !microvm.HasCode(err, "node_at_capacity") {
					return
				}
			}
		}()
		eventually(t, "a sandbox is there", func() bool {
			list, err := d.local().Sandboxes.List(t.Context(), microvm.ListSandboxesParams{})
			return err == nil && len(list.Data) > 0
		})
		d.kill(t)
		<-done
		d.run(t)
		for sb, err := range d.local().Sandboxes.All(t.Context(), microvm.ListSandboxesParams{}) {
			if err != nil {
				t.Fatal(err)
			}
			if sb.State != "stopped" || sb.Reason == nil {
				t.Errorf("after a kill: %+v", sb)
			}
		}
		sb := create(t, d.local(), microvm.SandboxCreate{Image: "python"})
		if _, err := d.local().Sandboxes.Delete(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestASecondDaemonIsRefused: on the same state, on the same socket, and with
// settings that cannot work.
func TestASecondDaemonIsRefused(t *testing.T) {
	d := start(t)
	other := t.TempDir()
	for _, c := range []struct {
		flags []string
		want  []string
	}{
		{[]string{"--socket", filepath.Join(other, "s")}, []string{"another microvmd uses " + d.dir, "--state-dir"}},
		{[]string{"--state-dir", filepath.Join(other, "state")}, []string{"another daemon answers there", "--socket"}},
		{[]string{"--state-dir", filepath.Join(other, "state"), "--socket", filepath.Join(other, "s"), "--listen", d.addr}, []string{"listen on " + d.addr, "in use"}},
		{[]string{"--state-dir", "state", "--uid-base", "0", "--instance", "A B", "--max-body-bytes", "1"}, []string{"state-dir", "uid-base", "instance", "max-body-bytes"}},
		{[]string{"--state-dir", filepath.Join(other, "state"), "--socket", filepath.Join(other, "s"), "--slots", "0", "--vcpus", "0"}, []string{"slots", "vcpus"}},
	} {
		out, err := d.command(c.flags...).CombinedOutput()
		if err == nil {
			t.Errorf("%v: it ran", c.flags)
		}
		for _, want := range append(c.want, "error: ") {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v: no %q in %s", c.flags, want, out)
			}
		}
	}
	if _, err := d.local().Images.List(t.Context()); err != nil {
		t.Errorf("the first one was disturbed: %v", err)
	}
}
