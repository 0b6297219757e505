package execution

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
)

// Sandboxes gives the use of a running sandbox. *sandbox.Manager has it.
type Sandboxes interface {
	Get(ctx context.Context, id string) (sandbox.Sandbox, error)
	Use(ctx context.Context, id string) (*sandbox.Session, error)
}

// Config is what a Manager is built from. Every field is required.
type Config struct {
	Store     Store
	Sandboxes Sandboxes
	Dir       string // output rings: <Dir>/<sandbox>/<execution>/{stdout,stderr}
	Logger    *slog.Logger

	// KeepBytes bounds the output on disk of all executions, KeepSandboxBytes
	// that of one sandbox's.
	KeepBytes, KeepSandboxBytes int64
	// AgentTimeout is how long the guest agent may be silent before its
	// sandbox is ended.
	AgentTimeout time.Duration
	// KillTimeout is how long a kill may stay unconfirmed before the sandbox
	// is ended: a guest can lie and stall.
	KillTimeout time.Duration
	// Uptime is the clock in which timeouts go on after a restart of the
	// daemon; see sandbox.Config.
	Uptime func() time.Duration
}

// Manager starts executions, follows them and answers for them afterwards. It
// is safe for concurrent use.
type Manager struct {
	cfg   Config
	shelf shelf
	runs  sync.WaitGroup

	closing chan struct{} // closed when Close began

	mu   sync.Mutex
	live map[string]*run // guarded by mu; by execution id, until finished
	over bool            // guarded by mu; no more executions
}

// storeWait bounds one write of an execution.
const storeWait = 30 * time.Second

// New makes a Manager. Call Recover before the first Start.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, shelf: shelf{most: cfg.KeepBytes, mostBox: cfg.KeepSandboxBytes, boxes: map[string]*box{}}, live: map[string]*run{}, closing: make(chan struct{})}
}

// Start starts one command in a running sandbox. A command that the guest
// cannot start is a result (status failed), not an error.
func (m *Manager) Start(ctx context.Context, sandboxID string, spec Spec) (Execution, error) {
	spec, err := spec.fill()
	if err != nil {
		return Execution{}, err
	}
	session, err := m.cfg.Sandboxes.Use(ctx, sandboxID)
	if err != nil {
		return Execution{}, err
	}
	env, err := session.Env()
	if err != nil {
		session.Release()
		return Execution{}, err
	}
	e := Execution{
		ID: ident.New(ident.Execution), Sandbox: sandboxID, Cmd: spec.Cmd, Args: slices.Clone(spec.Args),
		Cwd: spec.Cwd, User: spec.User, Timeout: spec.Timeout, Status: Running, Created: time.Now(),
		Deadline: m.cfg.Uptime() + spec.Timeout, TTY: spec.TTY != nil, StdinOpen: spec.StdinOpen,
	}
	// From here on nothing depends on the caller's connection.
	ctx = context.WithoutCancel(ctx)
	r := newRun(m, e)
	if err := m.admit(r); err != nil {
		session.Release()
		return Execution{}, err
	}
	if spec.Stdin != "" {
		r.input, err = spoolInput(m.dir(e), spec.Stdin, spec.StdinOpen)
		m.reckon(r)
	}
	if err == nil {
		err = m.store(ctx, storeWait, func(ctx context.Context) error { return m.cfg.Store.InsertExecution(ctx, e) })
	}
	if err != nil {
		r.input.remove()
		m.shelve(e)
		m.settled(r)
		m.runs.Done()
		session.Release()
		return Execution{}, err
	}
	env = secret.Merge(env, spec.Env)
	go func() {
		defer m.runs.Done()
		r.follow(ctx, session, env, spec.TTY)
	}()
	<-r.started
	return r.snapshot(), nil
}

// store writes, whatever becomes of ctx, in a time.
func (m *Manager) store(ctx context.Context, wait time.Duration, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	return write(ctx)
}

// admit makes the run one of its sandbox's that run, and one that Close waits
// for.
func (m *Manager) admit(r *run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return shuttingDown()
	}
	running := 0
	for _, other := range m.live {
		if other.sandboxID == r.sandboxID {
			running++
		}
	}
	if running >= MaxRunning {
		return fault.New(fault.NodeAtCapacity, "%d executions run in this sandbox, and no more may at once; wait until one has ended", running)
	}
	m.live[r.e.ID] = r
	m.runs.Add(1)
	return nil
}

// Get finds an execution in any status.
func (m *Manager) Get(ctx context.Context, sandboxID, id string) (Execution, error) {
	if r := m.run(id); r != nil && r.sandboxID == sandboxID {
		return r.snapshot(), nil
	}
	if _, err := m.cfg.Sandboxes.Get(ctx, sandboxID); err != nil {
		return Execution{}, err
	}
	if !ident.Valid(ident.Execution, id) {
		return Execution{}, NotFound()
	}
	return m.cfg.Store.Execution(ctx, sandboxID, id)
}

// Wait returns the execution when it has ended, or as it is after d.
func (m *Manager) Wait(ctx context.Context, sandboxID, id string, d time.Duration) (Execution, error) {
	r := m.run(id)
	if r == nil || r.sandboxID != sandboxID {
		return m.Get(ctx, sandboxID, id)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.finished:
	case <-timer.C:
	case <-ctx.Done():
		return Execution{}, ctx.Err()
	}
	return r.snapshot(), nil
}

// List returns one page of a sandbox's executions, newest first.
func (m *Manager) List(ctx context.Context, q Query) (Page, error) {
	if _, err := m.cfg.Sandboxes.Get(ctx, q.Sandbox); err != nil {
		return Page{}, err
	}
	page, err := m.cfg.Store.Executions(ctx, q)
	for i, e := range page.Data { // as Get shows it: the row of what runs says nothing of its output
		if r := m.run(e.ID); r != nil {
			page.Data[i] = r.snapshot()
		} else if e.Status == Running { // it ended after the page was read
			if page.Data[i], err = m.cfg.Store.Execution(ctx, e.Sandbox, e.ID); err != nil {
				return Page{}, err
			}
		}
	}
	return page, err
}

// Output returns what is kept of the output of an execution that Get or Wait
// returned, also while it runs and after its sandbox is gone.
func (m *Manager) Output(e Execution) (Output, error) {
	if r := m.run(e.ID); r != nil {
		return r.output()
	}
	dir := m.dir(e)
	return Output{
		Stdout: m.kept(filepath.Join(dir, "stdout"), e.StdoutBytes),
		Stderr: m.kept(filepath.Join(dir, "stderr"), e.StderrBytes),
	}, nil
}

// kept reads the ring of a stream that has ended. One that is missing or
// damaged (a power cut leaves such) is output that was lost, and no error: how
// the execution ended is known all the same.
func (m *Manager) kept(path string, total int64) Tail {
	tail, err := readTail(path)
	if err != nil {
		m.cfg.Logger.Error("output is lost", "error", err)
	}
	if err != nil || tail.Offset+int64(len(tail.Bytes)) < total {
		tail = Tail{Offset: total}
	}
	return tail
}

// Recover goes on with the executions that an earlier daemon left running, where
// their sandboxes run, settles the others, and removes output that it was about
// to forget. Sandboxes are recovered first.
func (m *Manager) Recover(ctx context.Context) error {
	left, err := m.cfg.Store.RunningExecutions(ctx)
	if err != nil {
		return fmt.Errorf("recover executions: %w", err)
	}
	for _, e := range left {
		sb, err := m.cfg.Sandboxes.Get(ctx, e.Sandbox)
		if err != nil {
			return fmt.Errorf("recover executions: %w", err)
		}
		if sb.State != sandbox.Stopped {
			m.resume(ctx, e)
			continue
		}
		r := newRun(m, e)
		r.reopen() // what it wrote counts
		for _, s := range r.streams {
			s.close()
		}
		findInput(m.dir(e), false).remove()
		e = r.snapshot()
		e.Finished = time.Now()
		reason, known := vanishReasons[sb.Reason]
		if !known {
			reason = HostRestarted
		}
		e.vanish(reason)
		if err := m.cfg.Store.FinishExecution(ctx, e); err != nil {
			return fmt.Errorf("recover executions: %w", err)
		}
	}
	if err := m.sweep(ctx); err != nil {
		return fmt.Errorf("recover executions: sweep output: %w", err)
	}
	return nil
}

// resume follows an execution that an earlier daemon started, from the byte on
// to which its rings have it.
func (m *Manager) resume(ctx context.Context, e Execution) {
	r := newRun(m, e)
	r.reopen()
	r.input = findInput(m.dir(e), e.StdinOpen)
	m.reckon(r)
	m.mu.Lock()
	m.live[e.ID] = r
	m.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	m.runs.Go(func() {
		session, err := m.cfg.Sandboxes.Use(ctx, e.Sandbox) // waits until it is adopted
		if err == nil {
			r.goOn(ctx, session, e.Deadline-m.cfg.Uptime())
			return
		}
		if reason, known := m.whyStopped(ctx, e.Sandbox); known {
			r.finish(ctx, func(e *Execution) { e.vanish(reason) })
		}
		r.close()
	})
}

// whyStopped waits until the store has the end of a sandbox that could not be
// used, or the daemon stops.
func (m *Manager) whyStopped(ctx context.Context, id string) (reason Reason, known bool) {
	for {
		if sb, err := m.cfg.Sandboxes.Get(ctx, id); err == nil && sb.State == sandbox.Stopped {
			reason, known = vanishReasons[sb.Reason]
			return reason, known
		}
		select {
		case <-time.After(time.Second):
		case <-m.closing:
			return "", false
		}
	}
}

// sweep forgets the output of sandboxes that the store knows no more, and counts
// the rest.
func (m *Manager) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var gone []string
	for _, entry := range entries {
		id, ok := ident.FromHost(ident.Sandbox, entry.Name())
		if !ok {
			continue
		}
		switch _, err := m.cfg.Sandboxes.Get(ctx, id); {
		case fault.Is(err, fault.SandboxNotFound):
			gone = append(gone, id)
		case err != nil:
			return err
		default:
			if err := m.count(id); err != nil {
				return err
			}
		}
	}
	return m.Forget(gone)
}

// count shelves what is there of a sandbox's executions. Names ascend as ids
// do: with time.
func (m *Manager) count(sandboxID string) error {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Dir, ident.Host(sandboxID)))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if id, ok := ident.FromHost(ident.Execution, entry.Name()); ok && m.run(id) == nil {
			m.shelve(Execution{ID: id, Sandbox: sandboxID})
		}
	}
	return nil
}

// Forget removes the kept output of sandboxes that are no longer listed.
func (m *Manager) Forget(sandboxIDs []string) error {
	var all []error
	for _, id := range sandboxIDs {
		m.shelf.drop(id)
		all = append(all, os.RemoveAll(filepath.Join(m.cfg.Dir, ident.Host(id))))
	}
	return errors.Join(all...)
}

// Close refuses new executions and waits for every one to be settled or left.
// Sandboxes are ended or left first, so each has something to wait for.
func (m *Manager) Close() {
	m.mu.Lock()
	if !m.over {
		close(m.closing)
	}
	m.over = true
	m.mu.Unlock()
	m.runs.Wait()
}

func (m *Manager) run(id string) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// settled makes the store the one that answers for an execution that ended or
// was left.
func (m *Manager) settled(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, r.e.ID)
	close(r.finished)
}

func (m *Manager) dir(e Execution) string {
	return filepath.Join(m.cfg.Dir, ident.Host(e.Sandbox), ident.Host(e.ID))
}

// NotFound is the answer for an id that names no execution of that sandbox.
func NotFound() error {
	return fault.New(fault.ExecutionNotFound, "this sandbox has no execution with this id; list its executions")
}

// failReasons are the agent's refusals to start, as callers know them.
var failReasons = map[guestwire.Code]Reason{
	guestwire.CommandNotFound:  CommandNotFound,
	guestwire.PermissionDenied: PermissionDenied,
	guestwire.BadDirectory:     BadDirectory,
	guestwire.UserNotFound:     UserNotFound,
}

// vanishReasons are the endings of a sandbox, as its executions show them.
var vanishReasons = map[sandbox.Reason]Reason{
	sandbox.ReasonDeleted:       Deleted,
	sandbox.ReasonTTL:           TTL,
	sandbox.ReasonIdle:          Idle,
	sandbox.ReasonVMDied:        VMDied,
	sandbox.ReasonHostOOM:       HostOOM,
	sandbox.ReasonAgentDied:     AgentDied,
	sandbox.ReasonHostRestarted: HostRestarted,
}
