package soak_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/soak"
	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// markTag is the tag that carries a create's mark.
const markTag = "soak"

// fake is a node in this process: the managers of the daemon above a fake host
// and a real SQLite file. Its daemon is killed by cutting its managers off from
// both.
type fake struct {
	t      *testing.T
	host   *testkit.Host
	guests *guests
	store  *sqlstore.Store
	dir    string
	began  time.Time
	slots  int

	mu   sync.Mutex
	life *life // guarded by mu
}

// life is one life of the daemon.
type life struct {
	view       *testkit.View
	store      *mortalStore
	sandboxes  *sandbox.Manager
	executions *execution.Manager
	followed   chan struct{} // closed when there is another one
}

// newFake starts a node with a first daemon. Its database is in memory where
// the machine has a file system for that: a sync to a disk is the store's
// matter, not this one's.
func newFake(t *testing.T, slots int) *fake {
	t.Helper()
	where := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "microvm-soak-"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(shm) })
		where = shm
	}
	store, err := sqlstore.Open(t.Context(), filepath.Join(where, "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fake{t: t, guests: newGuests(), store: store, dir: t.TempDir(), began: time.Now(), slots: slots}
	f.host = testkit.NewHost(f.guests.start)
	if f.life, err = f.start(t.Context(), func(*life) {}); err != nil {
		t.Fatal(err)
	}
	return f
}

type images struct{}

func (images) Hold(id string) *image.Use { return &image.Use{Image: image.Image{ID: id}} }

func (images) Use(context.Context, string, image.By) (*image.Use, error) {
	return &image.Use{Image: image.Image{ID: "python", Path: "/images/python/rootfs.erofs", User: "user", Workdir: "/workspace"}}, nil
}

// start begins a life. What is arranged for it happens before it recovers.
func (f *fake) start(ctx context.Context, arrange func(*life)) (*life, error) {
	l := &life{view: f.host.View(), followed: make(chan struct{})}
	l.store = &mortalStore{Store: f.store, view: l.view}
	log := slog.New(slog.DiscardHandler)
	if name := os.Getenv("MICROVM_SOAK_LOG"); name != "" {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		f.t.Cleanup(func() { _ = file.Close() })
		log = slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug})).With("life", fmt.Sprintf("%p", l))
	}
	uptime := func() time.Duration { return time.Since(f.began) }
	var err error
	l.sandboxes, err = sandbox.New(sandbox.Config{
		Store: l.store, Images: images{}, Cgroups: l.view.Cgroups(), VMM: l.view.VMM(), Agents: l.view.Agents(),
		Limits: sandbox.Limits{ // nothing but the slots makes it full
			Slots: f.slots, VCPUs: 1 << 20, MemMiB: 1 << 30, MaxVCPUs: 1, MaxMemMiB: 256, MaxTTL: time.Hour, ScratchMiB: 64, DiskMiB: 1 << 30,
			Templates: 2, BootsAtOnce: 4, BootTurn: 5 * time.Second, BootTimeout: time.Minute, StallTimeout: 30 * time.Second,
			StepTimeout: 30 * time.Second, ReconcileEvery: time.Second,
		},
		Logger: log, Uptime: uptime, HostBoot: "soak",
	})
	if err != nil {
		return nil, err
	}
	l.executions = execution.New(execution.Config{
		Store: l.store, Sandboxes: l.sandboxes, Dir: f.dir, Logger: log, KeepBytes: 1 << 40, KeepSandboxBytes: 1 << 40,
		AgentTimeout: 40 * time.Second, KillTimeout: 20 * time.Second, Uptime: uptime,
	})
	arrange(l)
	return l, errors.Join(l.sandboxes.Recover(ctx), l.executions.Recover(ctx))
}

// end is the rest of a killed life: its goroutines learn of it. Nothing that
// they do from here on reaches the host or the store.
func (l *life) end() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.sandboxes.Close(now, false)
	l.executions.Close()
	l.store.fence()
}

func (l *life) dead() bool {
	select {
	case <-l.view.Dead():
		return true
	default:
		return false
	}
}

// current waits for a daemon that lives.
func (f *fake) current(ctx context.Context) (*life, error) {
	for {
		f.mu.Lock()
		l := f.life
		f.mu.Unlock()
		if !l.dead() {
			return l, nil
		}
		select {
		case <-l.followed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask is one request. An answer that comes after the daemon's death reaches
// nobody.
func ask[T any](ctx context.Context, f *fake, do func(*life) (T, error)) (T, error) {
	var none T
	l, err := f.current(ctx)
	if err != nil {
		return none, err
	}
	answer, err := do(l)
	if l.dead() {
		return none, soak.ErrLost
	}
	var refusal *fault.Error
	if errors.As(err, &refusal) {
		err = &soak.Refusal{Code: string(refusal.Code), Message: refusal.Error()}
	}
	return answer, err
}

// KillDaemon kills between two operations, in one on the host or in a write; the
// next daemon is now and then killed while it recovers.
func (f *fake) KillDaemon(ctx context.Context, luck *rand.Rand, down func()) (string, error) {
	l, err := f.current(ctx)
	if err != nil {
		return "", err
	}
	step := strike(ctx, l, luck)
	down()
	l.end()
	if luck.IntN(4) == 0 {
		n, moment := 1+luck.IntN(8), testkit.Moment(luck.IntN(3))
		next, err := f.start(ctx, func(l *life) { l.view.KillAt(n, moment) })
		if err != nil && !next.dead() {
			return step, err
		}
		step += ", recovering " + await(ctx, next, moment)
		next.end()
	}
	next, err := f.start(ctx, func(*life) {})
	if err != nil {
		return step, err
	}
	f.mu.Lock()
	f.life = next
	f.mu.Unlock()
	close(l.followed)
	return step, nil
}

// strikeWait is how long a step may not come that a kill waits for.
const strikeWait = 40 * time.Millisecond

// strike kills a daemon and tells where.
func strike(ctx context.Context, l *life, luck *rand.Rand) string {
	moment := testkit.Moment(luck.IntN(3))
	switch n := 1 + luck.IntN(12); luck.IntN(4) {
	case 0:
	case 1:
		l.store.killAt(n, moment)
	default:
		count, _ := l.view.Count()
		l.view.KillAt(count+n, moment)
	}
	return await(ctx, l, moment)
}

// await waits for the end that a life was told, or ends it, and tells where.
func await(ctx context.Context, l *life, moment testkit.Moment) string {
	timer := time.NewTimer(strikeWait)
	defer timer.Stop()
	select {
	case <-l.view.Dead():
	case <-timer.C:
	case <-ctx.Done():
	}
	l.view.Kill()
	_, died := l.view.Count()
	if write := l.store.struck(); write != "" {
		died = write
	}
	if died == "" {
		return "between"
	}
	return fmt.Sprintf("%s %s", moment, died)
}

// KillVMM ends a VMM as a crash would.
func (f *fake) KillVMM(id string) error {
	f.host.Die(ident.Host(id))
	return nil
}

func box(sb sandbox.Sandbox) soak.Sandbox {
	return soak.Sandbox{
		ID: sb.ID, Mark: sb.Tags[markTag], State: string(sb.State), StopReason: string(sb.StopReason), Reason: string(sb.Reason),
		Boot: string(sb.Boot), Created: cut(sb.Created), Expires: cut(sb.Expires), Stopped: cut(sb.Stopped),
	}
}

// cut makes a time what the API would show of it.
func cut(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Millisecond) }

func (f *fake) Create(ctx context.Context, spec soak.Spec) (soak.Sandbox, error) {
	idle := spec.Idle
	if idle == 0 {
		idle = -1
	}
	return ask(ctx, f, func(l *life) (soak.Sandbox, error) {
		sb, err := l.sandboxes.Create(ctx, sandbox.Spec{Image: "python", Tags: map[string]string{markTag: spec.Mark}, TTL: spec.TTL, Idle: idle})
		return box(sb), err
	})
}

func (f *fake) Get(ctx context.Context, id string) (soak.Sandbox, error) {
	return ask(ctx, f, func(l *life) (soak.Sandbox, error) {
		sb, err := l.sandboxes.Get(ctx, id)
		return box(sb), err
	})
}

func (f *fake) Running(ctx context.Context) ([]soak.Sandbox, error) {
	return ask(ctx, f, func(l *life) ([]soak.Sandbox, error) {
		page, err := l.sandboxes.List(ctx, sandbox.Query{State: sandbox.Running, Limit: 100})
		all := make([]soak.Sandbox, 0, len(page.Data))
		for _, sb := range page.Data {
			all = append(all, box(sb))
		}
		return all, err
	})
}

func (f *fake) Delete(ctx context.Context, id string) (soak.Sandbox, error) {
	return ask(ctx, f, func(l *life) (soak.Sandbox, error) {
		sb, err := l.sandboxes.Delete(ctx, id)
		return box(sb), err
	})
}

func (f *fake) Extend(ctx context.Context, id string, ttl time.Duration) (soak.Sandbox, error) {
	return ask(ctx, f, func(l *life) (soak.Sandbox, error) {
		sb, err := l.sandboxes.Extend(ctx, id, ttl)
		return box(sb), err
	})
}

func (f *fake) Touch(ctx context.Context, id string) (soak.Sandbox, error) {
	return ask(ctx, f, func(l *life) (soak.Sandbox, error) {
		sb, err := l.sandboxes.Touch(ctx, id)
		return box(sb), err
	})
}

func ran(e execution.Execution) soak.Execution {
	return soak.Execution{
		ID: e.ID, Sandbox: e.Sandbox, Seed: soak.SeedOf(e.Args), Status: string(e.Status), Reason: string(e.Reason), ExitCode: e.ExitCode,
		Signal: e.Signal, OOM: e.OOMKilled, Bytes: [2]int64{e.StdoutBytes, e.StderrBytes}, Created: cut(e.Created), Finished: cut(e.Finished),
	}
}

func (f *fake) Start(ctx context.Context, id string, p soak.Program) (soak.Execution, error) {
	cmd, args := p.Command()
	return ask(ctx, f, func(l *life) (soak.Execution, error) {
		e, err := l.executions.Start(ctx, id, execution.Spec{Cmd: cmd, Args: args, Timeout: p.Timeout})
		return ran(e), err
	})
}

func (f *fake) Look(ctx context.Context, sandboxID, id string, wait time.Duration) (soak.Execution, error) {
	return ask(ctx, f, func(l *life) (soak.Execution, error) {
		e, err := l.executions.Wait(ctx, sandboxID, id, wait)
		if err != nil {
			return soak.Execution{}, err
		}
		seen := ran(e)
		out, err := l.executions.Output(e)
		seen.HasOutput = true
		for i, tail := range []execution.Tail{out.Stdout, out.Stderr} {
			seen.Output[i] = soak.Tail{Offset: tail.Offset, Bytes: tail.Bytes}
		}
		return seen, err
	})
}

func (f *fake) Executions(ctx context.Context, id string) ([]soak.Execution, error) {
	return ask(ctx, f, func(l *life) ([]soak.Execution, error) {
		page, err := l.executions.List(ctx, execution.Query{Sandbox: id, Limit: 100})
		all := make([]soak.Execution, 0, len(page.Data))
		for _, e := range page.Data {
			all = append(all, ran(e))
		}
		return all, err
	})
}
