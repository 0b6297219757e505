package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
)

// templates knows which snapshots of untouched microVMs this node has, has
// missing ones made, one at a time, and drops those that fail or that nobody
// used for longest. A template is a matter of speed and never of success: where
// none can be used, a sandbox boots.
type templates struct {
	m *Manager

	mu     sync.Mutex
	ready  map[string]time.Time // guarded by mu; when each was last used
	faults map[string]*faults   // guarded by mu; of those that failed of late
	making *making              // guarded by mu; nil while none is
}

// making is the template that is being made.
type making struct {
	cancel chan struct{} // closed when it is to be given up
	giveUp func()        // closes cancel
	done   chan struct{} // closed when nothing of it is left
}

// errYielded is why a template was given up.
var errYielded = errors.New("a sandbox needs the room")

// faults is how often a template failed in a row, and until when no other is made.
type faults struct {
	count int
	until time.Time
}

const (
	faultPause    = time.Minute // after the second fault in a row; it doubles with each
	faultPauseMax = time.Hour
)

func newTemplates(m *Manager) *templates {
	return &templates{m: m, ready: map[string]time.Time{}, faults: map[string]*faults{}}
}

// load finds what an earlier daemon made.
func (t *templates) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.m.limits().StepTimeout)
	defer cancel()
	names, err := t.m.cfg.VMM.Templates(ctx)
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}
	t.mu.Lock()
	for _, name := range names {
		t.ready[name] = time.Now()
	}
	t.mu.Unlock()
	t.trim(ctx)
	return nil
}

// find names the template to restore a plan from; "" is none.
func (t *templates) find(plan Plan) string {
	name := t.m.cfg.VMM.TemplateOf(plan)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.ready[name]; !ok || t.m.limits().Templates == 0 {
		return ""
	}
	t.ready[name] = time.Now()
	return name
}

// proved is told that a restore went well.
func (t *templates) proved(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.faults, name)
}

// failed is told that a restore, or the making, went wrong. The next cold boot
// makes another: at once after the first fault, later and later after more.
func (t *templates) failed(name string, why error) {
	t.mu.Lock()
	delete(t.ready, name)
	f := t.faults[name]
	if f == nil {
		f = &faults{}
		t.faults[name] = f
	}
	if f.count++; f.count > 1 {
		f.until = time.Now().Add(min(faultPause<<min(f.count-2, 10), faultPauseMax))
	}
	again := f.until
	t.mu.Unlock()
	t.m.cfg.Logger.Error("template failed", "template", name, "error", why, "not_again_before", again)
	t.drop(t.m.ctx, name)
}

// want has the template of a plan made, if it is missing and may be.
func (t *templates) want(plan Plan) {
	name := t.m.cfg.VMM.TemplateOf(plan)
	t.mu.Lock()
	defer t.mu.Unlock()
	_, have := t.ready[name]
	f := t.faults[name]
	if have || t.making != nil || t.m.limits().Templates == 0 || f != nil && time.Now().Before(f.until) {
		return
	}
	plan.ID = ident.New(ident.Sandbox) // no sandbox has it: on the host it needs a name like one
	plan.Host, plan.Slot = ident.Host(plan.ID), makerSlot
	if !t.m.claim(plan.Host) {
		return
	}
	cancel := make(chan struct{})
	now := &making{cancel: cancel, giveUp: sync.OnceFunc(func() { close(cancel) }), done: make(chan struct{})}
	t.making = now
	go func() {
		defer t.m.disclaim(plan.Host)
		err := t.make(plan, name, cancel)
		close(now.done)
		t.mu.Lock()
		t.making = nil
		t.mu.Unlock()
		switch {
		case err == nil:
			t.m.cfg.Logger.Info("template made", "template", name, "image", plan.Image.ID, "vcpus", plan.VCPUs, "mem_mib", plan.MemMiB)
			t.trim(t.m.ctx)
		case fault.Is(err, fault.NodeAtCapacity) || t.m.ctx.Err() != nil || errors.Is(err, ErrLeft) || errors.Is(err, errYielded):
			t.m.cfg.Logger.Info("template not made now", "template", name, "why", err)
		default:
			t.failed(name, err)
		}
	}()
}

// yield gives the template up that is being made, and waits until it is gone.
func (t *templates) yield(ctx context.Context) error {
	t.mu.Lock()
	now := t.making
	t.mu.Unlock()
	if now == nil {
		return nil
	}
	now.giveUp()
	select {
	case <-now.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(t.m.limits().StepTimeout):
		return full("a template of this node does not go away")
	}
}

// make boots a microVM of the plan, freezes it untouched, and keeps what that
// left. Nothing of a caller's ever ran in it.
func (t *templates) make(plan Plan, name string, cancel <-chan struct{}) error {
	held, err := t.m.admission.reserveMaker(amountOf(plan))
	if err != nil {
		return err
	}
	c := t.m.cfg
	vm := newMicroVM(t.m.ctx, t.m, plan, c.Logger.With("template", name))
	stop := make(chan struct{})
	defer close(stop)
	go func() { // nobody waits for a template
		select {
		case <-t.m.ending:
			vm.cancel(ErrLeft)
		case <-cancel:
			vm.cancel(errYielded)
		case <-stop:
		}
	}()
	err = vm.provision(append(vm.build(), step{"hello", vm.hello}, step{"freeze", func(ctx context.Context) error { return c.VMM.Freeze(ctx, plan) }}))
	if err == nil {
		err = vm.kept(name)
	}
	if err == nil {
		t.mu.Lock()
		t.ready[name] = time.Now()
		t.mu.Unlock()
	}
	if vm.remove() {
		held.release()
	}
	return err
}

// kept ends a frozen VMM and makes what it wrote a template.
func (v *microVM) kept(name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), v.m.limits().BootTimeout)
	defer cancel()
	if err := v.m.cfg.Cgroups.Kill(ctx, v.plan.Host); err != nil {
		return err
	}
	return v.m.cfg.VMM.Keep(ctx, v.plan.Host, name)
}

// trim drops the least recently used templates of too many.
func (t *templates) trim(ctx context.Context) {
	t.mu.Lock()
	names := make([]string, 0, len(t.ready))
	for name := range t.ready {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return t.ready[b].Compare(t.ready[a]) })
	gone := names[min(len(names), t.m.limits().Templates):]
	for _, name := range gone {
		delete(t.ready, name)
	}
	t.mu.Unlock()
	for _, name := range gone {
		t.drop(ctx, name)
	}
}

func (t *templates) drop(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.m.limits().StepTimeout)
	defer cancel()
	if err := t.m.cfg.VMM.DropTemplate(ctx, name); err != nil {
		t.m.cfg.Logger.Error("cannot drop template", "template", name, "error", err)
	}
}
