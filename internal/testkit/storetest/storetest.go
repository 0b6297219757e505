// Package storetest is the conformance suite of the store: what every engine
// must do, run on each of them. It owns no engine; a test of the engine brings
// one by a function that opens an empty store.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// Store is all that the daemon needs of one.
type Store interface {
	sandbox.Store
	execution.Store
	InsertKey(ctx context.Context, k sqlstore.Key) error
	KeyByHash(ctx context.Context, hash [32]byte) (sqlstore.Key, error)
	Keys(ctx context.Context) ([]sqlstore.Key, error)
	DeleteStopped(ctx context.Context, before time.Time) (ids []string, err error)
}

// Run runs the suite. open returns an empty store that ends with its test.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for name, test := range map[string]func(*testing.T, Store){
		"SandboxComesBack":       sandboxComesBack,
		"EnvEndsWithItsSandbox":  envEndsWithItsSandbox,
		"SandboxRefusals":        sandboxRefusals,
		"StoppedStaysStopped":    stoppedStaysStopped,
		"NameIsUniqueWhileLive":  nameIsUniqueWhileLive,
		"NameRace":               nameRace,
		"NameHandover":           nameHandover,
		"ExecutionComesBack":     executionComesBack,
		"ExecutionRefusals":      executionRefusals,
		"FinishRace":             finishRace,
		"StopRace":               stopRace,
		"ReadersDoNotWait":       readersDoNotWait,
		"SandboxPages":           sandboxPages,
		"ExecutionPages":         executionPages,
		"BadPages":               badPages,
		"DeleteStopped":          deleteStopped,
		"Keys":                   keys,
		"CanceledContextIsError": canceledContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// now has the precision that a store keeps.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Sandbox returns a valid one that is starting.
func Sandbox() sandbox.Sandbox {
	return sandbox.Sandbox{
		ID: ident.New(ident.Sandbox), Image: "python", VCPUs: 1, MemMiB: 256, Expires: now().Add(15 * time.Minute),
		Deadline: 20 * time.Minute, HostBoot: "b0", Idle: time.Minute, State: sandbox.Starting, Slot: 3, Created: now(),
	}
}

// Execution returns a valid one that is running.
func Execution(sandbox string) execution.Execution {
	return execution.Execution{
		ID: ident.New(ident.Execution), Sandbox: sandbox, Cmd: "python3", Timeout: 5 * time.Minute, Deadline: 6 * time.Minute,
		Status: execution.Running, Created: now(),
	}
}

// stop returns sb as a caller's delete leaves it.
func stop(sb sandbox.Sandbox, at time.Time) sandbox.Sandbox {
	sb.State, sb.StopReason, sb.Reason, sb.Stopped, sb.Env = sandbox.Stopped, sandbox.StopDeleted, sandbox.ReasonDeleted, at, ""
	return sb
}

// exit returns e as a program's own end leaves it.
func exit(e execution.Execution, code int) execution.Execution {
	e.Status, e.ExitCode, e.Finished = execution.Exited, &code, now()
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func insert(t *testing.T, s Store, sb sandbox.Sandbox) sandbox.Sandbox {
	t.Helper()
	must(t, s.InsertSandbox(t.Context(), sb))
	return sb
}

func sandboxComesBack(t *testing.T, s Store) {
	full := Sandbox()
	full.Name, full.Boot, full.Env = "builder", sandbox.BootCold, "v1."+strings.Repeat("seal", 24<<10) // as long as they get
	full.Tags = map[string]string{"team": "core", "empty": "", "sp ace": `"'; DROP TABLE sandboxes; --`, "ключ": "значение 💡"}
	for _, sb := range []sandbox.Sandbox{Sandbox(), full} {
		insert(t, s, sb)
		got, err := s.Sandbox(t.Context(), sb.ID)
		must(t, err)
		equal(t, got, sb)

		sb.State, sb.Boot, sb.Slot, sb.Expires = sandbox.Running, sandbox.BootCold, 7, now().Add(time.Hour)
		sb.Deadline, sb.HostBoot = time.Hour, "b1"
		must(t, s.UpdateSandbox(t.Context(), sb))
		must(t, s.UpdateSandbox(t.Context(), sb)) // a repeat changes nothing
		got, err = s.Sandbox(t.Context(), sb.ID)
		must(t, err)
		equal(t, got, sb)
	}
	live, err := s.LiveSandboxes(t.Context())
	must(t, err)
	if len(live) != 2 || live[0].ID > live[1].ID {
		t.Fatalf("live: %+v", live)
	}
	must(t, s.UpdateSandbox(t.Context(), stop(live[0], now())))
	rest, err := s.LiveSandboxes(t.Context())
	must(t, err)
	equal(t, rest, live[1:])
}

// envEndsWithItsSandbox: a sealed environment is with its sandbox, in no list,
// changed by no update, and gone with the stop.
func envEndsWithItsSandbox(t *testing.T, s Store) {
	sb := Sandbox()
	sb.Env = "v1.one"
	insert(t, s, sb)
	changed := sb
	changed.State, changed.Env = sandbox.Running, "v1.another"
	must(t, s.UpdateSandbox(t.Context(), changed))
	sb.State = sandbox.Running
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, sb)
	live, err := s.LiveSandboxes(t.Context())
	must(t, err)
	equal(t, live, []sandbox.Sandbox{sb})
	page, err := s.Sandboxes(t.Context(), sandbox.Query{Limit: 1})
	must(t, err)
	if len(page.Data) != 1 || page.Data[0].Env != "" {
		t.Fatalf("list: %+v", page.Data)
	}

	stopped := stop(sb, now())
	lying := stopped
	lying.Env = sb.Env
	if err := s.UpdateSandbox(t.Context(), lying); err == nil {
		t.Fatal("stopped with an environment")
	}
	must(t, s.UpdateSandbox(t.Context(), stopped))
	got, err = s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, stopped)
}

func sandboxRefusals(t *testing.T, s Store) {
	sb := insert(t, s, Sandbox())
	if err := s.InsertSandbox(t.Context(), sb); err == nil {
		t.Fatal("an id was taken twice")
	}
	_, err := s.Sandbox(t.Context(), "sb_none")
	wantCode(t, err, fault.SandboxNotFound)
	wantCode(t, s.UpdateSandbox(t.Context(), Sandbox()), fault.SandboxNotFound)

	lying := sb
	lying.State = sandbox.Stopped
	if err := s.UpdateSandbox(t.Context(), lying); err == nil {
		t.Fatal("stopped without a time")
	}
	lying = sb
	lying.Stopped = now()
	if err := s.UpdateSandbox(t.Context(), lying); err == nil {
		t.Fatal("a time of stopping while starting")
	}
	if err := s.InsertSandbox(t.Context(), sandbox.Sandbox{State: sandbox.Starting}); err == nil {
		t.Fatal("no id")
	}
	running := sb
	running.State = sandbox.Running
	must(t, s.UpdateSandbox(t.Context(), running))
	if err := s.UpdateSandbox(t.Context(), sb); err == nil {
		t.Fatal("running went back to starting")
	}
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, running)
}

func stoppedStaysStopped(t *testing.T, s Store) {
	sb := insert(t, s, Sandbox())
	stopped := stop(sb, now())
	must(t, s.UpdateSandbox(t.Context(), stopped))
	back := sb
	back.State = sandbox.Running
	wantCode(t, s.UpdateSandbox(t.Context(), back), fault.SandboxNotRunning)
	other := stop(sb, now().Add(time.Hour))
	other.StopReason, other.Reason = sandbox.StopFailed, sandbox.ReasonVMDied
	wantCode(t, s.UpdateSandbox(t.Context(), other), fault.SandboxNotRunning)
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, stopped) // the first cause is kept
}

func nameIsUniqueWhileLive(t *testing.T, s Store) {
	named := func() sandbox.Sandbox { sb := Sandbox(); sb.Name = "Ünïque"; return sb }
	first := insert(t, s, named())
	err := s.InsertSandbox(t.Context(), named())
	wantCode(t, err, fault.ResourceAlreadyExists)
	if f := fault.From(err); f.Param != "name" || !strings.Contains(f.Message, first.ID) {
		t.Fatalf("param %q, message %q", f.Param, f.Message)
	}
	other := named()
	other.Name = "ünïque" // names are compared byte by byte
	insert(t, s, other)
	insert(t, s, Sandbox())
	insert(t, s, Sandbox()) // no name is no conflict

	must(t, s.UpdateSandbox(t.Context(), stop(first, now())))
	second := insert(t, s, named())
	must(t, s.UpdateSandbox(t.Context(), stop(second, now())))
	insert(t, s, named())
	page, err := s.Sandboxes(t.Context(), sandbox.Query{Name: "Ünïque", Limit: 10})
	must(t, err)
	if len(page.Data) != 3 {
		t.Fatalf("%d of that name", len(page.Data))
	}
}

func executionComesBack(t *testing.T, s Store) {
	sb := insert(t, s, Sandbox())
	plain, full := Execution(sb.ID), Execution(sb.ID)
	full.Args, full.Cwd, full.User = []string{"-c", "print('ü\n\"')", ""}, "/workspace", "root"
	zero, minus := 0, -1
	ends := []execution.Execution{plain, full}
	ends[0].Status, ends[0].ExitCode, ends[0].OOMKilled = execution.Exited, &zero, true
	ends[0].StdoutBytes, ends[0].StderrBytes = 1<<40, 5
	ends[1].Status, ends[1].Reason, ends[1].Signal = execution.TimedOut, execution.Timeout, "SIGKILL"
	for i, e := range []execution.Execution{plain, full} {
		must(t, s.InsertExecution(t.Context(), e))
		got, err := s.Execution(t.Context(), sb.ID, e.ID)
		must(t, err)
		equal(t, got, e)
		running, err := s.RunningExecutions(t.Context())
		must(t, err)
		equal(t, running, []execution.Execution{e})

		ends[i].Finished = now()
		must(t, s.FinishExecution(t.Context(), ends[i]))
		got, err = s.Execution(t.Context(), sb.ID, e.ID)
		must(t, err)
		equal(t, got, ends[i])

		again := exit(e, minus)
		if err := s.FinishExecution(t.Context(), again); !errors.Is(err, execution.ErrAlreadyFinished) {
			t.Fatalf("second finish: %v", err)
		}
		got, err = s.Execution(t.Context(), sb.ID, e.ID)
		must(t, err)
		equal(t, got, ends[i])
	}
	// One that never started is inserted as it ended.
	failed := Execution(sb.ID)
	failed.Status, failed.Reason, failed.Finished = execution.Failed, execution.AgentUnreachable, now()
	must(t, s.InsertExecution(t.Context(), failed))
	running, err := s.RunningExecutions(t.Context())
	must(t, err)
	if len(running) != 0 {
		t.Fatalf("running: %+v", running)
	}
}

func executionRefusals(t *testing.T, s Store) {
	sb, other := insert(t, s, Sandbox()), insert(t, s, Sandbox())
	e := Execution(sb.ID)
	must(t, s.InsertExecution(t.Context(), e))
	if err := s.InsertExecution(t.Context(), e); err == nil {
		t.Fatal("an id was taken twice")
	}
	wantCode(t, s.InsertExecution(t.Context(), Execution("sb_none")), fault.SandboxNotFound)
	_, err := s.Execution(t.Context(), sb.ID, "exe_none")
	wantCode(t, err, fault.ExecutionNotFound)
	_, err = s.Execution(t.Context(), other.ID, e.ID) // an id is no capability
	wantCode(t, err, fault.ExecutionNotFound)
	wantCode(t, s.FinishExecution(t.Context(), exit(Execution(sb.ID), 1)), fault.ExecutionNotFound)
	if err := s.FinishExecution(t.Context(), e); err == nil {
		t.Fatal("finished as running")
	}
	timeless := exit(e, 1)
	timeless.Finished = time.Time{}
	if err := s.FinishExecution(t.Context(), timeless); err == nil {
		t.Fatal("finished without a time")
	}
	got, err := s.Execution(t.Context(), sb.ID, e.ID)
	must(t, err)
	equal(t, got, e)
}

func deleteStopped(t *testing.T, s Store) {
	at := now()
	var old, stay []sandbox.Sandbox
	for i, age := range []time.Duration{3 * time.Hour, 2 * time.Hour, time.Hour, 30 * time.Minute} {
		sb := Sandbox()
		sb.Tags = map[string]string{"i": fmt.Sprint(i)}
		insert(t, s, sb)
		must(t, s.InsertExecution(t.Context(), exit(Execution(sb.ID), i)))
		sb = stop(sb, at.Add(-age))
		must(t, s.UpdateSandbox(t.Context(), sb))
		if age > time.Hour {
			old = append(old, sb)
		} else {
			stay = append(stay, sb)
		}
	}
	live := Sandbox()
	live.Created = at.Add(-100 * time.Hour) // old and running is not stopped
	stay = append(stay, insert(t, s, live))

	ids, err := s.DeleteStopped(t.Context(), at.Add(-time.Hour))
	must(t, err)
	if len(ids) != 2 {
		t.Fatalf("deleted %v", ids)
	}
	for _, sb := range old {
		_, err := s.Sandbox(t.Context(), sb.ID)
		wantCode(t, err, fault.SandboxNotFound)
		page, err := s.Executions(t.Context(), execution.Query{Sandbox: sb.ID, Limit: 10})
		must(t, err)
		if len(page.Data) > 0 {
			t.Fatalf("left: %+v", page.Data)
		}
	}
	for _, sb := range stay {
		got, err := s.Sandbox(t.Context(), sb.ID)
		must(t, err)
		equal(t, got, sb)
	}
	tagged, err := s.Sandboxes(t.Context(), sandbox.Query{TagKey: "i", TagValue: "0", Limit: 10})
	must(t, err)
	if len(tagged.Data) > 0 {
		t.Fatal("a tag outlived its sandbox")
	}
	ids, err = s.DeleteStopped(t.Context(), at.Add(-time.Hour))
	must(t, err)
	if len(ids) > 0 {
		t.Fatalf("deleted again: %v", ids)
	}
}

func keys(t *testing.T, s Store) {
	first := sqlstore.Key{ID: "key_1", Name: "admin", Hash: [32]byte{1, 255}, Created: now()}
	second := sqlstore.Key{ID: "key_2", Name: "admin", Hash: [32]byte{1, 254}, Created: now().Add(time.Second)}
	if _, err := s.KeyByHash(t.Context(), first.Hash); !errors.Is(err, sqlstore.ErrNoKey) {
		t.Fatal(err)
	}
	must(t, s.InsertKey(t.Context(), second))
	must(t, s.InsertKey(t.Context(), first))
	for _, taken := range []sqlstore.Key{{ID: "key_1", Hash: [32]byte{9}}, {ID: "key_3", Hash: first.Hash}} {
		if err := s.InsertKey(t.Context(), taken); err == nil {
			t.Fatalf("taken: %+v", taken)
		}
	}
	got, err := s.KeyByHash(t.Context(), second.Hash)
	must(t, err)
	equal(t, got, second)
	all, err := s.Keys(t.Context())
	must(t, err)
	equal(t, all, []sqlstore.Key{first, second})
}

func canceledContext(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sb := Sandbox()
	if err := s.InsertSandbox(ctx, sb); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := s.Sandbox(ctx, sb.ID); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	insert(t, s, sb) // and the store goes on
}
