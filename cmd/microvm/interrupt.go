package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// interruption is the cause of a context that a signal ended.
type interruption struct{ signal syscall.Signal }

func (i *interruption) Error() string { return "interrupted by " + i.name() }

func (i *interruption) name() string {
	names := map[syscall.Signal]string{syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP"}
	return names[i.signal]
}

// interrupts hears SIGINT, SIGTERM and SIGHUP for the whole process. The first
// ends the context; the second ends the process as it always would, unless
// somebody has claimed it.
type interrupts struct {
	which []os.Signal // at least one
	heard chan os.Signal
	more  chan *interruption // after the first, for who claims them

	mu      sync.Mutex
	ended   bool // guarded by mu: the context was ended
	claimed bool // guarded by mu
}

type interruptsKey struct{}

// interruptible ends the context at the first signal, so that verbs can clean up.
func interruptible(parent context.Context) (context.Context, func()) {
	i := &interrupts{which: []os.Signal{syscall.SIGTERM}, heard: make(chan os.Signal, 4), more: make(chan *interruption, 4)}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(s) { // by nohup, or in the background of a script
			i.which = append(i.which, s)
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, interruptsKey{}, i))
	i.listen()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-i.heard:
				number, _ := s.(syscall.Signal)
				i.take(&interruption{number}, cancel)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(i.heard)
		close(done)
		cancel(nil)
	}
}

func (i *interrupts) listen() { signal.Notify(i.heard, i.which...) }

func (i *interrupts) take(s *interruption, cancel context.CancelCauseFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.ended = true
		if !i.claimed {
			signal.Stop(i.heard)
		}
		cancel(s)
		return
	}
	select {
	case i.more <- s:
	default: // four are waiting: nothing more can be meant
	}
}

// claimInterrupts gives its caller the signals after the one that ends ctx,
// until release.
func claimInterrupts(ctx context.Context) (more <-chan *interruption, release func()) {
	i, ok := ctx.Value(interruptsKey{}).(*interrupts)
	if !ok {
		return nil, func() {}
	}
	set := func(claimed bool) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.claimed = claimed
		switch {
		case i.ended && claimed:
			i.listen()
		case i.ended:
			signal.Stop(i.heard)
		}
	}
	set(true)
	return i.more, func() { set(false) }
}

// interruptedBy is the signal that ended ctx.
func interruptedBy(ctx context.Context) *interruption {
	var i *interruption
	if errors.As(context.Cause(ctx), &i) {
		return i
	}
	return &interruption{syscall.SIGTERM}
}

// interruptGrace is how long a program may take to end by the first signal, in
// seconds.
const interruptGrace = 10

// mindSignals hands signals to this process on to the program: the first as it
// is, with a grace, the second as SIGKILL; at the third, or at the second while
// the program is only being started, its caller leaves. It does so until the
// returned function is called.
func (p *program) mindSignals(ctx, work context.Context, leave context.CancelCauseFunc, started <-chan *microvm.Execution) (stop func()) {
	more, release := claimInterrupts(ctx)
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		var exe *microvm.Execution
		first, count := ctx.Done(), 0
		for {
			var s *interruption
			select {
			case <-done:
				return
			case exe = <-started:
				if p.interrupted == nil {
					continue
				}
				s = p.interrupted // came before there was anything to end
			case <-first:
				first, s = nil, interruptedBy(ctx)
				p.interrupted = s
				count++
			case s = <-more:
				count++
			}
			switch {
			case count > 2 || (exe == nil && count > 1):
				leave(s)
			case exe != nil:
				exe, count := exe, count
				all.Go(func() { p.cancel(work, exe, s, count) })
			}
		}
	})
	return func() {
		close(done)
		leave(nil) // ends a cancel that still waits
		all.Wait()
		release()
	}
}

// cancel ends the program as the count-th signal wants it.
func (p *program) cancel(ctx context.Context, exe *microvm.Execution, s *interruption, count int) {
	how := microvm.ExecutionCancel{Signal: new(microvm.ExecutionCancelSignal(s.name())), GraceSeconds: new(interruptGrace)}
	note := fmt.Sprintf("%s was sent to the program, which has %d s to end; once more kills it", s.name(), interruptGrace)
	if count > 1 {
		how = microvm.ExecutionCancel{}
		note = "SIGKILL was sent to the program; once more ends the waiting only"
	}
	tell := time.AfterFunc(quietTime, func() { p.progress.note("%s", note) })
	defer tell.Stop()
	_, err := p.client.Executions.Cancel(ctx, p.sandbox, exe.ID, how)
	switch {
	case ctx.Err() != nil || microvm.HasCode(err, microvm.ErrorCodeExecutionNotRunning): // it has ended
	case err != nil:
		say(p.stderr, "warning: %s\n", cleanLines(err.Error()))
	default:
		<-ctx.Done() // the reply may come before the end
	}
}
