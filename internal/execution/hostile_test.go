package execution_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit"
)

// TestARefusedPullEndsTheSandbox: an agent that started a program and then
// knows nothing of it lies. The execution must not stay running past its
// timeout, until the sandbox's TTL.
func TestARefusedPullEndsTheSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, (&stub{pull: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(guestwire.NoExecution.Status())
			_ = json.NewEncoder(w).Encode(guestwire.Error{Code: guestwire.NoExecution})
		}}).factory())
		began := time.Now()
		e := f.run(t, execution.Spec{Cmd: "x", Timeout: 7 * time.Second})
		if e.Status != execution.Vanished || e.Reason != execution.AgentDied || time.Since(began) > time.Second {
			t.Fatalf("%+v after %s", e, time.Since(began))
		}
	})
}

// TestAnAgentThatAnswersAtOnceDoesNotSpinTheHost counts the pulls that an agent
// gets which has nothing to say, or a byte at a time, and says so at once.
func TestAnAgentThatAnswersAtOnceDoesNotSpinTheHost(t *testing.T) {
	for name, talk := range map[string]func(http.ResponseWriter, guestwire.Pull) error{
		"nothing": func(http.ResponseWriter, guestwire.Pull) error { return nil },
		"one byte": func(w http.ResponseWriter, pull guestwire.Pull) error {
			return guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.StdoutFrame, Offset: pull.Stdout, Payload: []byte("x")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const enough = 50_000
				var pulls atomic.Int32
				f := newFixture(t, (&stub{pull: func(w http.ResponseWriter, r *http.Request) {
					if pulls.Add(1) > enough {
						quiet(w, r) // else the clock of this test never moves
						return
					}
					var pull guestwire.Pull
					_ = json.NewDecoder(r.Body).Decode(&pull)
					if err := talk(w, pull); err != nil {
						t.Error(err)
					}
				}}).factory())
				if e := f.run(t, execution.Spec{Cmd: "x", Timeout: 10 * time.Second}); e.Status != execution.TimedOut {
					t.Fatalf("%+v", e)
				}
				if n := pulls.Load(); n > 4000 {
					t.Fatalf("%d pulls in 15 s", n)
				}
			})
		})
	}
}

// TestRunningExecutionsAreBounded: each holds a connection to the guest and a
// goroutine, and without one that is free the agent looks dead.
func TestRunningExecutionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, (&stub{pull: quiet}).factory())
		for range execution.MaxRunning {
			if _, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "x", Timeout: time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "x"}); !fault.Is(err, fault.NodeAtCapacity) {
			t.Fatalf("one too many: %v", err)
		}
		page, err := f.List(t.Context(), execution.Query{Sandbox: f.sb.ID, Limit: 1})
		if err != nil || len(page.Data) != 1 || page.Data[0].Timeout != time.Second {
			t.Fatalf("the refused one is listed: %+v %v", page, err)
		}
	})
}

// TestRecoverSweepsOutputOfForgottenSandboxes: a daemon that is killed between
// forgetting rows and removing output leaves directories that nobody knows.
func TestRecoverSweepsOutputOfForgottenSandboxes(t *testing.T) {
	dir := t.TempDir()
	f := newFixtureIn(t, dir, testkit.GuestAgent(t.TempDir()))
	e := f.run(t, sh("echo kept"))
	orphan := filepath.Join(dir, "sb-01hzzzzzzzzzzzzzzzzzzzzzzz")
	foreign := filepath.Join(dir, "lost+found")
	for _, path := range []string{orphan, foreign} {
		if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(orphan); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the orphan is there: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("what is not ours is gone: %v", err)
	}
	if out, err := f.Output(e); err != nil || string(out.Stdout.Bytes) != "kept\n" {
		t.Errorf("%+v %v", out, err)
	}
}

// TestDamagedOutputDoesNotHideHowAnExecutionEnded: a power cut may leave a ring
// that is short, damaged or missing. The end is in the store and stays readable;
// the output is told as lost, never as empty.
func TestDamagedOutputDoesNotHideHowAnExecutionEnded(t *testing.T) {
	dir := t.TempDir()
	f := newFixtureIn(t, dir, testkit.GuestAgent(t.TempDir()))
	e := f.run(t, sh("echo gone; echo broken >&2"))
	kept := filepath.Join(dir, hostName(f.sb.ID), hostName(e.ID))
	if err := errors.Join(os.Remove(filepath.Join(kept, "stdout")), os.Truncate(filepath.Join(kept, "stderr"), 10)); err != nil {
		t.Fatal(err)
	}
	out, err := f.Output(e)
	if err != nil || out.Stdout.Offset != 5 || out.Stderr.Offset != 7 || len(out.Stdout.Bytes)+len(out.Stderr.Bytes) != 0 {
		t.Fatalf("%+v %v", out, err)
	}
}

// TestKeptOutputIsBounded: output beyond the bound goes, oldest first and from
// the sandbox that has most of it, and is told as lost.
func TestKeptOutputIsBounded(t *testing.T) {
	dir := t.TempDir()
	defer func(before int64) { keep = before }(keep)
	keep = 5 * 8192 // a ring of a few bytes has one page of header and one of data
	f := newFixtureIn(t, dir, testkit.GuestAgent(t.TempDir()))
	quietOne := f.sb
	first := f.run(t, sh("echo quiet"))
	var err error
	if f.sb, err = f.sandboxes.Create(t.Context(), sandbox.Spec{Image: "python"}); err != nil {
		t.Fatal(err)
	}
	var loud []execution.Execution
	for range 8 {
		loud = append(loud, f.run(t, sh("echo loud")))
	}
	kept := func(m *execution.Manager, sb sandbox.Sandbox, e execution.Execution) string {
		out, err := m.Output(e)
		if err != nil || out.Stdout.Offset+int64(len(out.Stdout.Bytes)) != e.StdoutBytes {
			t.Fatalf("%+v %v", out, err)
		}
		return string(out.Stdout.Bytes)
	}
	for i, e := range loud {
		want := "loud\n"
		if i < 4 {
			want = ""
		}
		if got := kept(f.Manager, f.sb, e); got != want {
			t.Errorf("%d of 8: %q", i, got)
		}
	}
	if got := kept(f.Manager, quietOne, first); got != "quiet\n" {
		t.Errorf("of the other sandbox: %q", got)
	}
	// The next daemon counts what is there.
	next := execution.New(execution.Config{
		Store: f.store, Sandboxes: f.sandboxes, Dir: dir, Logger: slog.New(slog.DiscardHandler), KeepBytes: 2 * 8192, KeepSandboxBytes: 2 * 8192,
	})
	if err := next.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b, c := kept(next, quietOne, first), kept(next, f.sb, loud[6]), kept(next, f.sb, loud[7]); a != "quiet\n" || b != "" || c != "loud\n" {
		t.Errorf("after a restart: %q %q %q", a, b, c)
	}
}

// TestAnAgentThatTakesNoInputDoesNotSpinTheHost: one that takes none of the text
// of a start, or a byte at a time, and says so at once, gets a bounded number of
// requests for it.
func TestAnAgentThatTakesNoInputDoesNotSpinTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		step int64 // that it takes of each
	}{
		"nothing of a byte": {"x", 0}, "nothing of much": {strings.Repeat("x", execution.MaxStdin), 0},
		"a byte more than there is": {"x", 1}, "a byte at a time": {strings.Repeat("x", execution.MaxStdin), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var requests atomic.Int64
				f := newFixture(t, (&stub{pull: quiet, stdin: func(w http.ResponseWriter, r *http.Request) {
					if requests.Add(1) > 50_000 {
						<-r.Context().Done() // else the clock of this test never moves
						return
					}
					at, _ := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
					_ = json.NewEncoder(w).Encode(guestwire.StdinTaken{Offset: at + c.step})
				}}).factory())
				if e := f.run(t, execution.Spec{Cmd: "x", Stdin: c.text, Timeout: 10 * time.Second}); e.Status != execution.TimedOut {
					t.Fatalf("%+v", e)
				}
				if n := requests.Load(); n > 4000 {
					t.Fatalf("%d requests in 15 s", n)
				}
			})
		})
	}
}

// TestInputIsNoSilence: a program that does not read for longer than an agent may
// be silent loses nothing by it.
func TestInputIsNoSilence(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	n.agentTimeout = time.Second
	l := n.start(n.store)
	e := l.begin(t, execution.Spec{Cmd: "sh", Args: []string{"-c", "sleep 3; exec sha256sum"}, Stdin: string(pattern(200_000)), Timeout: time.Minute})
	e, out := l.ended(t, e)
	if e.Status != execution.Exited || out != digest(pattern(200_000)) {
		t.Errorf("%+v %q", e, out)
	}
	l.leave(t, true)
}
