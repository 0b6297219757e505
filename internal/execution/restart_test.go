package execution_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// node is a host with real programs on which one daemon after the other lives.
type node struct {
	t     *testing.T
	host  *testkit.Host
	store *sqlstore.Store
	dir   string
	late  atomic.Int64 // ns by which the host's uptime is ahead

	agentTimeout time.Duration
}

// daemonLife is one daemon.
type daemonLife struct {
	*execution.Manager
	sandboxes *sandbox.Manager
}

func newNode(t *testing.T, agent testkit.AgentFactory) *node {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &node{t: t, host: testkit.NewHost(agent), store: store, dir: t.TempDir(), agentTimeout: 20 * time.Second}
}

func (n *node) uptime() time.Duration { return uptime() + time.Duration(n.late.Load()) }

func (n *node) start(store execution.Store) *daemonLife {
	n.t.Helper()
	view := n.host.View()
	sandboxes, err := sandbox.New(sandbox.Config{
		Store: n.store, Images: images{}, Cgroups: view.Cgroups(), VMM: view.VMM(), Agents: view.Agents(),
		Limits: limits, Logger: slog.New(slog.DiscardHandler), Uptime: n.uptime, HostBoot: "boot",
	})
	if err != nil {
		n.t.Fatal(err)
	}
	l := &daemonLife{sandboxes: sandboxes, Manager: execution.New(execution.Config{
		Store: store, Sandboxes: sandboxes, Dir: n.dir, Logger: slog.New(slog.DiscardHandler),
		AgentTimeout: n.agentTimeout, KillTimeout: 5 * time.Second, KeepBytes: 1 << 30, KeepSandboxBytes: 1 << 30, Uptime: n.uptime,
	})}
	if err := errors.Join(sandboxes.Recover(n.t.Context()), l.Recover(n.t.Context())); err != nil {
		n.t.Fatal(err)
	}
	return l
}

// leave ends a daemon; with drain its sandboxes end as well.
func (l *daemonLife) leave(t *testing.T, drain bool) {
	t.Helper()
	if err := l.sandboxes.Close(context.Background(), drain); err != nil {
		t.Error(err)
	}
	l.Close()
}

func (l *daemonLife) ended(t *testing.T, e execution.Execution) (execution.Execution, string) {
	t.Helper()
	e, err := l.Wait(t.Context(), e.Sandbox, e.ID, time.Minute)
	if err != nil || e.Status == execution.Running {
		t.Fatalf("%+v %v", e, err)
	}
	out, err := l.Output(e)
	if err != nil {
		t.Fatal(err)
	}
	return e, string(out.Stdout.Bytes)
}

func (l *daemonLife) begin(t *testing.T, spec execution.Spec) execution.Execution {
	t.Helper()
	sb, err := l.sandboxes.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.Start(t.Context(), sb.ID, spec)
	if err != nil || e.Status != execution.Running {
		t.Fatalf("%+v %v", e, err)
	}
	return e
}

// TestAProgramGoesOnWithoutADaemon: what it writes before and while no daemon is
// there comes once, and its end is its own, although its time was over when the
// next daemon looked.
func TestAProgramGoesOnWithoutADaemon(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	gate := filepath.Join(t.TempDir(), "gate")
	script := fmt.Sprintf("echo $$; until [ -e %s ]; do sleep 0.01; done; echo after; exit 3", gate)
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "sh", Args: []string{"-c", script}, Timeout: time.Minute})
	var before string
	eventually(t, func() bool {
		out, err := first.Output(e)
		before = string(out.Stdout.Bytes)
		return err != nil || strings.HasSuffix(before, "\n")
	})
	pid, err := strconv.Atoi(strings.TrimSpace(before))
	if err != nil {
		t.Fatal(err)
	}
	first.leave(t, false)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }) // the agent has waited for it
	n.late.Store(int64(5 * time.Minute))                                                 // its timeout is over; its sandbox's TTL is not
	next := n.start(n.store)
	e, out := next.ended(t, e)
	if e.Status != execution.Exited || e.ExitCode == nil || *e.ExitCode != 3 || out != before+"after\n" {
		t.Errorf("%+v, output %q", e, out)
	}
	next.leave(t, true)
}

// TestATimeoutGoesOnWithoutADaemon: a program that still runs when the next
// daemon finds its time over is killed and told so.
func TestATimeoutGoesOnWithoutADaemon(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "sleep", Args: []string{"600"}, Timeout: time.Minute})
	first.leave(t, false)
	n.late.Store(int64(5 * time.Minute))
	next := n.start(n.store)
	if e, _ = next.ended(t, e); e.Status != execution.TimedOut || e.Reason != execution.Timeout {
		t.Errorf("%+v", e)
	}
	next.leave(t, true)
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(limit) {
			t.Fatal("it does not come")
		}
	}
}

// TestWhatNeverStartedIsNotStartedLater: an execution that was stored, and no
// more, when the daemon died has not run and never does.
func TestWhatNeverStartedIsNotStartedLater(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	first := n.start(n.store)
	sb, err := first.sandboxes.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "ran")
	e := execution.Execution{
		ID: ident.New(ident.Execution), Sandbox: sb.ID, Cmd: "touch", Args: []string{mark}, Status: execution.Running,
		Timeout: time.Minute, Deadline: n.uptime() + time.Minute, Created: time.Now(),
	}
	if err := n.store.InsertExecution(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	first.leave(t, false)
	next := n.start(n.store)
	e, _ = next.ended(t, e)
	if e.Status != execution.Failed || e.Reason != execution.AgentUnreachable {
		t.Errorf("%+v", e)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was started")
	}
	next.leave(t, true)
}

// TestAnAgentThatForgotEndsItsSandbox: a program of which output is kept did start,
// whatever its agent says after a restart of the daemon.
func TestAnAgentThatForgotEndsItsSandbox(t *testing.T) {
	var forgot, said atomic.Bool
	n := newNode(t, (&stub{pull: func(w http.ResponseWriter, r *http.Request) {
		switch {
		case forgot.Load():
			w.WriteHeader(guestwire.NoExecution.Status())
			_ = json.NewEncoder(w).Encode(guestwire.Error{Code: guestwire.NoExecution})
		case !said.Swap(true):
			_ = guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.StdoutFrame, Payload: []byte("ran")})
		default:
			quiet(w, r)
		}
	}}).factory())
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "x", Timeout: time.Minute})
	eventually(t, func() bool {
		out, err := first.Output(e)
		return err != nil || len(out.Stdout.Bytes) > 0
	})
	first.leave(t, false)
	forgot.Store(true)
	next := n.start(n.store)
	if e, out := next.ended(t, e); e.Status != execution.Vanished || e.Reason != execution.AgentDied || out != "ran" {
		t.Errorf("%+v, output %q", e, out)
	}
	next.leave(t, true)
}

// sickStore refuses the ends of executions while it is sick.
type sickStore struct {
	*sqlstore.Store
	sick    atomic.Bool
	refused atomic.Int32
}

func (s *sickStore) FinishExecution(ctx context.Context, e execution.Execution) error {
	if s.sick.Load() {
		s.refused.Add(1)
		return errors.New("no room")
	}
	return s.Store.FinishExecution(ctx, e)
}

// TestAnEndThatTheStoreRefusesIsStoredLater also when its sandbox has gone.
func TestAnEndThatTheStoreRefusesIsStoredLater(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	store := &sickStore{Store: n.store}
	l := n.start(store)
	e := l.begin(t, execution.Spec{Cmd: "sleep", Args: []string{"600"}, Timeout: time.Hour})
	store.sick.Store(true)
	if _, err := l.sandboxes.Delete(t.Context(), e.Sandbox); err != nil {
		t.Fatal(err)
	}
	store.sick.Store(false)
	e, _ = l.ended(t, e)
	if e.Status != execution.Vanished || e.Reason != execution.Deleted {
		t.Errorf("%+v", e)
	}
	if stored, err := n.store.Execution(t.Context(), e.Sandbox, e.ID); err != nil || stored.Status != execution.Vanished {
		t.Errorf("stored %+v %v", stored, err)
	}
	l.leave(t, true)
}
