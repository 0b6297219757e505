package sqlstore

import (
	"context"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/testkit/pgtest"
)

// terminateAll returns when the sessions are gone.
const terminateAll = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '" + pgtest.User + "'"

// TestPostgresOutage cuts the connection in the middle of concurrent writes, each
// way several times. The same store goes on by itself, every write that returned
// nil is there, and no sandbox whose insert did not.
func TestPostgresOutage(t *testing.T) {
	server := pgtest.Shared(t)
	for name, cut := range map[string]func(){
		"killed":     func() { server.Kill(t); server.Restart(t) },
		"stopped":    func() { server.Stop(t); server.Restart(t) },
		"terminated": func() { server.Admin(t, terminateAll) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, server.Database(t))
			w := startWriters(t, s)
			for range 3 {
				w.wait(20)
				time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // not always after an acknowledgement
				cut()
			}
			w.wait(20)
			w.stop(s)
		})
	}
}

// writers is goroutines that write without end, as callers do: an outage is met
// by a later repeat.
type writers struct {
	t      *testing.T
	cancel context.CancelFunc
	group  sync.WaitGroup
	acked  atomic.Int64

	mu         sync.Mutex
	sandboxes  []string
	executions map[string]execution.Execution // by id, as last acknowledged
	outages    int
}

func startWriters(t *testing.T, s *Store) *writers {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{t: t, cancel: cancel, executions: map[string]execution.Execution{}}
	for range 2 * postgresWriters {
		w.group.Go(func() {
			for ctx.Err() == nil {
				w.life(ctx, s)
			}
		})
	}
	t.Cleanup(func() { cancel(); w.group.Wait() })
	return w
}

// life inserts a sandbox and an execution in it, and finishes that.
func (w *writers) life(ctx context.Context, s *Store) {
	sb := newSandbox()
	if !w.write(ctx, func() error { return s.InsertSandbox(context.WithoutCancel(ctx), sb) }, func() { w.sandboxes = append(w.sandboxes, sb.ID) }) {
		return
	}
	e := execution.Execution{ID: ident.New(ident.Execution), Sandbox: sb.ID, Cmd: "true", Status: execution.Running, Created: time.Now()}
	if !w.write(ctx, func() error { return s.InsertExecution(context.WithoutCancel(ctx), e) }, func() { w.executions[e.ID] = e }) {
		return
	}
	code := rand.IntN(256)
	e.Status, e.ExitCode, e.Finished = execution.Exited, &code, time.Now()
	w.write(ctx, func() error { return s.FinishExecution(context.WithoutCancel(ctx), e) }, func() { w.executions[e.ID] = e })
}

// write does one write and notes it when it was acknowledged. Only an outage may
// refuse it.
func (w *writers) write(ctx context.Context, do func() error, note func()) bool {
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		note()
		w.acked.Add(1)
		return true
	}
	w.outages++
	if !fault.Is(err, fault.QueueUnreachable) || strings.Contains(err.Error(), pgtest.Password) {
		w.t.Errorf("%v", err)
	}
	select {
	case <-time.After(10 * time.Millisecond): // a caller's pause
	case <-ctx.Done():
	}
	return false
}

// wait returns after so many more acknowledgements.
func (w *writers) wait(more int64) {
	w.t.Helper()
	for began, want := time.Now(), w.acked.Load()+more; w.acked.Load() < want; time.Sleep(time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			w.t.Fatal("nothing is acknowledged any more")
		}
	}
}

// stop ends the writers and looks for what was acknowledged.
func (w *writers) stop(s *Store) {
	w.t.Helper()
	w.cancel()
	w.group.Wait()
	if w.outages == 0 {
		w.t.Error("no write met the outage")
	}
	expectKept(w.t, s, w.sandboxes) // and no row that nobody knows of
	for id, want := range w.executions {
		got, err := s.Execution(w.t.Context(), want.Sandbox, id)
		if err != nil {
			w.t.Fatalf("acknowledged %s: %v", id, err)
		}
		// A finish that was cut may have happened.
		if want.Status != execution.Running && (got.Status != want.Status || *got.ExitCode != *want.ExitCode) {
			w.t.Fatalf("acknowledged %+v, found %+v", want, got)
		}
	}
	w.t.Logf("%d writes acknowledged, all there; %d met an outage", w.acked.Load(), w.outages)
}

// TestPostgresDown is what callers get while there is no server.
func TestPostgresDown(t *testing.T) {
	server := pgtest.Shared(t)
	where := server.Database(t)
	s := openTest(t, where)
	kept := newSandbox()
	if err := s.InsertSandbox(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	for range 2 {
		err := s.InsertSandbox(t.Context(), newSandbox())
		expectAdvice(t, err, "insert sandbox: ", pgtest.Name(where))
		expectOutage(t, err)
		_, err = s.Sandbox(t.Context(), kept.ID)
		expectAdvice(t, err, "read sandbox: ", pgtest.Name(where))
		expectOutage(t, err)
	}
	_, err := Open(t.Context(), where)
	expectAdvice(t, err, "open store: ", pgtest.Name(where), "does not answer")
	server.Restart(t)
	expectKept(t, s, []string{kept.ID})
}

// TestPostgresHasOneOwner: a second daemon is refused while the first lives, also
// when the first is at rest and its connections were cut; and a store whose
// database was taken while it was cut off writes nothing any more.
func TestPostgresHasOneOwner(t *testing.T) {
	server := pgtest.Shared(t)
	where := server.Database(t)
	first := openTest(t, where)
	refused := func() {
		t.Helper()
		_, err := open(t.Context(), where, 50*time.Millisecond)
		expectAdvice(t, err, "open store: ", pgtest.Name(where), "used by another daemon", "stop that one")
	}
	refused()
	if err := first.InsertSandbox(t.Context(), newSandbox()); err != nil {
		t.Errorf("a refused one hurt the owner: %v", err)
	}

	server.Admin(t, terminateAll)
	deadline := time.Now().Add(10 * time.Second)
	for !locked(t, first) {
		if time.Now().After(deadline) {
			t.Fatal("nobody took the lock again")
		}
		time.Sleep(20 * time.Millisecond)
	}
	refused()

	// Another one gets in between.
	u, err := url.Parse(where)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("application_name", "thief")
	u.RawQuery = query.Encode()
	cutting, cut := context.WithCancel(t.Context())
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for cutting.Err() == nil {
			server.Admin(t, terminateAll+" AND application_name <> 'thief'")
		}
	})
	second, err := open(t.Context(), u.String(), 20*time.Second)
	cut()
	cutter.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := second.InsertSandbox(t.Context(), newSandbox()); err != nil {
		t.Fatal(err)
	}
	lost := func() {
		t.Helper()
		err := first.InsertSandbox(t.Context(), newSandbox())
		expectAdvice(t, err, "insert sandbox: ", "taken by another daemon", "restart")
		if fault.Is(err, fault.QueueUnreachable) {
			t.Errorf("a repeat cannot help: %v", err)
		}
	}
	lost()
	live, err := second.LiveSandboxes(t.Context())
	if err != nil || len(live) != 2 {
		t.Errorf("%d rows, %v", len(live), err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	lost() // what the second one did is done
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, where)
}

// locked says whether some session holds the lock, by a session that does not.
func locked(t *testing.T, s *Store) (held bool) {
	t.Helper()
	config := s.engine.(*postgres).config
	if err := queryAlone(t, config, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')", &held); err != nil {
		t.Fatal(err)
	}
	return held
}
