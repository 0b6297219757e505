package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// owner is the one goroutine that decides over a sandbox. Everything that can
// happen to it (a caller's delete, the end of the TTL, the VMM's death, an
// agent that lies) reaches it as a request, so the order of events is the
// order of its queue, and the first cause of an ending is the one that is kept.
type owner struct {
	m     *Manager
	plan  Plan
	log   *slog.Logger
	held  *reservation
	queue chan Reason // causes of an ending

	// owner only
	sb     Sandbox
	cancel context.CancelCauseFunc // of provisioning and the death watch

	ctx      context.Context // bounds what belongs to the sandbox's life
	watch    sync.WaitGroup  // the death watch
	dead     chan struct{}   // closed when the VMM's cgroup emptied
	ready    chan struct{}   // closed when running or stopped
	session  *Session        // set before ready is closed when running; else nil
	finished chan struct{}   // closed when stopped and torn down
	bootErr  error           // set before ready is closed
	final    Sandbox         // set before finished is closed
}

func newOwner(m *Manager, sb Sandbox, plan Plan, held *reservation) *owner {
	ctx, cancel := context.WithCancelCause(m.ctx)
	return &owner{
		m: m, plan: plan, held: held, sb: sb, ctx: ctx, cancel: cancel,
		log:      m.cfg.Logger.With("sandbox", sb.ID),
		queue:    make(chan Reason, 1),
		dead:     make(chan struct{}),
		ready:    make(chan struct{}),
		finished: make(chan struct{}),
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

// run is the owner. It returns when nothing of the sandbox is left on the host.
func (o *owner) run() {
	ttl := time.NewTimer(time.Until(o.sb.Expires))
	defer ttl.Stop()
	provisioned := make(chan error, 1)
	go func() { provisioned <- o.provision(o.ctx) }()

	reason := o.starting(provisioned, ttl.C)
	if reason == "" {
		reason = o.running(ttl.C)
	}
	o.stop(reason)
}

// starting waits for the microVM and returns "" once the sandbox runs, or why
// it never will. When it returns, provisioning has ended.
func (o *owner) starting(provisioned <-chan error, ttl <-chan time.Time) Reason {
	var cause Reason
	dead := o.dead
	for {
		select {
		case err := <-provisioned:
			if cause == "" && err == nil {
				return o.becomeRunning()
			}
			if cause == "" {
				cause = ReasonBootFailed
				o.log.Error("sandbox did not start", "error", err)
			}
			o.bootErr = err
			return cause
		case reason := <-o.queue:
			cause = first(cause, reason)
		case <-ttl:
			cause = first(cause, ReasonTTL)
		case <-dead:
			dead = nil // seen
			o.cancel(errors.New("the VMM ended"))
			continue // provisioning fails with this cause: boot_failed; had it just succeeded, running sees the death
		}
		o.cancel(errors.New("the sandbox is ending: " + string(cause)))
	}
}

func (o *owner) becomeRunning() Reason {
	next := o.sb
	next.State, next.Boot = Running, BootCold
	if err := o.save(next); err != nil {
		o.log.Error("store refused the sandbox", "error", err)
		o.bootErr = err
		return ReasonBootFailed
	}
	o.session = newSession(o, o.sb)
	close(o.ready)
	return ""
}

func (o *owner) running(ttl <-chan time.Time) Reason {
	select {
	case reason := <-o.queue:
		return reason
	case <-ttl:
		return ReasonTTL
	case <-o.dead:
		// A delete that killed the VM is not here: it goes through the queue
		// first. What was already queued when the VM died came first, too.
		select {
		case reason := <-o.queue:
			return reason
		default:
			return ReasonVMDied
		}
	}
}

// stop records the ending, then removes everything from the host, trying again
// until nothing is left: a slot is free only then.
func (o *owner) stop(reason Reason) {
	next := o.sb
	next.State, next.StopReason, next.Reason = Stopped, stopReasons[reason], reason
	next.Stopped = time.Now()
	stored := o.save(next)
	if stored != nil { // the VM is ended all the same
		o.log.Error("store refused the ending", "error", stored)
		o.sb = next
	}
	if o.session != nil {
		o.session.end(reason)
	} else {
		close(o.ready)
	}
	o.cancel(errors.New("the sandbox ended"))
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		// Not o.ctx: teardown must run when everything else is over.
		err := o.teardown(context.WithoutCancel(o.ctx))
		if err == nil {
			break
		}
		o.log.Error("teardown is not complete, trying again", "error", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-o.m.abandon:
			o.log.Error("teardown given up: the next start of the daemon reaps the rest")
			o.close(stored)
			return
		}
	}
	o.held.release()
	o.close(stored)
	o.log.Info("sandbox stopped", "stop_reason", o.sb.StopReason, "reason", o.sb.Reason)
}

// close lets everybody see the end. An ending that the store refused (its disk
// is full, say) is told by the owner until the store takes it, or the daemon
// ends: its next start settles the row.
func (o *owner) close(stored error) {
	o.watch.Wait()
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
		stored = o.m.store(o.final)
		if fault.Is(stored, fault.SandboxNotRunning) || fault.Is(stored, fault.SandboxNotFound) {
			return // the refused write had happened, or the row was forgotten
		}
	}
	o.log.Info("store took the ending")
}

// save moves the sandbox in the table and the store, in that order.
func (o *owner) save(next Sandbox) error {
	if err := move(o.sb.State, next.State); err != nil {
		return err
	}
	if err := o.m.store(next); err != nil {
		return err
	}
	o.sb = next
	return nil
}

// watchDeath reports the VMM's death once its process was in the cgroup.
func (o *owner) watchDeath() {
	dead := o.dead
	o.watch.Go(func() {
		if err := o.m.cfg.Cgroups.Emptied(o.ctx, o.plan.Host); err == nil {
			close(dead)
		} else if o.ctx.Err() == nil {
			// Blind to its death is as bad as dead: nothing would ever reap it.
			o.log.Error("cannot watch the VMM", "error", err)
			o.end(ReasonVMDied)
		}
	})
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
	case <-ctx.Done():
		return Sandbox{}, ctx.Err()
	}
	if o.session != nil {
		return o.session.sandbox.clone(), nil
	}
	if sb := o.sb; sb.Reason != ReasonBootFailed { // settled before ready was closed
		return Sandbox{}, notRunning(sb)
	}
	return Sandbox{}, fault.Wrap(o.bootErr, fault.InternalError,
		"sandbox %s did not start; the daemon's log says why under this id", o.plan.ID)
}
