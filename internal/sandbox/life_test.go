package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// world is a host and a store on which one daemon after the other lives.
type world struct {
	t      *testing.T
	host   *testkit.Host
	store  *sqlstore.Store
	path   string // of the store
	key    *secret.Key
	logger *slog.Logger
	limits sandbox.Limits
	lives  []*daemonLife
}

// daemonLife is one daemon, until it is killed or closed.
type daemonLife struct {
	*sandbox.Manager
	view  *testkit.View
	store *mortalStore
}

// templated are limits with which creates restore.
func templated() sandbox.Limits {
	l := limits
	l.Slots, l.Templates = 6, 2
	l.MemMiB, l.DiskMiB = 6*(512+sandbox.VMOverheadMiB), 6*64
	return l
}

func newWorld(t *testing.T, limits sandbox.Limits) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	store, err := sqlstore.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, host: testkit.NewHost(testkit.ConfiguredAgent()), store: store, path: path, key: newKey(t), logger: quiet, limits: limits}
	t.Cleanup(func() {
		for _, l := range w.lives {
			l.bury()
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start begins a daemon's life; it does not recover yet.
func (w *world) start(uptime func() time.Duration) *daemonLife {
	w.t.Helper()
	view := w.host.View()
	store := &mortalStore{Store: w.store, view: view}
	m, err := sandbox.New(sandbox.Config{
		Store: store, Images: images{}, Cgroups: view.Cgroups(), VMM: view.VMM(), Agents: view.Agents(), Secrets: w.key,
		Limits: w.limits, Logger: w.logger, Uptime: uptime, HostBoot: "boot",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	l := &daemonLife{Manager: m, view: view, store: store}
	w.lives = append(w.lives, l)
	return l
}

// recovered begins a daemon's life on what the last one left.
func (w *world) recovered() *daemonLife {
	w.t.Helper()
	l := w.start(uptime)
	if err := l.Recover(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return l
}

// kill ends the life as SIGKILL would.
func (l *daemonLife) kill() {
	l.view.Kill()
	l.bury()
}

// bury ends the goroutines of a life that is over; they have no effect any more.
func (l *daemonLife) bury() {
	l.view.Kill()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.Close(ctx, false)
}

// settled waits until nothing that the daemon does by itself is under way.
func settled() { synctest.Wait() }

// mortalStore is a store as one life sees it: nothing is written after its end.
// Its own writes can end the life, too.
type mortalStore struct {
	sandbox.Store
	view *testkit.View

	mu    sync.Mutex
	count int  // guarded by mu; writes so far
	at    int  // guarded by mu; the write that ends the life; 0 is none
	late  bool // guarded by mu; it is committed first
}

func (s *mortalStore) write(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.view.Dead():
		return testkit.ErrKilled
	default:
	}
	s.count++
	if s.count != s.at {
		return do()
	}
	if s.late {
		_ = do()
	}
	s.view.Kill()
	return testkit.ErrKilled
}

func (s *mortalStore) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	return s.write(func() error { return s.Store.InsertSandbox(ctx, sb) })
}

func (s *mortalStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	return s.write(func() error { return s.Store.UpdateSandbox(ctx, sb) })
}

// caller is a context that ends as a connection to the daemon does.
func (l *daemonLife) caller() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-l.view.Dead(); cancel() }()
	return ctx
}

// told is what callers were told before the daemon died.
type told struct {
	running map[string]bool // created, and not deleted
	deleted map[string]bool
	asked   map[string]bool // a delete was asked for, whatever came of it
}

// scene is some of everything that a daemon does: a cold boot, a template, a
// restore, an extension, deletes. It goes on as far as its life does.
func scene(t *testing.T, l *daemonLife) told {
	t.Helper()
	seen := told{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	ctx := l.caller()
	create := func() string {
		sb, err := l.Create(ctx, sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			return ""
		}
		seen.running[sb.ID] = true
		return sb.ID
	}
	remove := func(id string) {
		seen.asked[id] = true
		if _, err := l.Delete(ctx, id); err == nil {
			seen.deleted[id] = true
			delete(seen.running, id)
		}
	}
	cold := create()
	settled() // the template is made
	restored := create()
	if cold == "" || restored == "" {
		return seen
	}
	_, _ = l.Extend(ctx, restored, 30*time.Minute)
	remove(cold)
	remove(create())
	return seen
}

// check compares what the next daemon has with what callers were told.
func (w *world) check(l *daemonLife, seen told) {
	w.t.Helper()
	page, err := l.List(w.t.Context(), sandbox.Query{Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, sb := range page.Data {
		switch sb.State {
		case sandbox.Running:
			if _, err := l.Touch(w.t.Context(), sb.ID); err != nil {
				w.t.Errorf("%s says it runs and cannot be used: %v", sb.ID, err)
			}
			wanted["cgroup "+hostName(sb.ID)], wanted["jail "+hostName(sb.ID)] = true, true
			if seen.deleted[sb.ID] {
				w.t.Errorf("%s was deleted and runs", sb.ID)
			}
		case sandbox.Stopped:
			if seen.running[sb.ID] && !seen.asked[sb.ID] {
				w.t.Errorf("%s was created and not deleted: %s", sb.ID, sb.Reason)
			}
		default:
			w.t.Errorf("%s is %s", sb.ID, sb.State)
		}
	}
	for _, left := range w.host.Left() {
		if !wanted[left] {
			w.t.Errorf("left on the host: %s", left)
		}
	}
	for id := range seen.running {
		if sb, err := l.Get(w.t.Context(), id); err != nil {
			w.t.Errorf("%s was created and is forgotten: %+v %v", id, sb, err)
		}
	}
}

// drained ends the last daemon with all its sandboxes and expects an empty host.
func (w *world) drained(l *daemonLife) {
	w.t.Helper()
	if err := l.Close(w.t.Context(), true); err != nil {
		w.t.Error(err)
	}
	if left := w.host.Left(); len(left) > 0 {
		w.t.Errorf("left on the host after the end: %v", left)
	}
}

// steps counts the operations on the host, or the writes to the store, of a
// recovery and do.
func (w *world) steps(store bool, do func(l *daemonLife)) int {
	l := w.recovered()
	do(l)
	settled()
	n, _ := l.view.Count()
	if store {
		n = l.store.count
	}
	l.kill()
	return n
}

// TestAKillAtEachStep kills the daemon at each operation on the host and at each
// write to the store of a scene, before it, amid it and after it. The next
// daemon finds what callers were told, and nothing else is left.
func TestAKillAtEachStep(t *testing.T) {
	for _, store := range []bool{false, true} {
		for _, moment := range []testkit.Moment{testkit.Before, testkit.Amid, testkit.After} {
			if store && moment == testkit.Amid {
				continue // a write has no halves
			}
			steps := 0
			synctest.Test(t, func(t *testing.T) {
				steps = newWorld(t, templated()).steps(store, func(l *daemonLife) { scene(t, l) })
			})
			if steps < 6 {
				t.Fatalf("only %d steps", steps)
			}
			for n := 1; n <= steps; n++ {
				t.Run(fmt.Sprintf("store=%v %s %d", store, moment, n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t, templated())
						l := w.recovered()
						if store {
							l.store.at, l.store.late = n, moment == testkit.After
						} else {
							l.view.KillAt(n, moment)
						}
						seen := scene(t, l)
						l.kill()
						next := w.recovered()
						settled()
						w.check(next, seen)
						w.drained(next)
					})
				})
			}
		}
	}
}

// TestAKillAtEachStepOfRecovery leaves a running sandbox, one that was starting
// and one that was ending to a daemon that is killed at each step of its own
// recovery; the one after that finds everything as it should be.
func TestAKillAtEachStepOfRecovery(t *testing.T) {
	mess := func(t *testing.T, w *world) told {
		l := w.recovered()
		kept, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		settled()
		going, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		w.host.Hang("jail.remove", true)
		w.host.Hang("vmm.start", true)
		for _, do := range []func(){
			func() { _, _ = l.Delete(l.caller(), going.ID) },
			func() { _, _ = l.Create(l.caller(), spec) },
		} {
			go do()
		}
		settled()
		l.view.Kill()
		w.host.Hang("jail.remove", false)
		w.host.Hang("vmm.start", false)
		l.kill()
		return told{running: map[string]bool{kept.ID: true}, deleted: map[string]bool{}, asked: map[string]bool{going.ID: true}}
	}
	steps := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templated())
		mess(t, w)
		steps = w.steps(false, func(*daemonLife) {})
	})
	if steps < 8 {
		t.Fatalf("only %d steps", steps)
	}
	for n := 1; n <= steps; n++ {
		for _, moment := range []testkit.Moment{testkit.Before, testkit.Amid, testkit.After} {
			t.Run(fmt.Sprintf("%s %d", moment, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, templated())
					seen := mess(t, w)
					dying := w.start(uptime)
					dying.view.KillAt(n, moment)
					_ = dying.Recover(t.Context())
					settled()
					dying.kill()
					next := w.recovered()
					settled()
					w.check(next, seen)
					w.drained(next)
				})
			})
		}
	}
}

// TestAFaultInAnAdoption: a microVM that cannot be adopted is ended and reaped,
// with a reason, and holds up neither the daemon's start nor the others.
func TestAFaultInAnAdoption(t *testing.T) {
	for _, c := range []struct {
		name   string
		harm   func(w *world, host string)
		reason sandbox.Reason
	}{
		{"adopt fails", func(w *world, _ string) { w.host.Fail("vmm.adopt", errors.New("injected")) }, sandbox.ReasonAgentDied},
		{"adopt hangs", func(w *world, _ string) { w.host.Hang("vmm.adopt", true) }, sandbox.ReasonAgentDied},
		{"the VMM died meanwhile", func(w *world, host string) { w.host.Die(host) }, sandbox.ReasonVMDied},
		{"the host's OOM killer ended it meanwhile", func(w *world, host string) { w.host.OOMKill(host) }, sandbox.ReasonHostOOM},
		{"the agent is silent", func(w *world, _ string) { w.host.Hang("agent.echo", true) }, sandbox.ReasonAgentDied},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, limits)
				l := w.recovered()
				sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
				if err != nil {
					t.Fatal(err)
				}
				l.kill()
				c.harm(w, hostName(sb.ID))
				began := time.Now()
				next := w.recovered()
				if took := time.Since(began); took != 0 {
					t.Errorf("the start took %s", took)
				}
				if _, err := next.List(t.Context(), sandbox.Query{Limit: 1}); err != nil || time.Since(began) != 0 {
					t.Errorf("a list was held up: %v", err)
				}
				if _, err := next.Use(t.Context(), sb.ID); !fault.Is(err, fault.SandboxNotRunning) {
					t.Errorf("a use of it: %v", err)
				}
				settled()
				gone, err := next.Get(t.Context(), sb.ID)
				if err != nil || gone.State != sandbox.Stopped || gone.Reason != c.reason {
					t.Errorf("%+v %v", gone, err)
				}
				for _, operation := range []string{"vmm.adopt", "agent.echo"} {
					w.host.Hang(operation, false)
					w.host.Fail(operation, nil)
				}
				if left := w.host.Left(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				w.drained(next)
			})
		})
	}
}

// TestAdoptedSandboxesGoOn: a daemon that stops leaves its sandboxes; the next
// one has them with their TTLs, and counts what they hold.
func TestAdoptedSandboxesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		var ids []string
		for range limits.Slots {
			sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", TTL: 10 * time.Minute, Idle: -1})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, sb.ID)
		}
		session, err := l.Use(t.Context(), ids[0])
		if err != nil {
			t.Fatal(err)
		}
		w.host.Trace()
		if err := l.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		<-session.Done()
		if session.Reason() != "" {
			t.Errorf("a user was told that the sandbox ended: %s", session.Reason())
		}
		if _, err := l.Use(t.Context(), ids[0]); !fault.Is(err, fault.ShuttingDown) {
			t.Errorf("a use after the stop: %v", err)
		}
		if trace := w.host.Trace(); len(trace) > 0 {
			t.Errorf("the stop did %v", trace)
		}
		next := w.recovered()
		settled()
		if trace := w.host.Trace(); len(trace) != limits.Slots || trace[0] != "vmm.adopt" {
			t.Errorf("the start did %v", trace)
		}
		if _, err := next.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) {
			t.Errorf("a create beyond what is adopted: %v", err)
		}
		time.Sleep(10 * time.Minute)
		settled()
		for _, id := range ids {
			if sb, err := next.Get(t.Context(), id); err != nil || sb.Reason != sandbox.ReasonTTL {
				t.Errorf("%+v %v", sb, err)
			}
		}
		if _, err := next.Create(t.Context(), spec); err != nil {
			t.Errorf("a create after their ends: %v", err)
		}
		w.drained(next)
	})
}

// TestAClockThatStepsExpiresNothing: while no daemon runs, the wall clock is set
// a day ahead. The TTL goes on in the host's uptime, and what is shown of it
// follows the clock.
func TestAClockThatStepsExpiresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", TTL: 10 * time.Minute, Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		l.kill()
		const step = 24 * time.Hour
		time.Sleep(step) // of the bubble's clock, in which the host's uptime stands still
		next := w.start(func() time.Duration { return uptime() - step })
		if err := next.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		settled()
		if _, err := next.Touch(t.Context(), sb.ID); err != nil {
			t.Fatalf("after the step: %v", err)
		}
		began := time.Now()
		time.Sleep(w.limits.ReconcileEvery)
		settled()
		shown, err := next.Get(t.Context(), sb.ID)
		if off := shown.Expires.Sub(began.Add(10 * time.Minute)); err != nil || off.Abs() > 2*time.Second {
			t.Errorf("shown %s from the true end: %v", off, err)
		}
		session, err := next.Use(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		<-session.Done()
		if took := time.Since(began); took != 10*time.Minute || session.Reason() != sandbox.ReasonTTL {
			t.Errorf("ended after %s: %s", took, session.Reason())
		}
		w.drained(next)
	})
}

// TestAnotherBootAdoptsNothing: rows of before a reboot of the host are settled.
func TestAnotherBootAdoptsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		old := storedRunning(t, w, "another boot")
		l := w.recovered()
		sb, err := l.Get(t.Context(), old)
		if err != nil || sb.State != sandbox.Stopped || sb.Reason != sandbox.ReasonHostRestarted {
			t.Errorf("%+v %v", sb, err)
		}
		w.drained(l)
	})
}

// storedRunning puts a row into the store that says running.
func storedRunning(t *testing.T, w *world, boot string) string {
	t.Helper()
	sb := sandbox.Sandbox{
		ID: newID(), Image: "python", VCPUs: 1, MemMiB: 256, State: sandbox.Starting, Created: time.Now(),
		Expires: time.Now().Add(time.Hour), Deadline: uptime() + time.Hour, HostBoot: boot,
	}
	err := w.store.InsertSandbox(t.Context(), sb)
	if err == nil {
		sb.State, sb.Boot = sandbox.Running, sandbox.BootCold
		err = w.store.UpdateSandbox(t.Context(), sb)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// TestReconcile: what appears on the host, or in the store, that nobody owns is
// gone within ReconcileEvery; what is owned is left alone.
func TestReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		kept, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		// What a step that hung for long made after its sandbox was given up.
		stray := w.host.View()
		plan := sandbox.Plan{Host: hostName(newID()), VCPUs: 1, MemMiB: 256}
		if err := stray.Cgroups().Create(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		lost := storedRunning(t, w, "boot")
		time.Sleep(w.limits.ReconcileEvery)
		settled()
		if left := w.host.Left(); len(left) != 2 {
			t.Errorf("left: %v", left)
		}
		if sb, err := l.Get(t.Context(), lost); err != nil || sb.Reason != sandbox.ReasonHostRestarted {
			t.Errorf("%+v %v", sb, err)
		}
		if _, err := l.Touch(t.Context(), kept.ID); err != nil {
			t.Error(err)
		}
		w.drained(l)
	})
}

// TestASlotIsFreeWhenItsVMIsGone: a microVM that cannot be killed keeps its slot,
// and with it its uid, also from a daemon whose store knows it no more.
func TestASlotIsFreeWhenItsVMIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil || sb.Slot != 0 {
			t.Fatalf("%+v %v", sb, err)
		}
		w.host.Hang("cgroup.kill", true)
		go func() { _, _ = l.Delete(l.caller(), sb.ID) }()
		settled()
		l.kill()
		if ids, err := w.store.DeleteStopped(t.Context(), time.Now().Add(time.Hour)); err != nil || len(ids) != 1 {
			t.Fatal(ids, err)
		}
		next := w.recovered()
		for _, want := range []int{1, 2} {
			if sb, err := next.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1}); err != nil || sb.Slot != want {
				t.Fatalf("%+v %v", sb, err)
			}
		}
		w.host.Hang("cgroup.kill", false)
		time.Sleep(time.Minute) // of the bubble's clock: it is tried again
		settled()
		if sb, err := next.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1}); err != nil || sb.Slot != 0 {
			t.Fatalf("%+v %v", sb, err)
		}
		w.drained(next)
	})
}

// TestAHungAdoptionHoldsUpNoStop: what runs is left as it was found.
func TestAHungAdoptionHoldsUpNoStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		l.kill()
		w.host.Hang("agent.echo", true)
		hung := w.recovered()
		settled()
		began := time.Now()
		if err := hung.Close(t.Context(), false); err != nil || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		w.host.Hang("agent.echo", false)
		next := w.recovered()
		if _, err := next.Touch(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
		w.drained(next)
	})
}

// slowList answers a list of live sandboxes later than it looked.
type slowList struct{ sandbox.Store }

func (s slowList) LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	live, err := s.Store.LiveSandboxes(ctx)
	time.Sleep(time.Second)
	return live, err
}

// TestAStopAmidAReconcile: what a daemon leaves to the next one is not taken for
// a row without a microVM, and callers who still ask are told to come again.
func TestAStopAmidAReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.start(uptime)
		l.store.Store = slowList{w.store}
		if err := l.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(w.limits.ReconcileEvery + time.Second/2)
		if err := l.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		_, deleted := l.Delete(t.Context(), sb.ID)
		_, used := l.Use(t.Context(), sb.ID)
		if !fault.Is(deleted, fault.ShuttingDown) || !fault.Is(used, fault.ShuttingDown) {
			t.Errorf("%v, %v", deleted, used)
		}
		next := w.recovered()
		if _, err := next.Touch(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
		w.drained(next)
	})
}

// TestAStartWithManyRows: a thousand stored sandboxes do not hold up a start.
func TestAStartWithManyRows(t *testing.T) {
	many := limits
	many.Slots, many.VCPUs = 1000, 1000
	many.MemMiB, many.DiskMiB = 1000*(512+sandbox.VMOverheadMiB), 1000*64
	many.BootsAtOnce = 1000
	w := newWorld(t, many)
	l := w.recovered()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 125 {
				if _, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	l.kill()
	began := time.Now()
	next := w.recovered()
	t.Logf("a start with 1000 sandboxes to adopt took %s", time.Since(began))
	page, err := next.List(t.Context(), sandbox.Query{State: sandbox.Running, Limit: 100})
	if err != nil || len(page.Data) != 100 {
		t.Fatal(len(page.Data), err)
	}
	for _, sb := range page.Data {
		if _, err := next.Touch(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	next.kill()
	began = time.Now()
	dead := w.start(func() time.Duration { return uptime() })
	for _, sb := range page.Data {
		w.host.Die(hostName(sb.ID))
	}
	if err := dead.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("a start with 900 to adopt and 100 dead took %s", time.Since(began))
	w.drained(dead)
}
