package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
)

// Config is what a Manager is built from. Every field is required.
type Config struct {
	Store   Store
	Images  Images
	Cgroups Cgroups
	VMM     VMM
	Agents  Agents
	Secrets Secrets
	Limits  Limits
	Logger  *slog.Logger

	// Uptime is how long the host runs, without the time that it was suspended:
	// TTLs count in it, because nobody can set it. HostBoot names the boot that
	// it counts from.
	Uptime   func() time.Duration
	HostBoot string
}

// Manager makes sandboxes, finds them and ends them. It is safe for concurrent
// use.
type Manager struct {
	cfg       Config
	admission *admission
	templates *templates
	bounds    atomic.Pointer[Limits] // as they are now
	turns     chan struct{}          // a place for each boot at once

	ctx     context.Context // the life of everything it started; nothing is waited for after it
	cancel  context.CancelFunc
	ending  chan struct{} // closed when Close began
	drain   bool          // set before ending is closed: sandboxes end with the daemon
	running sync.WaitGroup

	mu      sync.Mutex
	owners  map[string]*owner // guarded by mu; by sandbox id, until torn down
	others  map[string]bool   // guarded by mu; host names of what is being made into a template or reaped
	closing bool              // guarded by mu
}

// New checks the limits and makes a Manager. Call Recover before the first
// Create.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Limits.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{
		cfg: cfg, admission: newAdmission(cfg.Limits), turns: make(chan struct{}, cfg.Limits.BootsAtOnce), ctx: ctx, cancel: cancel,
		ending: make(chan struct{}), owners: map[string]*owner{}, others: map[string]bool{},
	}
	m.bounds.Store(&cfg.Limits)
	m.templates = newTemplates(m)
	return m, nil
}

// limits are those in force now.
func (m *Manager) limits() Limits { return *m.bounds.Load() }

// Reload puts other limits in force. Sandboxes that hold more than they allow
// keep it. What a running daemon cannot change is refused, and then nothing is
// changed.
func (m *Manager) Reload(next Limits) error {
	if err := next.check(); err != nil {
		return err
	}
	now := m.limits()
	var fixed []error
	for name, same := range map[string]bool{
		"scratch-mib":     next.ScratchMiB == now.ScratchMiB,
		"boots-at-once":   next.BootsAtOnce == now.BootsAtOnce,
		"reconcile-every": next.ReconcileEvery == now.ReconcileEvery,
	} {
		if !same {
			fixed = append(fixed, fmt.Errorf("%s changes only with a restart", name))
		}
	}
	if err := errors.Join(fixed...); err != nil {
		return fmt.Errorf("reload limits: %w", err)
	}
	m.bounds.Store(&next)
	m.admission.reload(next)
	m.templates.trim(m.ctx)
	return nil
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
	if l.Slots >= makerSlot {
		all = append(all, fmt.Errorf("slots is %d and must be less than %d", l.Slots, makerSlot))
	}
	if l.MaxVCPUs > min(32, l.VCPUs) {
		all = append(all, fmt.Errorf("max-vcpus is %d and must be at most 32 and at most vcpus (%d)", l.MaxVCPUs, l.VCPUs))
	}
	if l.MaxMemMiB < MinMemMiB || l.MaxMemMiB+VMOverheadMiB > l.MemMiB {
		all = append(all, fmt.Errorf("max-mem-mib is %d and must be at least %d and, with %d MiB for the VMM, at most mem-mib (%d)",
			l.MaxMemMiB, MinMemMiB, VMOverheadMiB, l.MemMiB))
	}
	if l.DiskMiB < l.ScratchMiB {
		all = append(all, fmt.Errorf("disk-mib is %d and must have room for one scratch disk (scratch-mib, %d)", l.DiskMiB, l.ScratchMiB))
	}
	if l.Templates < 0 {
		all = append(all, fmt.Errorf("templates is %d and must be at least 0", l.Templates))
	}
	for name, value := range map[string]time.Duration{
		"max-ttl": l.MaxTTL, "boot-turn": l.BootTurn, "boot-timeout": l.BootTimeout, "stall-timeout": l.StallTimeout,
		"step-timeout": l.StepTimeout, "reconcile-every": l.ReconcileEvery,
	} {
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
	spec, err := spec.fill(m.limits())
	if err != nil {
		return Sandbox{}, err
	}
	img, err := m.cfg.Images.Use(ctx, spec.Image, image.BySandbox)
	if err != nil {
		return Sandbox{}, err
	}
	o, err := m.create(ctx, spec, img)
	if err != nil {
		img.Release()
		return Sandbox{}, err
	}
	return o.waitReady(ctx)
}

// create admits a sandbox, stores it, and starts its owner, who then holds the
// image.
func (m *Manager) create(ctx context.Context, spec Spec, img *image.Use) (*owner, error) {
	now := time.Now()
	sb := Sandbox{
		ID: ident.New(ident.Sandbox), Image: img.ID, Name: spec.Name, Tags: maps.Clone(spec.Tags),
		VCPUs: spec.VCPUs, MemMiB: spec.MemMiB, Idle: spec.Idle, State: Starting,
		Created: now, Expires: now.Add(spec.TTL), Deadline: m.cfg.Uptime() + spec.TTL, HostBoot: m.cfg.HostBoot,
	}
	var err error
	if sb.Env, err = m.sealed(spec.Env, sb.ID); err != nil {
		return nil, err
	}
	plan := m.plan(sb, img.Image)
	held, err := m.admit(ctx, amountOf(plan))
	if err != nil {
		return nil, err
	}
	sb.Slot, plan.Slot = held.slot, held.slot
	o := newOwner(m, sb, plan, held, img)
	o.cold = spec.Boot == BootCold
	if err := m.insert(ctx, o); err != nil {
		held.release()
		return nil, err
	}
	return o, nil
}

// admit reserves room. A template in the making is given up for it.
func (m *Manager) admit(ctx context.Context, more amount) (*reservation, error) {
	held, err := m.admission.reserve(more)
	if errors.Is(err, errYield) {
		if err := m.templates.yield(ctx); err != nil {
			return nil, err
		}
		held, err = m.admission.reserve(more)
	}
	if errors.Is(err, errYield) { // the next one is in the making already
		err = full("this node makes room just now")
	}
	return held, err
}

// plan is what adapters need of a sandbox.
func (m *Manager) plan(sb Sandbox, img image.Image) Plan {
	return Plan{
		ID: sb.ID, Host: ident.Host(sb.ID), Slot: sb.Slot, VCPUs: sb.VCPUs, MemMiB: sb.MemMiB, Image: img, ScratchMiB: m.limits().ScratchMiB,
	}
}

// insert stores a new sandbox and starts its owner, unless the manager is
// closing.
func (m *Manager) insert(ctx context.Context, o *owner) error {
	if !m.own(o) {
		return shuttingDown()
	}
	// Not the caller's context: whether the row is there must be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.limits().StepTimeout)
	defer cancel()
	if err := m.cfg.Store.InsertSandbox(ctx, o.sb); err != nil {
		m.forget(o) // a row that was written all the same is settled by reconcile
		m.running.Done()
		return err
	}
	m.start(o) //nolint:contextcheck // it has its own: the sandbox outlives the request
	return nil
}

// own makes the manager answer for a sandbox, unless it is closing. What follows
// is start, or forget and running.Done.
func (m *Manager) own(o *owner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return false
	}
	m.owners[o.sb.ID] = o
	m.running.Add(1)
	return true
}

func (m *Manager) start(o *owner) {
	go func() {
		defer m.running.Done()
		o.run()
	}()
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
	case <-o.left:
		return Sandbox{}, shuttingDown()
	case <-ctx.Done():
		return Sandbox{}, ctx.Err()
	}
}

// Use returns a use of a running sandbox, to be released. One that an earlier
// daemon left running, or that only just came to run, is waited for.
func (m *Manager) Use(ctx context.Context, id string) (*Session, error) {
	o, err := m.usable(ctx, id)
	if err != nil {
		return nil, err
	}
	if !o.life.use() {
		select {
		case <-o.life.ctx.Done(): // it is reclaimed: why will be known when that is stored
		case <-ctx.Done():
			return nil, fmt.Errorf("use the sandbox: %w", ctx.Err())
		}
		return nil, o.gone()
	}
	return &Session{life: o.life}, nil
}

// usable finds the owner of a sandbox that became usable. One that is usable now
// needs no look into the store.
func (m *Manager) usable(ctx context.Context, id string) (*owner, error) {
	if o := m.owner(id); o != nil {
		select {
		case <-o.ready:
			if o.life != nil {
				return o, nil
			}
		default:
		}
	}
	sb, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	o := m.owner(id)
	if o == nil {
		// It ended between the two looks, or is another daemon's.
		if sb, err = m.Get(ctx, id); err != nil {
			return nil, err
		}
		return nil, notRunning(sb)
	}
	if o.adopted || sb.State == Running {
		select {
		case <-o.ready:
		case <-o.left:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the sandbox: %w", ctx.Err())
		}
	}
	select {
	case <-o.ready:
	case <-o.left:
		return nil, shuttingDown()
	default:
		return nil, notRunning(sb)
	}
	if o.life == nil {
		sb.State, sb.Reason = Stopped, o.sb.Reason // settled before ready was closed
		return nil, notRunning(sb)
	}
	return o, nil
}

// Extend moves the end of a sandbox's TTL to now + ttl, if that is later than
// what it was.
func (m *Manager) Extend(ctx context.Context, id string, ttl time.Duration) (Sandbox, error) {
	if ttl < time.Second || ttl > m.limits().MaxTTL {
		return Sandbox{}, fault.Param("ttl_seconds", "ttl_seconds must be 1 to %d on this node", int(m.limits().MaxTTL.Seconds()))
	}
	o, err := m.usable(ctx, id)
	if err != nil {
		return Sandbox{}, err
	}
	return o.ask(ctx, func() (Sandbox, error) { return o.extend(ttl) }) //nolint:contextcheck // the owner has its own
}

// Touch uses a sandbox for a moment, so that its idle time begins anew.
func (m *Manager) Touch(ctx context.Context, id string) (Sandbox, error) {
	session, err := m.Use(ctx, id)
	if err != nil {
		return Sandbox{}, err
	}
	session.Release()
	return m.Get(ctx, id)
}

// Close refuses new sandboxes and waits for what is under way. Those that run
// are left to the next daemon, or, with drain, ended. When ctx ends first, what
// is left is for the next start's Recover.
func (m *Manager) Close(ctx context.Context, drain bool) error {
	m.mu.Lock()
	if !m.closing {
		m.closing, m.drain = true, drain
		close(m.ending)
	}
	if drain {
		for _, o := range m.owners {
			o.end(ReasonHostRestarted)
		}
	}
	m.mu.Unlock()
	m.templates.stop()
	done := make(chan struct{})
	go func() { m.running.Wait(); close(done) }()
	defer m.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	m.cancel()
	select { // what the kernel holds ends with the process
	case <-done:
	case <-time.After(closeGrace):
	}
	return fmt.Errorf("close sandboxes: %w", ctx.Err())
}

// closeGrace is how long Close waits for what it has given up.
const closeGrace = 5 * time.Second

// store changes a row, in StepTimeout, whatever becomes of ctx.
func (m *Manager) store(ctx context.Context, sb Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.limits().StepTimeout)
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
