package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/image"
)

// owner is the one goroutine that decides over a sandbox. Everything that can
// happen to it (a caller's delete, the end of the TTL, idleness, the VMM's
// death, an agent that lies) reaches it as a request, so the order of events is
// the order of its queue, and the first cause of an ending is the one that is
// kept.
type owner struct {
	m       *Manager
	plan    Plan
	log     *slog.Logger
	held    *reservation
	image   *image.Use  // held from before there is an owner until nothing is left of the sandbox
	adopted bool        // an earlier daemon started it
	cold    bool        // it is to boot, whatever templates there are
	queue   chan Reason // causes of an ending
	asks    chan func() // what else is asked of a running sandbox

	// owner only
	sb  Sandbox
	ttl *time.Timer

	ctx      context.Context // bounds what belongs to the sandbox's life
	cancel   context.CancelCauseFunc
	ready    chan struct{} // closed when running or stopped
	life     *life         // set before ready is closed when running; else nil
	finished chan struct{} // closed when stopped and torn down
	left     chan struct{} // closed when the daemon left it to the next one
	bootErr  error         // set before ready is closed
	final    Sandbox       // set before finished is closed
}

// leaving is no reason that anybody sees: the daemon stops, the sandbox does not.
const leaving Reason = "leaving"

func newOwner(m *Manager, sb Sandbox, plan Plan, held *reservation, img *image.Use) *owner {
	ctx, cancel := context.WithCancelCause(m.ctx)
	return &owner{
		m: m, plan: plan, held: held, image: img, sb: sb, ctx: ctx, cancel: cancel,
		log:      m.cfg.Logger.With("sandbox", sb.ID),
		queue:    make(chan Reason, 1),
		asks:     make(chan func()),
		ready:    make(chan struct{}),
		finished: make(chan struct{}),
		left:     make(chan struct{}),
	}
}

// end asks the owner to end the sandbox for a reason. It never blocks: when a
// cause is already waiting, that one came first.
func (o *owner) end(reason Reason) {
	select {
	case o.queue <- reason:
	default:
	}
}

// begun is how the beginning ended.
type begun struct {
	vm  *microVM
	err error
}

// run is the owner. It returns when nothing of the sandbox is left on the host,
// or when it is left to the next daemon.
func (o *owner) run() {
	o.ttl = time.NewTimer(o.sb.Deadline - o.m.cfg.Uptime())
	defer o.ttl.Stop()
	beginning := make(chan begun, 1)
	go func() { beginning <- o.begin() }()

	vm, reason := o.starting(beginning)
	if reason == "" {
		reason = o.running(vm)
	}
	if reason == leaving {
		o.leave(vm)
		return
	}
	o.stop(vm, reason)
}

// begin brings the microVM up: adopts it, or restores it from its template, or
// boots it. A restore that fails costs time and no sandbox.
func (o *owner) begin() begun {
	if o.adopted {
		vm := newMicroVM(o.ctx, o.m, o.plan, o.log)
		return begun{vm, vm.take(vm.adoption())}
	}
	b, used := o.attempt(o.cold)
	if used == nil || o.ctx.Err() != nil {
		return b
	}
	if b.err == nil {
		o.m.templates.proved(used)
		return b
	}
	o.m.templates.suspected(used, b.err)
	o.log.Warn("restore from template failed, booting instead", "template", used.name, "error", b.err)
	ctx, cancel := context.WithTimeout(o.ctx, o.m.limits().StepTimeout)
	defer cancel()
	if !b.vm.remove(ctx) { // the caller gets its answer; stop goes on with it
		return b
	}
	b, _ = o.attempt(true)
	return b
}

// attempt brings a microVM up once its turn has come, and names the template that
// it used.
func (o *owner) attempt(cold bool) (b begun, used *template) {
	plan := o.plan
	b.vm = newMicroVM(o.ctx, o.m, plan, o.log)
	b.err = o.m.inTurn(o.ctx, func() error {
		if !cold { // only now: one that was found before the turn came may be gone
			used = o.m.templates.find(plan)
		}
		if used != nil {
			b.vm.plan.Template = used.name
		}
		return b.vm.take(b.vm.steps())
	})
	return b, used
}

// starting waits for the microVM and returns no reason once the sandbox runs, or
// why it never will. When it returns, the beginning has ended.
func (o *owner) starting(beginning <-chan begun) (*microVM, Reason) {
	var cause Reason
	abandon := o.m.ctx.Done()
	var ending <-chan struct{} // one that runs already is left as it is
	if o.adopted {
		ending = o.m.ending
	}
	for {
		select {
		case b := <-beginning:
			if cause == "" && b.err == nil {
				return b.vm, o.becomeRunning(b.vm)
			}
			if cause == "" && o.m.ctx.Err() != nil {
				cause = leaving // we ended it: the next start settles it
			}
			if cause == "" {
				cause = o.failure(b)
				o.log.Error("sandbox did not start", "reason", cause, "error", b.err)
			}
			o.bootErr = b.err
			return b.vm, cause
		case reason := <-o.queue:
			cause = first(cause, reason)
		case <-o.ttl.C:
			cause = first(cause, ReasonTTL)
		case <-ending:
			ending = nil
			if o.m.drain {
				continue // by the queue
			}
			cause = first(cause, leaving)
		case <-abandon:
			abandon = nil
			cause = leaving // the next start settles it
		}
		o.cancel(errors.New("the sandbox is ending: " + string(cause)))
	}
}

// failure is the reason of a beginning that failed by itself.
func (o *owner) failure(b begun) Reason {
	reason := ReasonAgentDied
	if errors.Is(b.err, ErrEnded) || errors.Is(context.Cause(b.vm.ctx), errDead) {
		reason = o.died()
	}
	if !o.adopted { // the log has what ended the VMM, if something did
		reason = ReasonBootFailed
	}
	return reason
}

// died is the reason of a VMM's death that is none of our doing. Its cgroup is
// still there, and has counted by now: see Cgroups.OOMKilled.
func (o *owner) died() Reason {
	ctx, cancel := context.WithTimeout(o.m.ctx, o.m.limits().StepTimeout)
	defer cancel()
	killed, err := o.m.cfg.Cgroups.OOMKilled(ctx, o.plan.Host)
	switch {
	case err != nil:
		o.log.Error("cannot tell whether the host's OOM killer ended the VMM", "error", err)
	case killed:
		o.log.Error("the host's OOM killer ended the VMM", "mem_mib", o.sb.MemMiB)
		return ReasonHostOOM
	}
	stopped, err := o.m.cfg.VMM.GuestEnded(ctx, o.plan.Host)
	if err != nil {
		o.log.Error("cannot tell whether the guest ended its VMM", "error", err)
	}
	if stopped {
		return ReasonAgentDied
	}
	return ReasonVMDied
}

func (o *owner) becomeRunning(vm *microVM) Reason {
	if !o.adopted {
		next := o.sb
		next.State, next.Boot = Running, BootCold
		if vm.plan.Template != "" {
			next.Boot = BootSnapshot
		}
		if err := o.save(next); err != nil {
			o.log.Error("store refused the sandbox", "error", err)
			o.bootErr = err
			return ReasonBootFailed
		}
		if next.Boot == BootCold && !o.cold {
			o.m.templates.want(o.plan, o.image)
		}
	}
	o.life = newLife(o)
	close(o.ready)
	return ""
}

func (o *owner) running(vm *microVM) Reason {
	idle := time.NewTimer(o.sb.Idle)
	defer idle.Stop()
	if o.sb.Idle == 0 {
		idle.Stop()
	}
	for {
		select {
		case reason := <-o.queue:
			return reason
		case <-o.ttl.C:
			if left := o.sb.Deadline - o.m.cfg.Uptime(); left > 0 {
				o.ttl.Reset(left)
				continue
			}
			return ReasonTTL
		case <-idle.C:
			wait, idled := o.life.reclaim(o.sb.Idle)
			if idled {
				return ReasonIdle
			}
			idle.Reset(wait)
		case ask := <-o.asks:
			ask()
		case <-o.m.ending:
			if o.m.drain {
				return ReasonHostRestarted
			}
			return leaving
		case <-vm.dead:
			// A delete that killed the VM is not here: it goes through the queue
			// first. What was already queued when the VM died came first, too.
			select {
			case reason := <-o.queue:
				return reason
			default:
				return o.died()
			}
		}
	}
}

// extend moves the end of the TTL to now + ttl, if that is later.
func (o *owner) extend(ttl time.Duration) (Sandbox, error) {
	now := time.Now()
	if most := o.sb.Created.Add(o.m.limits().MaxTTL).Sub(now); ttl > most {
		return Sandbox{}, fault.Param("ttl_seconds", "ttl_seconds must be at most %d now: a sandbox lives at most %d s on this node from its creation on",
			int(max(most, 0).Seconds()), int(o.m.limits().MaxTTL.Seconds()))
	}
	next := o.sb
	if deadline := o.m.cfg.Uptime() + ttl; deadline > next.Deadline {
		next.Deadline, next.Expires = deadline, now.Add(ttl)
		if err := o.save(next); err != nil {
			return Sandbox{}, err
		}
		o.ttl.Reset(ttl)
	}
	return o.sb.clone(), nil
}

// clockSlack is how far the shown end of a TTL may be from the true one.
const clockSlack = 2 * time.Second

// followClock corrects what is shown of the TTL's end after the wall clock was
// set. The end itself counts in the host's uptime and stays.
func (o *owner) followClock() {
	next := o.sb
	next.Expires = time.Now().Add(next.Deadline - o.m.cfg.Uptime()).Round(0)
	if off := next.Expires.Sub(o.sb.Expires.Round(0)); off.Abs() < clockSlack {
		return
	}
	if err := o.save(next); err != nil {
		o.log.Error("store refused the sandbox", "error", err)
	}
}

// leave ends what this daemon does for the sandbox, and nothing else. The owner
// stays the one to ask: no answer of this daemon is about a sandbox without one.
func (o *owner) leave(vm *microVM) {
	o.cancel(ErrLeft)
	if o.life != nil {
		o.life.end(ErrLeft)
	}
	o.m.cfg.Agents.Release(o.plan.Host)
	vm.watch.Wait()
	close(o.left)
}

// stop records the ending, then removes everything from the host, trying again
// until nothing is left: a slot is free only then.
func (o *owner) stop(vm *microVM, reason Reason) {
	next := o.sb
	next.State, next.StopReason, next.Reason = Stopped, stopReasons[reason], reason
	next.Stopped, next.Env = time.Now(), ""
	stored := o.save(next)
	if stored != nil { // the VM is ended all the same
		o.log.Error("store refused the ending", "error", stored)
		o.sb = next
	}
	if o.life != nil {
		o.life.end(&Ended{Reason: reason})
	} else {
		close(o.ready)
	}
	o.cancel(errors.New("the sandbox ended"))
	removed := vm.remove(context.Background())
	if removed {
		o.image.Release()
		o.held.release()
		o.log.Info("sandbox stopped", "stop_reason", o.sb.StopReason, "reason", o.sb.Reason)
	} else {
		o.log.Error("teardown given up: the next start of the daemon reaps the rest")
	}
	o.close(stored)
}

// close lets everybody see the end. An ending that the store refused (its disk
// is full, say) is told by the owner until the store takes it, or the daemon
// ends: its next start settles the row.
func (o *owner) close(stored error) {
	o.final = o.sb.clone()
	if stored == nil {
		o.m.forget(o)
		close(o.finished)
		return
	}
	defer o.m.forget(o)
	close(o.finished)
	for wait := 100 * time.Millisecond; stored != nil; wait = min(2*wait, 10*time.Second) {
		select {
		case <-time.After(wait):
		case <-o.m.ending:
			return
		}
		stored = o.m.store(o.ctx, o.final)
		if fault.Is(stored, fault.SandboxNotRunning) || fault.Is(stored, fault.SandboxNotFound) {
			return // the refused write had happened, or the row was forgotten
		}
	}
	o.log.Info("store took the ending")
}

// save moves the sandbox in the table and the store, in that order.
func (o *owner) save(next Sandbox) error {
	if next.State != o.sb.State {
		if err := move(o.sb.State, next.State); err != nil {
			return err
		}
	}
	if err := o.m.store(o.ctx, next); err != nil {
		return err
	}
	o.sb = next
	return nil
}

func first(kept, later Reason) Reason {
	if kept != "" {
		return kept
	}
	return later
}

// waitReady waits until the sandbox runs and returns it, or why it does not.
func (o *owner) waitReady(ctx context.Context) (Sandbox, error) {
	select {
	case <-o.ready:
	case <-o.left:
		select {
		case <-o.ready: // it was there before it was left
		default:
			return Sandbox{}, shuttingDown()
		}
	case <-ctx.Done():
		return Sandbox{}, ctx.Err()
	}
	if o.life != nil {
		return o.life.sandbox.clone(), nil
	}
	if sb := o.sb; sb.Reason != ReasonBootFailed { // settled before ready was closed
		return Sandbox{}, notRunning(sb)
	}
	return Sandbox{}, fault.Wrap(o.bootErr, fault.InternalError,
		"sandbox %s did not start; the daemon's log says why under this id", o.plan.ID)
}

// ask has something done in the owner's goroutine while the sandbox runs.
func (o *owner) ask(ctx context.Context, do func() (Sandbox, error)) (Sandbox, error) {
	type answer struct {
		sb  Sandbox
		err error
	}
	answers := make(chan answer, 1)
	select {
	case o.asks <- func() { sb, err := do(); answers <- answer{sb, err} }:
		a := <-answers // the owner took it, and what it does is bounded
		return a.sb, a.err
	case <-o.life.ctx.Done():
		return Sandbox{}, o.gone()
	case <-ctx.Done():
		return Sandbox{}, fmt.Errorf("ask for a change: %w", ctx.Err())
	}
}

// gone is the refusal of a use after the life has ended.
func (o *owner) gone() error {
	reason := o.life.reason()
	if reason == "" {
		return shuttingDown()
	}
	return notRunning(Sandbox{ID: o.plan.ID, State: Stopped, Reason: reason})
}
