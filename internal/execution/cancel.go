package execution

import (
	"context"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Cancel is how an execution is to be cancelled.
type Cancel struct {
	Signal string        // "" is SIGKILL
	Grace  time.Duration // for another signal: after it SIGKILL follows; 0 is DefaultGrace, up to MaxGrace
}

// Bounds of a Cancel.
const (
	DefaultGrace = 10 * time.Second
	MaxGrace     = 5 * time.Minute
)

const kill = "SIGKILL"

func (c Cancel) fill() (Cancel, error) {
	if c.Signal == "" {
		c.Signal = kill
	}
	if _, known := guestwire.SignalNumber(c.Signal); !known {
		return c, fault.Param("signal", "signal must be the name of a Linux signal, as SIGTERM or SIGINT")
	}
	if c.Grace != 0 && c.Signal == kill {
		return c, fault.Param("grace_seconds", "grace_seconds belongs to a signal that a program can answer to; SIGKILL acts at once")
	}
	if c.Grace == 0 && c.Signal != kill {
		c.Grace = DefaultGrace
	}
	if c.Grace < 0 || c.Grace > MaxGrace {
		return c, fault.Param("grace_seconds", "grace_seconds must be 1 to %d", int(MaxGrace.Seconds()))
	}
	return c, nil
}

// Cancel ends a running execution: it is canceled from here on, whatever its
// program answers. It returns when it has ended, or as it is after KillTimeout.
func (m *Manager) Cancel(ctx context.Context, sandboxID, id string, c Cancel) (Execution, error) {
	c, err := c.fill()
	if err != nil {
		return Execution{}, err
	}
	r, err := m.running(ctx, sandboxID, id)
	if err != nil {
		return Execution{}, err
	}
	until := time.Now().Add(m.cfg.KillTimeout)
	if err := r.cancel(ctx, c); err != nil {
		return Execution{}, err
	}
	return m.Wait(ctx, sandboxID, id, time.Until(until))
}

// running finds an execution that has not ended.
func (m *Manager) running(ctx context.Context, sandboxID, id string) (*run, error) {
	e, err := m.Get(ctx, sandboxID, id)
	if err != nil {
		return nil, err
	}
	r := m.run(id)
	if r == nil || e.Status != Running {
		return nil, notRunning(e)
	}
	return r, nil
}

// notRunning is the refusal of what only a running execution takes. One that
// nobody follows and that has not ended goes on without this daemon, which stops.
func notRunning(e Execution) error {
	if e.Status == Running {
		return shuttingDown()
	}
	return fault.New(fault.ExecutionNotRunning, "this execution has ended; nothing of it takes a signal, input or a size any more")
}

func shuttingDown() error {
	e := fault.New(fault.ShuttingDown, "the daemon is stopping and the execution goes on; try again in a moment")
	e.RetryAfter = 5 * time.Second
	return e
}

// over waits until the end of a run is settled, and is the refusal after it.
func (r *run) over(ctx context.Context) error {
	select {
	case <-r.finished:
		return notRunning(r.snapshot())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cancel has the owner take a cancel in, and then sends the signal. It is refused
// when the end came first.
func (r *run) cancel(ctx context.Context, c Cancel) error {
	taken := make(chan struct{})
	select {
	case r.cancels <- cancelling{c, taken}:
	case <-r.decided:
		return r.over(ctx)
	case <-r.finished:
		return r.over(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-taken:
	case <-r.decided:
		return r.over(ctx)
	}
	if c.Signal == kill { // the owner's
		return nil
	}
	ctx, unbind := r.session.Bind(context.WithoutCancel(ctx))
	defer unbind()
	if err := r.signal(ctx, c.Signal); err != nil && !closed(r.decided) {
		r.log.Warn("signal of a cancel did not arrive, SIGKILL follows", "error", err)
	}
	return nil
}
