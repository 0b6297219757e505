package execution

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	// killRepeats is how often a signal is sent again until it has its effect.
	killRepeats = 500 * time.Millisecond
	// causeWait bounds the write of a cause: a store that hangs must not keep a
	// program alive.
	causeWait = 2 * time.Second
)

// pulled is what the puller came back with: an exit, a refusal to start, or
// what else ended it.
type pulled struct {
	exit *guestwire.Exit
	err  error
}

// cancelling is a Cancel on its way to the owner, which closes taken when it is
// the cause, or was preceded by another one, and answers nothing when the end
// came first.
type cancelling struct {
	Cancel
	taken chan struct{}
}

// own is the owner of an execution. It returns how that ended: by itself, by
// its timeout (left, from when it is known to be started), by a caller's cancel,
// or with its sandbox; whichever reached it first.
func (r *run) own(ctx context.Context, left time.Duration) *ending {
	var asides sync.WaitGroup
	defer asides.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	back := make(chan pulled, 1)
	asides.Go(func() {
		exit, err := r.pullUntilExit(ctx)
		back <- pulled{exit, err}
	})
	asides.Go(func() { r.input.feed(ctx, r) })

	var timeout, grace, over *time.Timer // nil: not set
	end := func() {
		if over == nil {
			over = time.NewTimer(r.m.cfg.KillTimeout)
			asides.Go(func() { r.repeat(ctx, kill) })
		}
	}
	if r.snapshot().Reason != "" { // an earlier daemon began to end it
		end()
	}
	started := r.started
	for {
		select {
		case p := <-back:
			return r.decide(ctx, p)
		case <-started:
			started = nil
			timeout = time.NewTimer(left)
		case <-fires(timeout):
			if p, first := r.already(back); first {
				return r.decide(ctx, p)
			}
			r.because(ctx, Timeout)
			end()
		case c := <-r.cancels:
			if p, first := r.already(back); first {
				return r.decide(ctx, p)
			}
			r.because(ctx, ByCaller)
			close(c.taken)
			if c.Signal == kill {
				end()
			} else if grace == nil {
				grace = time.NewTimer(c.Grace)
			}
		case <-fires(grace):
			end()
		case <-fires(over):
			return r.decide(ctx, pulled{err: errUnconfirmed})
		}
	}
}

var errUnconfirmed = errors.New("a kill is not confirmed")

// fires is a timer's channel; one that was not set never fires.
func fires(t *time.Timer) <-chan time.Time {
	if t == nil {
		return nil
	}
	return t.C
}

// already says whether the end had come before what the owner was about to take
// for the cause of it.
func (r *run) already(back <-chan pulled) (pulled, bool) {
	if closed(r.session.Done()) {
		return <-back, true // at once: the puller's context has ended
	}
	select {
	case p := <-back:
		return p, true
	default:
		return pulled{}, false
	}
}

// because keeps the first cause of an end that is to come, in the store too,
// before anything is done for it: else a daemon that starts after this one was
// killed would take the kill for the program's own end.
func (r *run) because(ctx context.Context, reason Reason) {
	e := r.snapshot()
	if e.Reason != "" {
		return
	}
	e.Reason = reason
	if err := r.m.store(ctx, causeWait, func(ctx context.Context) error { return r.m.cfg.Store.CauseExecution(ctx, e) }); err != nil {
		r.log.Error("cause of an end is not stored", "reason", string(reason), "error", err)
	}
	r.change(func(now *Execution) { now.Reason = reason })
}

// repeat sends a signal until ctx ends with the execution.
func (r *run) repeat(ctx context.Context, signal string) {
	for ctx.Err() == nil {
		_ = r.signal(ctx, signal)
		pause(ctx, killRepeats)
	}
}

func (r *run) signal(ctx context.Context, signal string) error {
	ctx, cancel := context.WithTimeout(ctx, r.m.cfg.KillTimeout)
	defer cancel()
	return r.session.Agent().Signal(ctx, r.snapshot().ID, signal)
}

// decide makes the end of what came first.
func (r *run) decide(ctx context.Context, p pulled) *ending {
	if p.exit == nil && errors.Is(context.Cause(ctx), sandbox.ErrLeft) {
		return leave
	}
	if errors.Is(p.err, errUnconfirmed) { // a guest can lie and stall
		r.session.AgentFailed(p.err)
	}
	cause := r.snapshot().Reason
	var refusal *guestwire.Error
	switch {
	case cause != "":
		return endOf(func(e *Execution) {
			if p.exit != nil {
				e.exited(*p.exit)
			}
			e.vanish("") // of it there is a cause
		})
	case p.exit != nil:
		return endOf(func(e *Execution) { e.exited(*p.exit) })
	case errors.Is(p.err, errUnknown):
		return endOf(func(e *Execution) { e.Status, e.Reason = Failed, AgentUnreachable })
	case errors.As(p.err, &refusal) && !closed(r.started): // else of the output of a program that it started
		reason, known := failReasons[refusal.Code]
		if !known {
			r.log.Warn("guest could not start a program", "code", string(refusal.Code))
			reason = AgentUnreachable
		}
		return endOf(func(e *Execution) { e.Status, e.Reason = Failed, reason })
	default:
		return r.vanished(p.err)
	}
}

// causes are the statuses that the owner's causes lead to.
var causes = map[Reason]Status{Timeout: TimedOut, ByCaller: Canceled}

// vanished is the ending of an execution whose sandbox went away. When the
// agent failed first, the sandbox's own end follows at once; its reason, the
// first that its owner saw, is the one that counts.
func (r *run) vanished(err error) *ending {
	var refusal *guestwire.Error
	switch {
	case errors.Is(err, errKeep):
		r.log.Error("execution lost its output", "error", err)
		r.session.AgentFailed(err)
	case errors.As(err, &refusal):
		r.session.AgentFailed(fmt.Errorf("it refuses the output of a program that it started: %w", err))
	}
	<-r.session.Done()
	if r.session.Reason() == "" {
		return leave
	}
	reason := vanishReasons[r.session.Reason()]
	return endOf(func(e *Execution) { e.vanish(reason) })
}

// vanish ends an execution whose sandbox went away, or which is ended for a cause
// that came before that.
func (e *Execution) vanish(reason Reason) {
	if status, begun := causes[e.Reason]; begun {
		e.Status = status
		return
	}
	e.Status, e.Reason = Vanished, reason
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
