package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, code := range []int{0, 1, 137, 255} {
		o := b.run(t, fmt.Sprintf("exe_%d", code), script(fmt.Sprintf("exit %d", code)))
		if got := o.code(t); got != code || o.exit.Signal != "" || o.exit.OOMKilled {
			t.Errorf("exit %d: got %+v", code, o.exit)
		}
	}
}

func TestSignalIsNotACode(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	o := b.run(t, "a", script("kill -9 $$"))
	if o.exit.ExitCode != nil || o.exit.Signal != "SIGKILL" || o.exit.OOMKilled {
		t.Errorf("got %+v", o.exit)
	}
	o = b.run(t, "b", script("sh -c 'kill -9 $$'; exit $?"))
	if o.code(t) != 137 {
		t.Errorf("a child's signal is not the program's: %+v", o.exit)
	}
}

func TestSignalReachesTheWholeGroup(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if _, err := b.begin(t, "a", script("trap 'echo got; exit 3' TERM; echo ready; sleep 1000 & wait")); err != nil {
		t.Fatal(err)
	}
	o := b.until(t, "a", "ready")
	if err := b.Signal(t.Context(), "a", "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if o := b.finish(t, "a", o); o.code(t) != 3 || !strings.Contains(string(o.out), "got") {
		t.Errorf("got %q %+v", o.out, o.exit)
	}
	if err := b.Signal(t.Context(), "a", "SIGTERM"); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
	if err := b.Signal(t.Context(), "a", "SIGNONSENSE"); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("unknown signal: %v", err)
	}
	if err := b.Signal(t.Context(), "nobody", "SIGTERM"); !guestwire.Refused(err, guestwire.NoExecution) {
		t.Errorf("unknown execution: %v", err)
	}
}

func TestBinaryOutputIsExact(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	want := make([]byte, 256*8)
	for i := range want {
		want[i] = byte(i)
	}
	if err := os.WriteFile(filepath.Join(b.root, "workspace", "bytes"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	o := b.run(t, "a", script("cat bytes; cat bytes >&2"))
	if !bytes.Equal(o.out, want) || !bytes.Equal(o.err, want) {
		t.Errorf("out %d bytes, err %d bytes, want %d each, as written", len(o.out), len(o.err), len(want))
	}
}

// What nobody pulls is kept as a tail, and what fell is told by the offset.
func TestLongOutputKeepsTheTail(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const lines = 400_000
	e := b.startAndEnd(t, "a", script(fmt.Sprintf("seq 1 %d", lines)))
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	o := b.finish(t, e.id)
	if o.gaps != 1 || len(o.out) != guestwire.KeepBytes || o.exit.StdoutBytes != int64(want.Len()) {
		t.Fatalf("gaps %d, kept %d, written %d; want 1, %d, %d", o.gaps, len(o.out), o.exit.StdoutBytes, guestwire.KeepBytes, want.Len())
	}
	if o.outAt != int64(want.Len()-len(o.out)) || !bytes.HasSuffix(want.Bytes(), o.out) {
		t.Errorf("the tail at %d is not what was written last", o.outAt)
	}
}

// startAndEnd starts a program and waits for its end without pulling.
func (b *box) startAndEnd(t testing.TB, id string, start guestwire.Start) *execution {
	t.Helper()
	if _, err := b.begin(t, id, start); err != nil {
		t.Fatal(err)
	}
	e, err := b.agent.find(id)
	if err != nil {
		t.Fatal(err)
	}
	<-e.ended
	return e
}

// The program's exit is the end, whoever still holds its pipes; the child goes
// on and does not die of a broken pipe.
func TestBackgroundChildDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	fifo := filepath.Join(b.root, "workspace", "fifo")
	done := filepath.Join(b.root, "workspace", "done")
	for _, path := range []string{fifo, done} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := b.run(t, "a", script("{ cat fifo; echo late; echo later; echo alive > done; } & echo done"))
	if string(o.out) != "done\n" || o.code(t) != 0 {
		t.Fatalf("got %q %+v", o.out, o.exit)
	}
	if err := b.Forget(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(done); err != nil || string(got) != "alive\n" {
		t.Errorf("the child did not get to the end: %q %v", got, err)
	}
}

func TestStartIsIdempotent(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const callers = 16
	pids := make([]int, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			pid, err := b.begin(t, "same", script("echo x >> count; exec sleep 1000"))
			if err != nil {
				t.Error(err)
			}
			pids[i] = pid
		})
	}
	group.Wait()
	for _, pid := range pids {
		if pid != pids[0] {
			t.Fatalf("several programs were started: %v", pids)
		}
	}
	if err := b.Forget(t.Context(), "same"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pids[0], 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("a forgotten program still runs: %v", err)
	}
	if err := b.Forget(t.Context(), "same"); err != nil {
		t.Errorf("forget what is not known: %v", err)
	}
	_, err := b.Pull(t.Context(), "same", guestwire.Pull{}, guestwire.Sink{})
	if !guestwire.Refused(err, guestwire.NoExecution) {
		t.Errorf("pull of a forgotten execution: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	work := filepath.Join(b.root, "workspace")
	for name, text := range map[string]string{"noexec": "#!/bin/sh\n", "nointerp": "#!/no/such\n", "noformat": "echo\n"} {
		mode := os.FileMode(0o755)
		if name == "noexec" {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		start guestwire.Start
		want  guestwire.Code
	}{
		{guestwire.Start{Cmd: "no-such-command"}, guestwire.CommandNotFound},
		{guestwire.Start{Cmd: "./no-such-command"}, guestwire.CommandNotFound},
		{guestwire.Start{Cmd: "./nointerp"}, guestwire.CommandNotFound},
		{guestwire.Start{Cmd: "./noexec"}, guestwire.PermissionDenied},
		{guestwire.Start{Cmd: "/"}, guestwire.PermissionDenied},
		{guestwire.Start{Cmd: "./noformat"}, guestwire.PermissionDenied},
		{guestwire.Start{Cmd: "true", Cwd: "no-such-directory"}, guestwire.BadDirectory},
		{guestwire.Start{Cmd: "true", Cwd: "noexec"}, guestwire.BadDirectory},
		{guestwire.Start{Cmd: "true", User: "no-such-user"}, guestwire.UserNotFound},
		{guestwire.Start{Cmd: ""}, guestwire.BadRequest},
		{guestwire.Start{Cmd: "true", Args: []string{"a\x00b"}}, guestwire.BadRequest},
		{guestwire.Start{Cmd: "true", Env: map[string]string{"A=B": ""}}, guestwire.BadRequest},
	} {
		if _, err := b.begin(t, "exe", c.start); !guestwire.Refused(err, c.want) {
			t.Errorf("%+v: got %v, want %s", c.start, err, c.want)
		}
	}
	if o := b.run(t, "exe", script("echo fine")); string(o.out) != "fine\n" {
		t.Errorf("an id whose start was refused cannot be used: %q", o.out)
	}
}

func TestEnvironmentAndDirectory(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if err := os.Mkdir(filepath.Join(b.root, "workspace", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := b.run(t, "a", guestwire.Start{
		Cmd: "sh", Args: []string{"-c", "pwd; echo $LANG $USER $LOGNAME $TOKEN; cat"}, Cwd: "sub",
		Env: map[string]string{"TOKEN": "secret", "LANG": "C"},
	})
	want := filepath.Join(b.root, "workspace", "sub") + "\nC user user secret\n"
	if string(o.out) != want {
		t.Errorf("got %q, want %q", o.out, want)
	}
}

func TestNotConfigured(t *testing.T) {
	t.Parallel()
	b := newBareBox(t)
	if _, err := b.begin(t, "a", script("true")); !guestwire.Refused(err, guestwire.NotConfigured) {
		t.Errorf("start: %v", err)
	}
	if _, _, err := b.ReadFile(t.Context(), "a", guestwire.Whole); !guestwire.Refused(err, guestwire.NotConfigured) {
		t.Errorf("read: %v", err)
	}
	if err := b.Echo(t.Context(), "hello"); err != nil {
		t.Errorf("echo: %v", err)
	}
}

func TestConfigureIsIdempotent(t *testing.T) {
	t.Parallel()
	var applied []int64
	b := newBareBox(t, func(c *Config) {
		c.Apply = func(conf guestwire.Configure) error {
			applied = append(applied, conf.Generation)
			if len(applied) == 1 {
				return errors.New("not yet")
			}
			return nil
		}
	})
	for i, generation := range []int64{1, 1, 1, 3, 2, 3} {
		got, err := b.Configure(t.Context(), configuration(generation))
		switch {
		case i == 0 && !guestwire.Refused(err, guestwire.Failed):
			t.Errorf("a failed step: %v", err)
		case i > 0 && (err != nil || got.Generation < generation):
			t.Errorf("generation %d: %+v %v", generation, got, err)
		}
	}
	if fmt.Sprint(applied) != "[1 1 3]" {
		t.Errorf("applied %v", applied)
	}
	bad := configuration(4)
	bad.Entropy = bad.Entropy[:31]
	if _, err := b.Configure(t.Context(), bad); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("short entropy: %v", err)
	}
}

func TestExecutionsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for i := range maxExecutions {
		if _, err := b.begin(t, fmt.Sprintf("e%d", i), guestwire.Start{Cmd: "sleep", Args: []string{"600"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.begin(t, "more", guestwire.Start{Cmd: "true"}); !guestwire.Refused(err, guestwire.StartFailed) {
		t.Errorf("one too many: %v", err)
	}
	if err := b.Forget(t.Context(), "e0"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.begin(t, "more", guestwire.Start{Cmd: "true"}); err != nil {
		t.Errorf("after a forget: %v", err)
	}
}

// Loud programs together stay within the budget, and each still has a tail.
func TestOutputBudgetIsShared(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.KeepTotal = 256 << 10 })
	for i := range 8 {
		b.must(t, fmt.Sprintf("e%d", i), script("seq 1 100000; seq 1 100000 >&2"))
	}
	for _, e := range b.agent.executions {
		<-e.ended
	}
	held := 0
	for _, e := range b.agent.executions {
		for i := range e.streams {
			held += len(e.streams[i].ring)
		}
	}
	if held > 256<<10+16*minTail {
		t.Errorf("%d bytes are held", held)
	}
	for i := range 8 {
		o := b.finish(t, fmt.Sprintf("e%d", i))
		if !bytes.HasSuffix(o.out, []byte("100000\n")) || !bytes.HasSuffix(o.err, []byte("100000\n")) {
			t.Errorf("execution %d lost the end of its output", i)
		}
	}
	for i := range 8 {
		if err := b.Forget(t.Context(), fmt.Sprintf("e%d", i)); err != nil {
			t.Error(err)
		}
	}
	if b.agent.budget.free != 256<<10 {
		t.Errorf("budget after all was forgotten: %d", b.agent.budget.free)
	}
}

// What the agent's threads are given for its own sake, no program inherits.
func TestProgramsHaveTheUsualTimerSlack(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	// A thread of its own, which nobody else uses: it ends with the goroutine.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := setTimerSlack(workerSlack)
		if err == nil {
			_, err = b.agent.start("a", guestwire.Start{Cmd: "cat", Args: []string{"/proc/self/timerslack_ns"}})
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if o := b.finish(t, "a"); string(o.out) != "50000\n" {
		t.Errorf("slack of %q ns", o.out)
	}
}
