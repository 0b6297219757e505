package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// microVM is one try to bring a microVM up, and what is known of it afterwards.
type microVM struct {
	m      *Manager
	plan   Plan
	log    *slog.Logger
	ctx    context.Context // its life
	cancel context.CancelCauseFunc
	done   atomic.Int64   // steps that were taken
	busy   sync.WaitGroup // a step that is being taken
	watch  sync.WaitGroup // the death watch
	dead   chan struct{}  // closed when the VMM's cgroup emptied
}

// errDead is why a provision fails whose VMM ended.
var errDead = errors.New("the VMM ended")

func newMicroVM(ctx context.Context, m *Manager, plan Plan, log *slog.Logger) *microVM {
	ctx, cancel := context.WithCancelCause(ctx)
	return &microVM{m: m, plan: plan, log: log, ctx: ctx, cancel: cancel, dead: make(chan struct{})}
}

// step is one effect on the host. Its undo is in teardown.
type step struct {
	name string
	do   func(context.Context) error
}

// build is the way to a VMM whose vCPUs run.
func (v *microVM) build() []step {
	c, plan := v.m.cfg, v.plan
	return []step{
		{"cgroup", func(ctx context.Context) error { return c.Cgroups.Create(ctx, plan) }},
		{"jail", func(ctx context.Context) error { return c.VMM.Prepare(ctx, plan) }},
		{"launch", func(ctx context.Context) error {
			if err := c.VMM.Launch(ctx, plan); err != nil {
				return err
			}
			v.watchDeath()
			return nil
		}},
		{"start", func(ctx context.Context) error { return c.VMM.Start(ctx, plan) }},
	}
}

// steps is the whole way from a plan to a usable sandbox, in order. A restored
// agent said its hello in the template: that it answers is seen when it is configured.
func (v *microVM) steps() []step {
	steps := v.build()
	if v.plan.Template == "" {
		steps = append(steps, step{"hello", v.hello})
	}
	return append(steps, step{"configure", v.configure})
}

// adoption is the way from a microVM that an earlier daemon left to one of ours.
func (v *microVM) adoption() []step {
	return []step{
		{"adopt", func(ctx context.Context) error {
			v.watchDeath() // first: it may die meanwhile
			return v.m.cfg.VMM.Adopt(ctx, v.plan)
		}},
		{"answer", v.answer},
	}
}

// take takes the steps, within BootTimeout, as long as the microVM gets on. What it
// leaves after an error is undone by teardown, which does not ask how far it came.
func (v *microVM) take(steps []step) error {
	limits := v.m.limits()
	ctx, cancel := context.WithTimeoutCause(v.ctx, limits.BootTimeout, fmt.Errorf("not usable after %s", limits.BootTimeout))
	defer cancel()
	ctx, hung := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { v.watchProgress(ctx, hung) })
	defer watching.Wait()
	defer hung(nil)
	for _, s := range steps {
		began := time.Now()
		if err := v.try(ctx, s); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
			return &stepError{step: s.name, err: err}
		}
		v.done.Add(1)
		v.log.Debug("step done", "step", s.name, "duration", time.Since(began))
	}
	return nil
}

// stepError says in which step it went wrong.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// stepGrace is how long a step may take to see that its context has ended.
const stepGrace = 2 * time.Second

// try takes one step, and gives it up when it does not return: a call that the
// kernel holds (a disk that hangs, say) ends for no context.
func (v *microVM) try(ctx context.Context, s step) error {
	result := make(chan error, 1)
	v.busy.Go(func() { result <- s.do(ctx) })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(stepGrace)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		return errors.New("it does not return")
	}
}

// progressShare is the part of StallTimeout for which a VMM must have run on a
// processor to count as getting on: 1 %. A guest that hangs halted uses less,
// one that waits its turn on a loaded host more.
const progressShare = 100

// watchProgress tells a slow host from a hung microVM, by the steps that were
// taken and the processor time of its VMM: one that gets nowhere for StallTimeout
// is given up long before BootTimeout, and one that is merely slow is not.
func (v *microVM) watchProgress(ctx context.Context, hung context.CancelCauseFunc) {
	stall := v.m.limits().StallTimeout
	ticker := time.NewTicker(max(stall/10, 10*time.Millisecond))
	defer ticker.Stop()
	var used time.Duration
	var done int64
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if now, err := v.m.cfg.Cgroups.CPUTime(ctx, v.plan.Host); err == nil && (now-used >= stall/progressShare || now < used) {
			used, since = now, time.Now()
		}
		if now := v.done.Load(); now != done {
			done, since = now, time.Now()
		}
		if time.Since(since) >= stall {
			hung(fmt.Errorf("hung: no progress in %s", stall))
			return
		}
	}
}

// inTurn boots when few enough microVMs do. More than there are cores only get
// into each other's way: each takes longer, and all of them end later. A boot that
// hangs holds its turn for BootTurn and no longer.
func (m *Manager) inTurn(ctx context.Context, boot func() error) error {
	select {
	case m.turns <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for a turn to boot: %w", context.Cause(ctx))
	}
	give := sync.OnceFunc(func() { <-m.turns })
	defer give()
	defer time.AfterFunc(m.limits().BootTurn, give).Stop()
	return boot()
}

// remove tears the microVM down, trying again until nothing of it is left, and
// reports whether that was so when ctx ended or the daemon gave up. No two may run
// at once.
func (v *microVM) remove(ctx context.Context) bool {
	v.cancel(errors.New("it is torn down"))
	still := make(chan struct{})
	go func() { v.busy.Wait(); close(still) }()
	select {
	case <-still: // a step that hangs may still make something
	case <-ctx.Done():
		return false
	case <-v.m.ctx.Done():
		return false
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := v.teardown(context.WithoutCancel(v.ctx)) //nolint:contextcheck // it must run when everything else is over
		if err == nil {
			v.watch.Wait()
			return true
		}
		v.log.Error("teardown is not complete, trying again", "error", err, "wait", wait)
		select {
		case <-time.After(wait):
			continue
		case <-ctx.Done():
		case <-v.m.ctx.Done():
		}
		v.watch.Wait()
		return false
	}
}

// teardown undoes every step there is, last first, and joins what failed. Each
// is safe when its step never ran, ran in part, or was undone before.
func (v *microVM) teardown(ctx context.Context) error {
	c, host := v.m.cfg, v.plan.Host
	c.Agents.Release(host)
	var all []error
	for _, undo := range []struct {
		name string
		do   func(context.Context, string) error
	}{{"kill", c.Cgroups.Kill}, {"remove jail", c.VMM.Remove}, {"remove cgroup", c.Cgroups.Remove}} {
		stepCtx, cancel := context.WithTimeout(ctx, v.m.limits().StepTimeout)
		if err := undo.do(stepCtx, host); err != nil {
			all = append(all, fmt.Errorf("%s: %w", undo.name, err))
		}
		cancel()
	}
	return errors.Join(all...)
}

// watchDeath ends the microVM's life here when its VMM ended.
func (v *microVM) watchDeath() {
	v.watch.Go(func() {
		if err := v.m.cfg.Cgroups.Emptied(v.ctx, v.plan.Host); err != nil {
			if v.ctx.Err() != nil {
				return
			}
			// Blind to its death is as bad as dead: nothing would ever reap it.
			v.log.Error("cannot watch the VMM", "error", err)
		}
		close(v.dead)
		v.cancel(errDead)
	})
}

func (v *microVM) hello(ctx context.Context) error {
	hello, err := v.m.cfg.Agents.Hello(ctx, v.plan.Host)
	if err == nil && hello.Protocol != guestwire.Protocol {
		err = fmt.Errorf("agent speaks protocol %d, not %d: %w", hello.Protocol, guestwire.Protocol, guestwire.ErrProtocol)
	}
	return err
}

const (
	answerFirst = 2 * time.Millisecond // between two tries to reach an agent, at first
	answerLast  = 200 * time.Millisecond
)

// answer waits until the agent echoes.
func (v *microVM) answer(ctx context.Context) error {
	return v.insist(ctx, func(ctx context.Context) error { return v.m.cfg.Agents.Client(v.plan.Host).Echo(ctx, v.plan.Host) })
}

// configure gives the guest its identity. A try whose answer is lost is
// repeated: the agent takes one generation once.
func (v *microVM) configure(ctx context.Context) error {
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // never fails (crypto/rand)
	img := v.plan.Image
	return v.insist(ctx, func(ctx context.Context) error {
		_, err := v.m.cfg.Agents.Client(v.plan.Host).Configure(ctx, guestwire.Configure{
			Generation: 1,
			Hostname:   v.plan.Host,
			TimeNS:     time.Now().UnixNano(),
			Entropy:    entropy,
			User:       img.User,
			Workdir:    img.Workdir,
			Env:        img.Env,
		})
		return err
	})
}

// insist repeats a call until the agent answers it, if only by a refusal. The
// context bounds it.
func (v *microVM) insist(ctx context.Context, call func(context.Context) error) error {
	for pause := answerFirst; ; pause = min(2*pause, answerLast) {
		try, cancel := context.WithTimeout(ctx, v.m.limits().StepTimeout)
		err := call(try)
		timedOut := try.Err() != nil
		cancel()
		var refusal *guestwire.Error
		if err == nil || errors.Is(err, guestwire.ErrProtocol) || errors.As(err, &refusal) || ctx.Err() != nil {
			return err
		}
		if timedOut {
			v.log.Warn("guest agent did not answer, trying again", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
