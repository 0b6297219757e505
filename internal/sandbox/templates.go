package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
)

// templates knows which snapshots of untouched microVMs this node has, has
// missing ones made, one at a time, and drops those that fail or that nobody
// used for longest. A template is a matter of speed and never of success: where
// none can be used, a sandbox boots.
type templates struct {
	m *Manager

	mu     sync.Mutex
	ready  map[string]*template // guarded by mu
	faults map[string]*faults   // guarded by mu; of those that failed of late
	making *making              // guarded by mu; nil while none is
}

// template is one that can be used. Another of the same name is another one.
type template struct {
	name string
	used time.Time // guarded by templates.mu; last
}

// making is the template that is being made.
type making struct {
	giveUp context.CancelCauseFunc
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
	return &templates{m: m, ready: map[string]*template{}, faults: map[string]*faults{}}
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
		t.ready[name] = &template{name: name, used: time.Now()}
	}
	t.mu.Unlock()
	t.trim(ctx)
	return nil
}

// find returns the template to restore a plan from, or nil.
func (t *templates) find(plan Plan) *template {
	name := t.m.cfg.VMM.TemplateOf(plan)
	t.mu.Lock()
	defer t.mu.Unlock()
	found := t.ready[name]
	if found == nil || t.m.limits().Templates == 0 {
		return nil
	}
	found.used = time.Now()
	return found
}

// proved is told that a restore went well.
func (t *templates) proved(used *template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.faults, used.name)
}

// blamed are the steps of a restore that a bad template fails.
var blamed = map[string]bool{"start": true, "configure": true}

// suspected is told that a restore went wrong. What the host did not do, and what
// befell one that is gone already, is no fault of the template.
func (t *templates) suspected(used *template, why error) {
	var at *stepError
	if errors.As(why, &at) && blamed[at.step] {
		t.failed(used.name, used, why)
	}
}

// failed drops a template that does not work, or nil that could not be made, unless
// it was dropped already. The next cold boot makes another: at once after the first
// fault, later and later after more.
func (t *templates) failed(name string, was *template, why error) {
	t.mu.Lock()
	if t.ready[name] != was {
		t.mu.Unlock()
		return
	}
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

// want has the template of a plan made, if it is missing and may be. img is who
// holds the plan's image.
func (t *templates) want(plan Plan, img *image.Use) {
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
	held := img.Also(image.ByTemplate)
	ctx, giveUp := context.WithCancelCause(t.m.ctx)
	now := &making{giveUp: giveUp, done: make(chan struct{})}
	t.making = now
	go func() {
		defer t.m.disclaim(plan.Host)
		err := t.make(ctx, plan, name)
		left := ctx.Err() != nil // given up, or the daemon ends
		giveUp(nil)
		held.Release() // before done: who waits may want to remove the image
		close(now.done)
		t.mu.Lock()
		t.making = nil
		t.mu.Unlock()
		switch {
		case err == nil:
			t.m.cfg.Logger.Info("template made", "template", name, "image", plan.Image.ID, "vcpus", plan.VCPUs, "mem_mib", plan.MemMiB)
			t.trim(ctx)
		case fault.Is(err, fault.NodeAtCapacity) || left:
			t.m.cfg.Logger.Info("template not made now", "template", name, "why", err)
		default:
			t.failed(name, nil, err)
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
	now.giveUp(errYielded)
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
func (t *templates) make(ctx context.Context, plan Plan, name string) error {
	held, err := t.m.admission.reserveMaker(amountOf(plan))
	if err != nil {
		return err
	}
	c := t.m.cfg
	vm := newMicroVM(ctx, t.m, plan, c.Logger.With("template", name))
	freeze := step{"freeze", func(ctx context.Context) error { return c.VMM.Freeze(ctx, plan) }}
	err = t.m.inTurn(ctx, func() error { return vm.take(append(vm.build(), step{"hello", vm.hello}, freeze)) }) //nolint:contextcheck // it has ctx for its life
	if err == nil {
		err = vm.kept(ctx, name)
	}
	if err == nil {
		t.mu.Lock()
		t.ready[name] = &template{name: name, used: time.Now()}
		t.mu.Unlock()
	}
	if vm.remove(context.WithoutCancel(ctx)) {
		held.release()
	}
	return err
}

// stop gives up what is being made: nobody waits for a template.
func (t *templates) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.making != nil {
		t.making.giveUp(ErrLeft)
	}
}

// kept ends a frozen VMM, and with it v.ctx, and makes what it wrote a template.
func (v *microVM) kept(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, v.m.limits().BootTimeout)
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
	slices.SortFunc(names, func(a, b string) int { return t.ready[b].used.Compare(t.ready[a].used) })
	gone := names[min(len(names), t.m.limits().Templates):]
	for _, name := range gone {
		delete(t.ready, name)
	}
	t.mu.Unlock()
	for _, name := range gone {
		t.drop(ctx, name)
	}
}

// dropImage drops all templates of an image that is no more.
func (t *templates) dropImage(ctx context.Context, img image.Image) {
	of := t.m.cfg.VMM.TemplateOf(Plan{Image: img})[:TemplateImage]
	var gone []string
	t.mu.Lock()
	for name := range t.ready {
		if strings.HasPrefix(name, of) {
			gone = append(gone, name)
			delete(t.ready, name)
		}
	}
	for name := range t.faults {
		if strings.HasPrefix(name, of) {
			delete(t.faults, name)
		}
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
