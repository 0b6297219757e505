package hosttest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
)

// execution is a program that an agent runs.
type execution struct {
	f      *fixture
	client *guestwire.Client
	id     string
	text   [2]strings.Builder // stdout and stderr
	pull   guestwire.Pull
	exit   *guestwire.Exit
}

// start starts a program and takes what it says at once.
func (f *fixture) start(client *guestwire.Client, start guestwire.Start) *execution {
	f.t.Helper()
	e := &execution{f: f, client: client, id: ident.New(ident.Execution)}
	pid := 0
	sink := guestwire.Sink{Started: func(s guestwire.Started) { pid = s.PID }, Output: e.take}
	exit, err := client.Start(f.ctx, e.id, start, sink)
	if err != nil || pid <= 1 {
		f.t.Fatalf("start %s: pid %d, %v", start.Cmd, pid, err)
	}
	e.exit = exit
	return e
}

func (e *execution) take(frame guestwire.Frame) error {
	next, stream := &e.pull.Stdout, 0
	if frame.Type == guestwire.StderrFrame {
		next, stream = &e.pull.Stderr, 1
	}
	if frame.Offset < *next {
		return errors.New("bytes came twice")
	}
	e.text[stream].Write(frame.Payload)
	*next = frame.Offset + int64(len(frame.Payload))
	return nil
}

// until takes what comes until done says so, or the program has ended.
func (e *execution) until(done func(stdout string) bool) {
	e.f.t.Helper()
	for e.exit == nil && !done(e.text[0].String()) {
		e.pull.WaitMS = guestwire.MaxPullWait
		exit, err := e.client.Pull(e.f.ctx, e.id, e.pull, guestwire.Sink{Output: e.take})
		if err != nil {
			e.f.t.Fatalf("pull: %v", err)
		}
		e.exit = exit
	}
}

func (e *execution) says(text string) {
	e.f.t.Helper()
	e.until(func(stdout string) bool { return strings.Contains(stdout, text) })
	if !strings.Contains(e.text[0].String(), text) {
		e.f.t.Fatalf("it ended with %+v and never said %q, but %q", e.exit, text, e.text[0].String())
	}
}

// end takes all that comes and frees the execution.
func (e *execution) end() guestwire.Exit {
	e.f.t.Helper()
	e.until(func(string) bool { return false })
	e.f.ok("forget", e.client.Forget(e.f.ctx, e.id))
	return *e.exit
}

func (e *execution) signal(name string) {
	e.f.t.Helper()
	e.f.ok(name, e.client.Signal(e.f.ctx, e.id, name))
}

// feed sends text to stdin, from offset on, until all is taken.
func (e *execution) feed(offset int64, text string, end bool) {
	e.f.t.Helper()
	for to := offset + int64(len(text)); ; {
		taken, err := e.client.Stdin(e.f.ctx, e.id, offset, []byte(text), end, time.Second)
		if err != nil {
			e.f.t.Fatalf("stdin: %v", err)
		}
		if taken.Offset >= to { // beyond it, if some of it was sent before
			return
		}
		text, offset = text[taken.Offset-offset:], taken.Offset
	}
}

// run runs a program to its end and returns its standard output.
func (f *fixture) run(client *guestwire.Client, cmd string, args ...string) string {
	f.t.Helper()
	e := f.start(client, guestwire.Start{Cmd: cmd, Args: args, Pull: guestwire.Pull{WaitMS: guestwire.MaxPullWait}})
	if exit := e.end(); exit.ExitCode == nil || *exit.ExitCode != 0 {
		f.t.Errorf("%s ended with %+v", cmd, exit)
	}
	return e.text[0].String()
}

func sh(text string) guestwire.Start {
	return guestwire.Start{Cmd: "sh", Args: []string{"-c", text}}
}

func testExecutions(t *testing.T, f *fixture) {
	plan := f.plan()
	f.launch(plan)
	f.must("boot", f.boot(plan))
	client := f.Agents.Client(plan.Host)

	start := guestwire.Start{Cmd: "cat", StdinOpen: true}
	e := f.start(client, start)
	text := strings.Repeat("0123456789abcdef", 20_000) // more than a pipe holds, and more than one request
	e.feed(0, text[:guestwire.MaxStdin], false)
	e.feed(0, text[:1000], false)
	e.feed(guestwire.MaxStdin-500, text[guestwire.MaxStdin-500:], true)
	if exit := e.end(); exit.ExitCode == nil || *exit.ExitCode != 0 || e.text[0].String() != text {
		t.Errorf("cat ended with %+v and said %d bytes of %d", exit, e.text[0].Len(), len(text))
	}

	start = sh("test -t 0 && test -t 1 && test -t 2 && echo terminal $TERM; trap 'stty size; exit 5' WINCH; echo ready; sleep 1000 & wait")
	start.TTY = &guestwire.Size{Rows: 30, Cols: 100}
	e = f.start(client, start)
	e.says("terminal xterm-256color\r\nready\r\n")
	f.ok("resize", client.Resize(f.ctx, e.id, guestwire.Size{Rows: 40, Cols: 120}))
	if exit := e.end(); exit.ExitCode == nil || *exit.ExitCode != 5 || !strings.HasSuffix(e.text[0].String(), "40 120\r\n") {
		t.Errorf("it ended with %+v and said %q", exit, e.text[0].String())
	}
	start = guestwire.Start{Cmd: "cat", TTY: &guestwire.Size{Rows: 24, Cols: 80}}
	e = f.start(client, start)
	e.feed(0, "typed\n", false)
	e.says("typed\r\ntyped\r\n") // echo, and then the program
	e.feed(6, "\x03", false)
	if exit := e.end(); exit.Signal != "SIGINT" {
		t.Errorf("it ended with %+v and said %q", exit, e.text[0].String())
	}

	e = f.start(client, sh("trap 'echo asked; exit 9' TERM; echo ready; sleep 1000 & wait"))
	e.says("ready")
	e.signal("SIGTERM")
	if exit := e.end(); exit.ExitCode == nil || *exit.ExitCode != 9 || !strings.HasSuffix(e.text[0].String(), "asked\n") {
		t.Errorf("it ended with %+v and said %q", exit, e.text[0].String())
	}
	e = f.start(client, sh("trap '' TERM; echo ready; while :; do sleep 1000; done"))
	e.says("ready")
	for _, signal := range []string{"SIGTERM", "SIGSTOP", "SIGKILL"} {
		e.signal(signal)
	}
	if exit := e.end(); exit.Signal != "SIGKILL" || exit.OOMKilled {
		t.Errorf("it ended with %+v", exit)
	}
	if got := f.run(client, "cat", "/proc/self/timerslack_ns", "/proc/self/oom_score_adj"); got != "50000\n0\n" {
		t.Errorf("a program inherits timer slack and OOM score %q", got)
	}
	if !f.OwnKernel {
		return // a guest without a cgroup of its own finds only what stays in its session
	}
	e = f.start(client, sh(`setsid sh -c 'trap "echo found; exit" TERM; echo away; sleep 1000 & wait' & trap '' TERM; wait; echo over`))
	e.says("away")
	e.signal("SIGTERM")
	if exit := e.end(); exit.ExitCode == nil || *exit.ExitCode != 0 || !strings.HasSuffix(e.text[0].String(), "found\nover\n") {
		t.Errorf("it ended with %+v and said %q", exit, e.text[0].String())
	}
}

// prompt is how soon an agent answers whatever its guest does; a guest in an
// emulated host does it at a twentieth of its speed.
const prompt = 20 * time.Second

// answers expects the agent to answer soon.
func (f *fixture) answers(client *guestwire.Client, while string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, prompt)
	defer cancel()
	began := time.Now()
	f.ok("echo under "+while, client.Echo(ctx, "x"))
	f.t.Logf("echo under %s: %s", while, time.Since(began).Round(time.Millisecond))
}

// full takes all the process numbers that the guest's kernel gives to one user.
func (f *fixture) full(client *guestwire.Client) {
	f.t.Helper()
	e := f.start(client, sh(`mkfifo p; (while :; do (read x <p) & done) 2>/dev/null; echo full; while :; do :; done`))
	e.says("full")
	f.answers(client, "no more processes")
	other := f.start(client, guestwire.Start{Cmd: "echo", Args: []string{"room for root"}, User: "root"})
	if exit := other.end(); other.text[0].String() != "room for root\n" {
		f.t.Errorf("root's ended with %+v and said %q", exit, other.text[0].String())
	}
	e.signal("SIGTERM") // to the program and some hundred others
	if exit := e.end(); exit.Signal != "SIGTERM" {
		f.t.Errorf("it ended with %+v", exit)
	}
}

func testBombs(t *testing.T, f *fixture) {
	if !f.OwnKernel {
		return // the host's own limits are not for a test to meet
	}
	plan := f.plan()
	f.launch(plan)
	f.must("boot", f.boot(plan))
	client := f.Agents.Client(plan.Host)
	for name, c := range map[string]struct {
		script string
		oom    bool
	}{
		"a hoarding child":   {`tail /dev/zero; echo goes on`, true},
		"a hoarding program": {`exec tail /dev/zero`, true},
		"a SIGKILL":          {`kill -9 $$`, false},
		"a child's SIGKILL":  {`sh -c 'kill -9 $$'`, false},
	} {
		e := f.start(client, sh(c.script))
		if exit := e.end(); exit.OOMKilled != c.oom || exit.Signal == "" && exit.ExitCode == nil {
			t.Errorf("%s: it ended with %+v", name, exit)
		}
		f.answers(client, name)
	}
	f.full(client)
	for name, script := range map[string]string{
		"a fork bomb":          `bomb() { bomb | bomb & }; bomb; echo ready; while :; do :; done`,
		"a bomb that detaches": `echo ready; while :; do setsid sleep 1000 & done 2>/dev/null`,
		"endless output":       `echo ready; yes; yes >&2`,
	} {
		e := f.start(client, sh(script))
		e.says("ready")
		for range 3 {
			f.answers(client, name)
		}
		e.signal("SIGKILL")
		if exit := e.end(); exit.Signal != "SIGKILL" {
			t.Errorf("%s: it ended with %+v", name, exit)
		}
		if got := f.run(client, "echo", "still here"); got != "still here\n" {
			t.Errorf("after %s it says %q", name, got)
		}
	}
}
