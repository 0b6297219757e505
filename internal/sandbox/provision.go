package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// step is one effect on the host together with its undo. An undo is safe when
// its step never ran, ran in part, or was undone before.
type step struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

// steps is the whole way from a plan to a usable sandbox, in order. The steps
// before the hello share BootTimeout; each of the others has StepTimeout.
func (o *owner) steps() []step {
	c, plan := o.m.cfg, o.plan
	return []step{
		{
			name: "cgroup",
			do:   func(ctx context.Context) error { return c.Cgroups.Create(ctx, plan) },
			undo: func(ctx context.Context) error { return c.Cgroups.Remove(ctx, plan.Host) },
		},
		{
			name: "jail",
			do:   func(ctx context.Context) error { return c.VMM.Prepare(ctx, plan) },
			undo: func(ctx context.Context) error { return c.VMM.Remove(ctx, plan.Host) },
		},
		{
			name: "launch",
			do: func(ctx context.Context) error {
				if err := c.VMM.Launch(ctx, plan); err != nil {
					return err
				}
				o.watchDeath()
				return nil
			},
			undo: func(ctx context.Context) error { return c.Cgroups.Kill(ctx, plan.Host) },
		},
		{
			name: "start",
			do:   func(ctx context.Context) error { return c.VMM.Start(ctx, plan) },
		},
		{
			name: "hello",
			do: func(ctx context.Context) error {
				hello, err := c.Agents.Hello(ctx, plan.Host)
				if err == nil && hello.Protocol != guestwire.Protocol {
					err = fmt.Errorf("agent speaks protocol %d, not %d: %w", hello.Protocol, guestwire.Protocol, guestwire.ErrProtocol)
				}
				return err
			},
			undo: func(context.Context) error { c.Agents.Release(plan.Host); return nil },
		},
		{
			name: "configure",
			do:   o.configure,
		},
	}
}

// provision runs the steps. What it leaves after an error is undone by
// teardown, which does not ask how far it came.
func (o *owner) provision(ctx context.Context) error {
	done, err := o.m.bootTurn(ctx)
	if err != nil {
		return fmt.Errorf("provision sandbox: wait for a turn to boot: %w", err)
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, o.m.cfg.Limits.BootTimeout,
		fmt.Errorf("not usable after %s", o.m.cfg.Limits.BootTimeout))
	defer cancel()
	for _, s := range o.steps() {
		began := time.Now()
		if err := s.do(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
			return fmt.Errorf("provision sandbox: %s: %w", s.name, err)
		}
		o.log.Debug("step done", "step", s.name, "duration", time.Since(began))
	}
	return nil
}

// bootTurn waits until few enough microVMs boot. More than there are cores only
// get into each other's way: each takes longer, and all of them end later. A boot
// that hangs holds its turn for BootTurn and no longer.
func (m *Manager) bootTurn(ctx context.Context) (done func(), err error) {
	select {
	case m.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var once sync.Once
	give := func() { once.Do(func() { <-m.turns }) }
	timer := time.AfterFunc(m.cfg.Limits.BootTurn, give)
	return func() { timer.Stop(); give() }, nil
}

// teardown runs every undo, last step first, and joins what failed. It may run
// again.
func (o *owner) teardown(ctx context.Context) error {
	var all []error
	steps := o.steps()
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].undo == nil {
			continue
		}
		stepCtx, cancel := context.WithTimeout(ctx, o.m.cfg.Limits.StepTimeout)
		if err := steps[i].undo(stepCtx); err != nil {
			all = append(all, fmt.Errorf("undo %s: %w", steps[i].name, err))
		}
		cancel()
	}
	return errors.Join(all...)
}

// configure gives the guest its identity. A try whose answer is lost is
// repeated: the agent takes one generation once.
func (o *owner) configure(ctx context.Context) error {
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // never fails (crypto/rand)
	img := o.plan.Image
	for {
		try, cancel := context.WithTimeout(ctx, o.m.cfg.Limits.StepTimeout)
		_, err := o.m.cfg.Agents.Client(o.plan.Host).Configure(try, guestwire.Configure{
			Generation: 1,
			Hostname:   o.plan.Host,
			TimeNS:     time.Now().UnixNano(),
			Entropy:    entropy,
			User:       img.User,
			Workdir:    img.Workdir,
			Env:        img.Env,
		})
		timedOut := try.Err() != nil
		cancel()
		if err == nil || !timedOut || ctx.Err() != nil {
			return err
		}
		o.log.Warn("guest agent did not answer, trying again", "error", err)
	}
}
