package machine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// The command name is the process's own choice.
	text := []byte("42 (a) S (b) R) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21")
	start, state, err := parseStat(text)
	if err != nil || start != 777 || state != 'S' {
		t.Errorf("start %d, state %c, %v", start, state, err)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1 2"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestIdentity(t *testing.T) {
	me, err := identify(os.Getpid())
	if err != nil || !me.Alive() {
		t.Fatalf("%+v, %v", me, err)
	}
	for _, other := range []Identity{{}, {PID: me.PID, Start: me.Start + 1, Boot: me.Boot}, {PID: me.PID, Start: me.Start, Boot: "another"}} {
		if other.Alive() {
			t.Errorf("%+v is alive", other)
		}
		if err := other.signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal %+v: %v", other, err)
		}
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil || id.Alive() {
		t.Errorf("after the kill: %v, alive %v", err, id.Alive())
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(path); !errors.Is(err, errLocked) {
		t.Errorf("second: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		f, err := waitLock(ctx, path, func() { close(waits) })
		if err == nil {
			f.Close()
		}
		got <- err
	}()
	<-waits
	first.Close()
	if err := <-got; err != nil {
		t.Errorf("wait: %v", err)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	cancel()
	if _, err := waitLock(ctx, path, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestChoosePorts(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	got, err := choosePorts([]int{port, 0}, 2)
	if err != nil || len(got) != 2 || got[0] == port || got[0] == got[1] || got[0] == 0 {
		t.Errorf("ports %v, %v (taken: %d)", got, err, port)
	}
	again, err := choosePorts(got, 2)
	if err != nil || again[0] != got[0] || again[1] != got[1] {
		t.Errorf("free ports were not kept: %v, then %v, %v", got, again, err)
	}
}

func TestClassify(t *testing.T) {
	const killed, failed = syscall.WaitStatus(9), syscall.WaitStatus(1 << 8)
	panicked := []byte("[1.0] BUG: kernel NULL pointer\n[1.0] RIP: x\n[1.1] Kernel panic - not syncing: Fatal exception\n")
	for _, c := range []struct {
		name          string
		asked, forced bool
		reason        string
		status        syscall.WaitStatus
		console       []byte
		want          Ending
		state         State
	}{
		{"stop", true, false, "guest-shutdown", 0, nil, EndAsked, StateStopped},
		{"stop that had to kill", true, true, "", killed, nil, EndAsked, StateStopped},
		{"panic", false, false, "guest-reset", 0, panicked, EndPanic, StateCrashed},
		{"panic while stopping", true, false, "guest-reset", 0, panicked, EndPanic, StateCrashed},
		{"poweroff", false, false, "guest-shutdown", 0, nil, EndPoweroff, StateStopped},
		{"reboot", false, false, "guest-reset", 0, nil, EndReset, StateCrashed},
		{"killed", false, false, "", killed, nil, EndKilled, StateCrashed},
		{"failed", false, false, "", failed, nil, EndFailed, StateCrashed},
	} {
		e := classify(c.asked, c.forced, c.reason, c.status, c.console, "complaint")
		if state, _ := e.state(); e.Ending != c.want || state != c.state {
			t.Errorf("%s: %+v, %s", c.name, e, state)
		}
	}
}

func TestQMP(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	sent := make(chan string, 1)
	go func() {
		buf := make([]byte, 200)
		io.WriteString(theirs, `{"QMP": {"version": {}, "capabilities": []}}`+"\n")
		n, _ := theirs.Read(buf)
		sent <- string(buf[:n])
		io.WriteString(theirs, `{"return": {}}`+"\n")
	}()
	q, err := greet(ours, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-sent; got != `{"execute":"qmp_capabilities"}`+"\n" {
		t.Errorf("sent %q", got)
	}
	go func() {
		io.WriteString(theirs, `{"event": "RESUME", "data": {}}`+"\n"+`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}`+"\n")
		theirs.Close()
	}()
	if reason := q.shutdownReason(); reason != "guest-reset" {
		t.Errorf("reason %q", reason)
	}
}

func TestStatusWithoutProcess(t *testing.T) {
	m, err := Open(Config{Dir: t.TempDir(), Cache: t.TempDir(), Keeper: []string{"k"}})
	if err != nil {
		t.Fatal(err)
	}
	state := func(want State) {
		t.Helper()
		if s, err := m.Status(t.Context()); err != nil || s.State != want {
			t.Errorf("status %+v, %v; want %s", s, err, want)
		}
	}
	state(StateAbsent)
	if err := errors.Join(os.MkdirAll(m.Directory(), 0o700), writeJSON(m.path(settingsFile), Settings{})); err != nil {
		t.Fatal(err)
	}
	state(StateStopped)
	if err := writeJSON(m.path(runFile), run{}); err != nil {
		t.Fatal(err)
	}
	state(StateCrashed)
	if was, err := m.Stop(t.Context()); err != nil || was {
		t.Errorf("stop of a crashed machine: %v, %v", was, err)
	}
	if err := m.Delete(t.Context(), false); err != nil {
		t.Error(err)
	}
	state(StateAbsent)
}
