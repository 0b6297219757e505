package execution_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

type images struct{}

func (images) Hold(id string) *image.Use { return &image.Use{Image: image.Image{ID: id}} }

func (images) Use(context.Context, string, image.By) (*image.Use, error) {
	return &image.Use{Image: image.Image{ID: "python", Path: "/images/python/rootfs.erofs", User: "user", Workdir: "/workspace", Env: map[string]string{"PATH": os.Getenv("PATH")}}}, nil
}

var limits = sandbox.Limits{
	Slots: 4, VCPUs: 8, MemMiB: 2048, MaxVCPUs: 2, MaxMemMiB: 512, MaxTTL: time.Hour, ScratchMiB: 64, DiskMiB: 256,
	BootsAtOnce: 4, BootTurn: 5 * time.Second, BootTimeout: 30 * time.Second, StallTimeout: 20 * time.Second, StepTimeout: 10 * time.Second,
	ReconcileEvery: time.Minute,
}

type fixture struct {
	*execution.Manager
	sandboxes *sandbox.Manager
	store     *sqlstore.Store
	host      *testkit.Host
	sb        sandbox.Sandbox
}

// newFixture has one running sandbox whose agents are made by agent.
func newFixture(t testing.TB, agent testkit.AgentFactory) *fixture {
	t.Helper()
	return newFixtureIn(t, filepath.Join(t.TempDir(), "executions"), agent)
}

// keep is more output than the tests make together, unless they say so.
var keep int64 = 1 << 30

// newFixtureIn keeps output in dir.
func newFixtureIn(t testing.TB, dir string, agent testkit.AgentFactory) *fixture {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{store: store, host: testkit.NewHost(agent)}
	f.sandboxes, err = sandbox.New(sandbox.Config{
		Store: store, Images: images{}, Cgroups: f.host.Cgroups(), VMM: f.host.VMM(), Agents: f.host.Agents(),
		Limits: limits,
		Uptime: uptime, HostBoot: "boot",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Manager = execution.New(execution.Config{
		Store: store, Sandboxes: f.sandboxes, Dir: dir,
		Logger: slog.New(slog.DiscardHandler), AgentTimeout: 20 * time.Second, KillTimeout: 5 * time.Second, KeepBytes: keep, KeepSandboxBytes: keep, Uptime: uptime,
	})
	if f.sb, err = f.sandboxes.Create(t.Context(), sandbox.Spec{Image: "python", TTL: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.sandboxes.Close(context.Background(), true); err != nil {
			t.Error(err)
		}
		f.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// uptime is the host's, in the time of a bubble.
func uptime() time.Duration { return time.Duration(time.Now().UnixNano()) }

// run starts a program and waits for its end.
func (f *fixture) run(t *testing.T, spec execution.Spec) execution.Execution {
	t.Helper()
	e, err := f.Start(t.Context(), f.sb.ID, spec)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || e.Status == execution.Running {
		t.Fatalf("%+v %v", e, err)
	}
	return e
}

func sh(script string) execution.Spec {
	return execution.Spec{Cmd: "sh", Args: []string{"-c", script}}
}

func TestEndingsAreTold(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	for _, c := range []struct {
		spec   execution.Spec
		status execution.Status
		reason execution.Reason
		code   int // -1: none
		signal string
	}{
		{sh("exit 0"), execution.Exited, "", 0, ""},
		{sh("exit 137"), execution.Exited, "", 137, ""},
		{sh("kill -9 $$"), execution.Exited, "", -1, "SIGKILL"},
		{sh("kill -TERM $$"), execution.Exited, "", -1, "SIGTERM"},
		{execution.Spec{Cmd: "no-such-program"}, execution.Failed, execution.CommandNotFound, -1, ""},
		{execution.Spec{Cmd: "/etc/hosts"}, execution.Failed, execution.PermissionDenied, -1, ""},
		{execution.Spec{Cmd: "true", Cwd: "none"}, execution.Failed, execution.BadDirectory, -1, ""},
		{execution.Spec{Cmd: "true", User: "nobody-here"}, execution.Failed, execution.UserNotFound, -1, ""},
		{execution.Spec{Cmd: "sleep", Args: []string{"600"}, Timeout: time.Second}, execution.TimedOut, execution.Timeout, -1, "SIGKILL"},
	} {
		e := f.run(t, c.spec)
		code := -1
		if e.ExitCode != nil {
			code = *e.ExitCode
		}
		if e.Status != c.status || e.Reason != c.reason || code != c.code || e.Signal != c.signal || e.OOMKilled || e.Finished.IsZero() {
			t.Errorf("%v: %+v", c.spec, e)
		}
		stored, err := f.store.Execution(t.Context(), f.sb.ID, e.ID)
		if err != nil || stored.Status != e.Status || stored.Reason != e.Reason {
			t.Errorf("stored: %+v %v", stored, err)
		}
	}
}

// TestOutputIsExact holds what is kept against what the program wrote: all of
// it while it fits, and the declared tail of it when it does not.
func TestOutputIsExact(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e := f.run(t, sh(`printf 'a\000\377b'; printf 'err' >&2`))
	out, err := f.Output(e)
	if err != nil || string(out.Stdout.Bytes) != "a\x00\xffb" || string(out.Stderr.Bytes) != "err" || out.Stdout.Offset != 0 {
		t.Fatalf("%+v %v", out, err)
	}
	e = f.run(t, sh("seq 1 400000"))
	var want bytes.Buffer
	for i := 1; i <= 400000; i++ {
		b, _ := json.Marshal(i)
		want.Write(append(b, '\n'))
	}
	if out, err = f.Output(e); err != nil {
		t.Fatal(err)
	}
	if e.StdoutBytes != int64(want.Len()) || out.Stdout.Offset+int64(len(out.Stdout.Bytes)) != e.StdoutBytes {
		t.Fatalf("%d bytes written, told %d, kept %d from %d", want.Len(), e.StdoutBytes, len(out.Stdout.Bytes), out.Stdout.Offset)
	}
	if !bytes.Equal(out.Stdout.Bytes, want.Bytes()[out.Stdout.Offset:]) || len(out.Stdout.Bytes) == 0 {
		t.Fatal("the tail is not what the program wrote")
	}
}

func TestOutputOfARunningProgramAndAfterTheEndOfItsSandbox(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("echo early; exec sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		out, err := f.Output(e)
		if err != nil {
			t.Fatal(err)
		}
		if string(out.Stdout.Bytes) == "early\n" {
			page, err := f.List(t.Context(), execution.Query{Sandbox: f.sb.ID, Limit: 1})
			if err != nil || len(page.Data) != 1 || page.Data[0].StdoutBytes != int64(len("early\n")) {
				t.Errorf("listed: %+v %v", page, err)
			}
			break
		}
		if now, _ := f.Wait(t.Context(), f.sb.ID, e.ID, 10*time.Millisecond); now.Status != execution.Running {
			t.Fatalf("%+v", now)
		}
	}
	if _, err := f.sandboxes.Delete(t.Context(), f.sb.ID); err != nil {
		t.Fatal(err)
	}
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if e.Status != execution.Vanished || e.Reason != execution.Deleted || e.ExitCode != nil || e.Signal != "" {
		t.Fatalf("%+v", e)
	}
	out, err := f.Output(e)
	if err != nil || string(out.Stdout.Bytes) != "early\n" {
		t.Fatalf("%+v %v", out, err)
	}
	if _, err := f.Start(t.Context(), f.sb.ID, sh("true")); !fault.Is(err, fault.SandboxNotRunning) {
		t.Fatalf("a start after the end: %v", err)
	}
}

func TestADeadVMMIsTheSandboxsEnding(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("exec sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	f.host.Die(hostName(f.sb.ID))
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || e.Status != execution.Vanished || e.Reason != execution.VMDied {
		t.Fatalf("%+v %v", e, err)
	}
}

// stub is an agent whose executions do what a test says, on a synctest clock.
type stub struct {
	start func(w http.ResponseWriter)
	pull  func(w http.ResponseWriter, r *http.Request)
	stdin func(w http.ResponseWriter, r *http.Request)
	kills atomic.Int32
}

// configured is what all agents answer alike.
func configured() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc(guestwire.RouteConfigure, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"generation":1}`))
	})
	mux.HandleFunc(guestwire.RouteEcho, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.URL.Query().Get("text"))) //nolint:gosec // no browser reads it
	})
	mux.HandleFunc(guestwire.RouteForget, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return mux
}

func (s *stub) factory() testkit.AgentFactory {
	mux := configured()
	mux.HandleFunc(guestwire.RouteStart, func(w http.ResponseWriter, _ *http.Request) {
		if s.start != nil {
			s.start(w)
			return
		}
		(&framed{ResponseWriter: w}).begin()
	})
	mux.HandleFunc(guestwire.RoutePull, func(w http.ResponseWriter, r *http.Request) {
		framed := &framed{ResponseWriter: w}
		s.pull(framed, r)
		framed.begin()
	})
	mux.HandleFunc(guestwire.RouteSignal, func(w http.ResponseWriter, _ *http.Request) {
		s.kills.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc(guestwire.RouteStdin, func(w http.ResponseWriter, r *http.Request) { s.stdin(w, r) })
	return testkit.HandlerAgent(mux)
}

// framed begins a reply with the frame that every one begins with, unless it is
// a refusal.
type framed struct {
	http.ResponseWriter
	begun bool
}

func (f *framed) begin() {
	if !f.begun {
		f.begun = true
		_ = guestwire.WriteFrame(f.ResponseWriter, guestwire.Frame{Type: guestwire.StartedFrame, Payload: []byte(`{"pid":42}`)})
	}
}

func (f *framed) WriteHeader(status int) {
	f.begun = true
	f.ResponseWriter.WriteHeader(status)
}

func (f *framed) Write(p []byte) (int, error) {
	f.begin()
	return f.ResponseWriter.Write(p)
}

// quiet waits as an agent does that has nothing to say.
func quiet(_ http.ResponseWriter, r *http.Request) {
	var pull guestwire.Pull
	_ = json.NewDecoder(r.Body).Decode(&pull)
	select {
	case <-time.After(time.Duration(pull.WaitMS) * time.Millisecond):
	case <-r.Context().Done():
	}
}

// TestTheHostOwnsTheTimeout: a guest that does not confirm the kill loses its
// sandbox, and the execution is timed_out all the same.
func TestTheHostOwnsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &stub{pull: quiet}
		f := newFixture(t, agent.factory())
		began := time.Now()
		e := f.run(t, execution.Spec{Cmd: "x", Timeout: 7 * time.Second})
		if e.Status != execution.TimedOut || e.Reason != execution.Timeout || e.ExitCode != nil || time.Since(began) != 12*time.Second {
			t.Fatalf("%+v after %s", e, time.Since(began))
		}
		if agent.kills.Load() == 0 {
			t.Fatal("nothing was killed")
		}
		synctest.Wait()
		sb, err := f.sandboxes.Get(t.Context(), f.sb.ID)
		if err != nil || sb.Reason != sandbox.ReasonAgentDied {
			t.Fatalf("%+v %v", sb, err)
		}
	})
}

func TestATTLUnderAnExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, (&stub{pull: quiet}).factory())
		e, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "x", Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Hour); err != nil || e.Status != execution.Vanished || e.Reason != execution.TTL {
			t.Fatalf("%+v %v", e, err)
		}
	})
}

// TestASilentAgentEndsItsSandbox: no answer for AgentTimeout is an end, told as
// the agent's and never as the program's.
func TestASilentAgentEndsItsSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		f := newFixture(t, (&stub{pull: silent}).factory())
		began := time.Now()
		e := f.run(t, execution.Spec{Cmd: "x"})
		if e.Status != execution.Vanished || e.Reason != execution.AgentDied || time.Since(began) < 20*time.Second || time.Since(began) > 21*time.Second {
			t.Fatalf("%+v after %s", e, time.Since(began))
		}
	})
}

// TestABrokenConnectionIsDialledAgain: one that was refused, and one that broke
// in the middle of a frame, are no fault of the agent.
func TestABrokenConnectionIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &stub{pull: func(w http.ResponseWriter, r *http.Request) {
			var pull guestwire.Pull
			_ = json.NewDecoder(r.Body).Decode(&pull)
			if left := "hello"[pull.Stdout:]; left != "" {
				_ = guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.StdoutFrame, Offset: pull.Stdout, Payload: []byte(left)})
			}
			code := 3
			payload, _ := json.Marshal(guestwire.Exit{ExitCode: &code, StdoutBytes: 5})
			_ = guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.ExitFrame, Payload: payload})
		}}
		f := newFixture(t, breaking(agent.factory(), 60))
		e := f.run(t, execution.Spec{Cmd: "x"})
		if e.Status != execution.Exited || *e.ExitCode != 3 {
			t.Fatalf("%+v", e)
		}
		if out, err := f.Output(e); err != nil || string(out.Stdout.Bytes) != "hello" || out.Stdout.Offset != 0 {
			t.Fatalf("%+v %v", out, err)
		}
	})
}

// breaking makes the nth pull break after n bytes of its reply, for n under cuts;
// the first does not even get through.
func breaking(agent testkit.AgentFactory, cuts int) testkit.AgentFactory {
	return func(plan sandbox.Plan) (http.RoundTripper, func(), error) {
		transport, stop, err := agent(plan)
		tries := 0
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/pull") || tries > cuts {
				return transport.RoundTrip(r)
			}
			tries++
			if tries == 1 {
				return nil, syscall.ECONNRESET
			}
			reply, err := transport.RoundTrip(r)
			if err == nil {
				reply.Body = io.NopCloser(io.MultiReader(io.LimitReader(reply.Body, int64(tries-2)), iotest.ErrReader(io.ErrUnexpectedEOF)))
			}
			return reply, err
		}), stop, err
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestLiesEndTheSandbox: an agent that breaks the protocol is a hostile one.
func TestLiesEndTheSandbox(t *testing.T) {
	frame := func(f guestwire.Frame) []byte {
		var b bytes.Buffer
		if err := guestwire.WriteFrame(&b, f); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, lie := range map[string][]byte{
		"garbage":           []byte("HTTP/1.1 200 OK"),
		"code 256":          frame(guestwire.Frame{Type: guestwire.ExitFrame, Payload: []byte(`{"exit_code":256}`)}),
		"code and signal":   frame(guestwire.Frame{Type: guestwire.ExitFrame, Payload: []byte(`{"exit_code":1,"signal":"SIGKILL"}`)}),
		"invented signal":   frame(guestwire.Frame{Type: guestwire.ExitFrame, Payload: []byte(`{"exit_code":null,"signal":"SIGFUN"}`)}),
		"exit too early":    frame(guestwire.Frame{Type: guestwire.ExitFrame, Payload: []byte(`{"exit_code":0,"stdout_bytes":5}`)}),
		"empty frame":       frame(guestwire.Frame{Type: guestwire.StdoutFrame}),
		"frame cut short":   frame(guestwire.Frame{Type: guestwire.StdoutFrame, Payload: []byte("abc")})[:10],
		"offset overflows":  frame(guestwire.Frame{Type: guestwire.StdoutFrame, Offset: 1<<63 - 1, Payload: []byte("abc")}),
		"offset over bound": frame(guestwire.Frame{Type: guestwire.StdoutFrame, Offset: 1 << 60, Payload: []byte("abc")}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, (&stub{pull: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(lie) }}).factory())
				e := f.run(t, execution.Spec{Cmd: "x"})
				if e.Status != execution.Vanished || e.Reason != execution.AgentDied || e.ExitCode != nil {
					t.Fatalf("%+v", e)
				}
			})
		})
	}
}

func TestWrongSpecsNameTheField(t *testing.T) {
	f := newFixture(t, (&stub{pull: quiet}).factory())
	for param, spec := range map[string]execution.Spec{
		"cmd":             {},
		"timeout_seconds": {Cmd: "x", Timeout: 25 * time.Hour},
		"args":            {Cmd: "x", Args: []string{"a\x00b"}},
		"cwd":             {Cmd: "x", Cwd: strings.Repeat("d", 4097)},
		"user":            {Cmd: "x", User: "a:b"},
	} {
		_, err := f.Start(t.Context(), f.sb.ID, spec)
		var got *fault.Error
		if !errors.As(err, &got) || got.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	if _, err := f.Get(t.Context(), f.sb.ID, "exe_../../etc"); !fault.Is(err, fault.ExecutionNotFound) {
		t.Errorf("a hostile id: %v", err)
	}
}

func hostName(id string) string { return strings.ReplaceAll(strings.ToLower(id), "_", "-") }
