package testkit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/microvmd/microvm/internal/sandbox"
)

// View is the host as one daemon sees it in one life. A second daemon on the
// same host has a View of its own, and finds there what the first one left.
type View struct {
	host *Host
	life context.Context //nolint:containedctx // it is the daemon's
	end  context.CancelCauseFunc

	// acting is held for reading while an operation has its effect: a kill
	// waits for it, so that no effect of a dead daemon comes late.
	acting sync.RWMutex

	mu     sync.Mutex
	count  int    // guarded by mu; operations and calls so far
	at     int    // guarded by mu; the one that ends this life; 0 is none
	moment Moment // guarded by mu; when in that one
	died   string // guarded by mu; the one that did
}

// Moment is when in an operation its daemon is killed.
type Moment int

const (
	Before Moment = iota // nothing of it happened
	Amid                 // half of it happened, where it has halves, else all
	After                // all of it happened, and the daemon never learnt that
)

// String names the moment.
func (m Moment) String() string { return [...]string{"before", "amid", "after"}[m] }

// ErrKilled is what a call through the View of a killed daemon returns.
var ErrKilled = errors.New("the daemon was killed")

// View opens the host for one more daemon.
func (h *Host) View() *View {
	life, end := context.WithCancelCause(context.Background())
	return &View{host: h, life: life, end: end}
}

// Cgroups is the host as sandbox.Cgroups.
func (v *View) Cgroups() sandbox.Cgroups { return (*cgroups)(v) }

// VMM is the host as sandbox.VMM.
func (v *View) VMM() sandbox.VMM { return (*vmm)(v) }

// Agents is the host as sandbox.Agents.
func (v *View) Agents() sandbox.Agents { return (*agents)(v) }

// Kill ends this life as SIGKILL would: calls that wait return, and no call has
// an effect any more once Kill has returned. What is on the host stays.
func (v *View) Kill() {
	v.acting.Lock()
	defer v.acting.Unlock()
	v.end(ErrKilled)
}

// KillAt lets the nth operation or call to an agent, counted from 1, end this
// life.
func (v *View) KillAt(n int, moment Moment) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at, v.moment = n, moment
}

// Dead is closed when this life has ended.
func (v *View) Dead() <-chan struct{} { return v.life.Done() }

// Count tells how many operations and calls to agents there were so far, and
// the one that ended this life, if it was one.
func (v *View) Count() (n int, died string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.count, v.died
}

// kind says how much of a stir a call makes.
type kind int

const (
	look      kind = iota // changes nothing: neither traced nor counted
	call                  // a call to an agent: counted
	operation             // counted and traced
)

// act lets one call through this life happen, unless a fault, a hang or the end
// of the life was ordered for it. half is what of it an end in its midst leaves
// behind; nil if it has no halves.
func (v *View) act(ctx context.Context, kind kind, name string, effect, half func() error) error {
	if v.life.Err() != nil {
		return fmt.Errorf("%s: %w", name, ErrKilled)
	}
	last, moment := v.note(kind, name)
	if last && moment == Before {
		return v.die(name)
	}
	err := v.injected(ctx, name)
	if err == nil {
		if last && moment == Amid && half != nil {
			effect = half
		}
		err = v.perform(kind, name, effect)
	}
	if last {
		return v.die(name)
	}
	return err
}

func (v *View) die(name string) error {
	v.Kill()
	return fmt.Errorf("%s: %w", name, ErrKilled)
}

// note counts and traces a call, and says whether it is the last one of this
// life.
func (v *View) note(kind kind, name string) (last bool, moment Moment) {
	if kind == look {
		return false, Before
	}
	if kind == operation {
		v.host.mu.Lock()
		v.host.trace = append(v.host.trace, name)
		v.host.mu.Unlock()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	if v.count != v.at {
		return false, Before
	}
	v.died = name
	return true, v.moment
}

// injected applies what the host was told of an operation.
func (v *View) injected(ctx context.Context, name string) error {
	h := v.host
	h.mu.Lock()
	err, hang := h.faults[name], h.hangs[name]
	h.mu.Unlock()
	if hang {
		err = v.wait(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// wait waits for a channel, and returns an error if the context or the life
// ends first.
func (v *View) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-v.life.Done():
		return ErrKilled
	}
}

// perform has the effect of a call while no kill can come between. A call to an
// agent may last: it watches for the end of the life by itself.
func (v *View) perform(kind kind, name string, effect func() error) error {
	if kind == operation {
		v.acting.RLock()
		defer v.acting.RUnlock()
	}
	if v.life.Err() != nil {
		return fmt.Errorf("%s: %w", name, ErrKilled)
	}
	return effect()
}
