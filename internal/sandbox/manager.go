package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
)

// Config is what a Manager is built from. Every field is required.
type Config struct {
	Store   Store
	Images  Images
	Cgroups Cgroups
	VMM     VMM
	Agents  Agents
	Limits  Limits
	Logger  *slog.Logger
}

// Manager makes sandboxes, finds them and ends them. It is safe for concurrent
// use.
type Manager struct {
	cfg       Config
	admission *admission
	turns     chan struct{} // a place for each boot at once

	ctx     context.Context // the life of everything it started
	cancel  context.CancelFunc
	ending  chan struct{} // closed when Close began
	abandon chan struct{} // closed when teardown must not go on
	running sync.WaitGroup

	mu      sync.Mutex
	owners  map[string]*owner // guarded by mu; by sandbox id, until torn down
	closing bool              // guarded by mu
}

// New checks the limits and makes a Manager. Call Recover before the first
// Create.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Limits.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Manager{
		cfg: cfg, admission: newAdmission(cfg.Limits), turns: make(chan struct{}, cfg.Limits.BootsAtOnce), ctx: ctx, cancel: cancel,
		ending: make(chan struct{}), abandon: make(chan struct{}), owners: map[string]*owner{},
	}, nil
}

func (l Limits) check() error {
	var all []error
	positive := func(name string, value int) {
		if value < 1 {
			all = append(all, fmt.Errorf("%s is %d and must be at least 1", name, value))
		}
	}
	positive("slots", l.Slots)
	positive("vcpus", l.VCPUs)
	positive("max-vcpus", l.MaxVCPUs)
	positive("scratch-mib", l.ScratchMiB)
	positive("boots-at-once", l.BootsAtOnce)
	if l.MaxVCPUs > min(32, l.VCPUs) {
		all = append(all, fmt.Errorf("max-vcpus is %d and must be at most 32 and at most vcpus (%d)", l.MaxVCPUs, l.VCPUs))
	}
	if l.MaxMemMiB < MinMemMiB || l.MaxMemMiB+VMOverheadMiB > l.MemMiB {
		all = append(all, fmt.Errorf("max-mem-mib is %d and must be at least %d and, with %d MiB for the VMM, at most mem-mib (%d)",
			l.MaxMemMiB, MinMemMiB, VMOverheadMiB, l.MemMiB))
	}
	for name, value := range map[string]time.Duration{"max-ttl": l.MaxTTL, "boot-turn": l.BootTurn, "boot-timeout": l.BootTimeout, "step-timeout": l.StepTimeout} {
		if value < time.Second {
			all = append(all, fmt.Errorf("%s is %s and must be at least 1s", name, value))
		}
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("check limits: %w", err)
	}
	return nil
}

// Create makes a sandbox and returns when it is running. The sandbox outlives
// ctx: a caller that goes away leaves it to its TTL.
func (m *Manager) Create(ctx context.Context, spec Spec) (Sandbox, error) {
	spec, err := spec.fill(m.cfg.Limits)
	if err != nil {
		return Sandbox{}, err
	}
	img, err := m.cfg.Images.Image(ctx, spec.Image)
	if err != nil {
		return Sandbox{}, err
	}
	held, err := m.admission.reserve(spec.VCPUs, spec.MemMiB)
	if err != nil {
		return Sandbox{}, err
	}
	sb := Sandbox{
		ID: ident.New(ident.Sandbox), Image: img.ID, Name: spec.Name, Tags: maps.Clone(spec.Tags),
		VCPUs: spec.VCPUs, MemMiB: spec.MemMiB, State: Starting, Slot: held.slot, Created: time.Now(), Expires: time.Now().Add(spec.TTL),
	}
	plan := Plan{
		ID: sb.ID, Host: ident.Host(sb.ID), Slot: held.slot, VCPUs: sb.VCPUs, MemMiB: sb.MemMiB,
		Image: img, ScratchMiB: m.cfg.Limits.ScratchMiB,
	}
	o, err := m.adopt(ctx, newOwner(m, sb, plan, held))
	if err != nil {
		held.release()
		return Sandbox{}, err
	}
	return o.waitReady(ctx)
}

// adopt stores the sandbox and starts its owner, unless the manager is closing.
func (m *Manager) adopt(ctx context.Context, o *owner) (*owner, error) {
	m.mu.Lock()
	if m.closing {
		m.mu.Unlock()
		return nil, shuttingDown()
	}
	m.owners[o.sb.ID] = o
	m.running.Add(1)
	m.mu.Unlock()
	// Not the caller's context: whether the row is there must be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Limits.StepTimeout)
	defer cancel()
	if err := m.cfg.Store.InsertSandbox(ctx, o.sb); err != nil {
		m.forget(o)
		m.running.Done()
		return nil, err
	}
	go func() { //nolint:contextcheck // it has its own: the sandbox outlives the request
		defer m.running.Done()
		o.run()
	}()
	return o, nil
}

// Get finds a sandbox in any state.
func (m *Manager) Get(ctx context.Context, id string) (Sandbox, error) {
	if !ident.Valid(ident.Sandbox, id) {
		return Sandbox{}, NotFound()
	}
	if o := m.owner(id); o != nil {
		select {
		case <-o.finished: // the store does not have its ending yet
			return o.final.clone(), nil
		default:
		}
	}
	return m.cfg.Store.Sandbox(ctx, id)
}

// List returns one page of sandboxes, newest first.
func (m *Manager) List(ctx context.Context, q Query) (Page, error) {
	return m.cfg.Store.Sandboxes(ctx, q)
}

// Delete ends a sandbox and returns it when nothing of it is left on the host.
// A sandbox that has stopped already is returned as it is.
func (m *Manager) Delete(ctx context.Context, id string) (Sandbox, error) {
	if _, err := m.Get(ctx, id); err != nil {
		return Sandbox{}, err
	}
	o := m.owner(id)
	if o == nil {
		return m.Get(ctx, id)
	}
	o.end(ReasonDeleted)
	select {
	case <-o.finished:
		return o.final, nil
	case <-ctx.Done():
		return Sandbox{}, ctx.Err()
	}
}

// Use returns the session of a running sandbox.
func (m *Manager) Use(ctx context.Context, id string) (*Session, error) {
	sb, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	o := m.owner(id)
	if o == nil {
		return nil, notRunning(sb)
	}
	select {
	case <-o.ready:
	default:
		return nil, notRunning(sb)
	}
	if o.session == nil || o.session.ctx.Err() != nil {
		sb.State = Stopped
		if o.session != nil {
			sb.Reason = o.session.Reason()
		}
		return nil, notRunning(sb)
	}
	return o.session, nil
}

// Recover settles what an earlier daemon left: every cgroup and jail of this
// node is reaped, and every sandbox that was not stopped becomes so.
func (m *Manager) Recover(ctx context.Context) error {
	hosts := map[string]bool{}
	for _, list := range []func(context.Context) ([]string, error){m.cfg.Cgroups.List, m.cfg.VMM.List} {
		names, err := list(ctx)
		if err != nil {
			return fmt.Errorf("recover: %w", err)
		}
		for _, name := range names {
			hosts[name] = true
		}
	}
	for host := range hosts {
		if err := m.reap(ctx, host); err != nil {
			return fmt.Errorf("recover: reap %s: %w", host, err)
		}
		m.cfg.Logger.Warn("reaped what an earlier daemon left", "host", host)
	}
	live, err := m.cfg.Store.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for _, sb := range live {
		sb.State, sb.StopReason, sb.Reason = Stopped, stopReasons[ReasonHostRestarted], ReasonHostRestarted
		sb.Stopped = time.Now()
		if err := m.cfg.Store.UpdateSandbox(ctx, sb); err != nil {
			return fmt.Errorf("recover: %w", err)
		}
	}
	return nil
}

func (m *Manager) reap(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Limits.StepTimeout)
	defer cancel()
	if err := m.cfg.Cgroups.Kill(ctx, host); err != nil {
		return err
	}
	return errors.Join(m.cfg.VMM.Remove(ctx, host), m.cfg.Cgroups.Remove(ctx, host))
}

// Close refuses new sandboxes, ends all that run, and waits for them. When ctx
// ends first, what is left is for the next start's Recover.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.closing {
		m.closing = true
		close(m.ending)
	}
	for _, o := range m.owners {
		o.end(ReasonHostRestarted)
	}
	m.mu.Unlock()
	done := make(chan struct{})
	go func() { m.running.Wait(); close(done) }()
	defer m.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		close(m.abandon)
		<-done
		return fmt.Errorf("close sandboxes: %w", ctx.Err())
	}
}

// store changes a row, in StepTimeout and in nobody's context.
func (m *Manager) store(sb Sandbox) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Limits.StepTimeout)
	defer cancel()
	return m.cfg.Store.UpdateSandbox(ctx, sb)
}

func (m *Manager) owner(id string) *owner {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owners[id]
}

func (m *Manager) forget(o *owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.owners, o.sb.ID)
}

// NotFound is the answer for an id that names no sandbox of the caller.
func NotFound() error {
	return fault.New(fault.SandboxNotFound, "no sandbox has this id; list sandboxes to see those that exist")
}

func shuttingDown() error {
	e := fault.New(fault.ShuttingDown, "the daemon is stopping; try again in a moment")
	e.RetryAfter = 5 * time.Second
	return e
}
