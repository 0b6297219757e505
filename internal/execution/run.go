package execution

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
)

// run follows one execution from its start to its end. One goroutine, its owner
// (owner.go), decides how it ended: the first cause that reaches it is the one
// that is kept.
type run struct {
	m         *Manager
	sandboxID string
	session   *sandbox.Session // set before started is closed, and before anything of the owner runs
	log       *slog.Logger
	request   guestwire.Start // puller only: what to start; empty once that is done

	started  chan struct{}   // closed when the guest started it, or it ended without
	decided  chan struct{}   // closed when the owner takes no more cancels
	finished chan struct{}   // closed when the end is stored, or the daemon leaves it to the next
	cancels  chan cancelling // to the owner

	streams  [2]*stream // stdout, stderr
	input    *input     // set before the owner runs; nil: no text was given for stdin, or it is fed
	reckoned int64      // puller only: what the shelf counts of it

	mu    sync.Mutex
	e     Execution // guarded by mu
	begun bool      // guarded by mu: started is closed
}

func newRun(m *Manager, e Execution) *run {
	r := &run{
		m: m, sandboxID: e.Sandbox, e: e,
		log:     m.cfg.Logger.With("sandbox", e.Sandbox, "execution", e.ID),
		started: make(chan struct{}), decided: make(chan struct{}), finished: make(chan struct{}),
		cancels: make(chan cancelling),
	}
	for i, name := range []Stream{Stdout, Stderr} {
		r.streams[i] = newStream(filepath.Join(m.dir(e), string(name)))
	}
	return r
}

func (r *run) snapshot() Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.e
}

func (r *run) change(do func(*Execution)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do(&r.e)
}

// begin lets those go on that wait for the start. pid is 0 where there is none.
func (r *run) begin(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pid != 0 {
		r.e.PID = pid
	}
	if !r.begun {
		r.begun = true
		close(r.started)
	}
}

// reopen finds the output that an earlier daemon kept.
func (r *run) reopen() {
	for _, s := range r.streams {
		if err := s.reopen(); err != nil {
			r.log.Error("output so far is lost", "error", err)
		}
	}
	r.countOutput()
}

func (r *run) countOutput() {
	r.change(func(e *Execution) { e.StdoutBytes, e.StderrBytes = r.streams[0].next, r.streams[1].next })
}

// follow runs the execution to its end and stores it, or leaves it to the next
// daemon.
func (r *run) follow(ctx context.Context, session *sandbox.Session, env secret.Env, size *Size) {
	r.session = session
	defer session.Release()
	ctx, unbind := session.Bind(ctx)
	defer unbind()
	e := r.snapshot()
	r.request = guestwire.Start{Cmd: e.Cmd, Args: e.Args, Cwd: e.Cwd, User: e.User, Env: map[string]string(env), StdinOpen: (r.input != nil || e.StdinOpen) && !e.TTY}
	if size != nil {
		r.request.TTY = &guestwire.Size{Rows: size.Rows, Cols: size.Cols}
	}
	r.settle(ctx, r.own(ctx, e.Timeout))
}

// goOn follows what an earlier daemon started; left is what the timeout leaves
// of its time. It starts nothing: what the agent does not know never ran, and
// nobody waits for it any more.
func (r *run) goOn(ctx context.Context, session *sandbox.Session, left time.Duration) {
	r.session = session
	defer session.Release()
	ctx, unbind := session.Bind(ctx)
	defer unbind()
	exit, err := r.look(ctx)
	switch {
	case exit != nil:
		r.settle(ctx, r.decide(ctx, pulled{exit: exit}))
	case errors.Is(err, errUnknown) && r.next() == 0 && r.snapshot().PID == 0: // else it ran, and the agent breaks its word
		r.settle(ctx, r.decide(ctx, pulled{err: errUnknown}))
	default:
		r.begin(0)
		r.settle(ctx, r.own(ctx, left))
	}
}

// lookWaitMS lets the end of a program that is just ending come.
const lookWaitMS = 100

// errUnknown says that the agent does not know the execution.
var errUnknown = errors.New("the agent does not know it")

// look asks once for what is there, so that a program that ended while no
// daemon was there is told as it ended, whatever its timeout.
func (r *run) look(ctx context.Context) (*guestwire.Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, r.m.cfg.KillTimeout)
	defer cancel()
	for {
		had := r.next()
		exit, err := r.session.Agent().Pull(ctx, r.snapshot().ID, r.pull(lookWaitMS), r.sink())
		if guestwire.Refused(err, guestwire.NoExecution) {
			return nil, errUnknown
		}
		if err != nil || exit != nil || r.next() == had {
			return exit, err
		}
	}
}

// next counts the bytes that have come, of both streams.
func (r *run) next() int64 { return r.streams[0].next + r.streams[1].next }

// settle stores an end, or leaves the execution.
func (r *run) settle(ctx context.Context, end *ending) {
	close(r.decided)
	stored := end != leave && r.finish(ctx, *end)
	r.close()
	if stored {
		r.forget(ctx)
	}
}

// close lets the store answer.
func (r *run) close() {
	for _, s := range r.streams {
		s.close()
	}
	if e := r.snapshot(); e.Status != Running {
		r.input.remove()
		r.m.shelve(e)
	}
	r.m.settled(r)
	r.begin(0)
}

// ending is how an execution ended: a change to its record.
type ending func(*Execution)

// leave is no ending: the daemon stops and the program goes on.
var leave = new(ending)

func endOf(change ending) *ending { return &change }

// finish stores the end, then shows it: what a caller has seen survives a
// crash. It tries until the store takes it or the daemon stops; then the next
// start settles the row.
func (r *run) finish(ctx context.Context, change ending) (stored bool) {
	e := r.snapshot()
	change(&e)
	e.Finished = time.Now()
	defer r.change(func(now *Execution) { *now = e })
	for wait := retryPause; ; wait = min(2*wait, 10*time.Second) {
		err := r.m.store(ctx, storeWait, func(ctx context.Context) error { return r.m.cfg.Store.FinishExecution(ctx, e) })
		if err == nil || errors.Is(err, ErrAlreadyFinished) || fault.Is(err, fault.ExecutionNotFound) {
			return true
		}
		r.log.Error("store refused the end of an execution", "error", err)
		select {
		case <-time.After(wait):
		case <-r.m.closing:
			return false
		}
	}
}

// forget lets the agent free what it kept. ctx ends with the sandbox.
func (r *run) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.m.cfg.AgentTimeout)
	defer cancel()
	if err := r.session.Agent().Forget(ctx, r.snapshot().ID); err != nil && r.session.Reason() == "" {
		r.log.Warn("agent does not forget", "error", err)
	}
}

func (e *Execution) exited(exit guestwire.Exit) {
	e.Status, e.ExitCode, e.Signal, e.OOMKilled = Exited, exit.ExitCode, exit.Signal, exit.OOMKilled
	e.StdoutBytes, e.StderrBytes = exit.StdoutBytes, exit.StderrBytes
}

// output is what is kept so far.
func (r *run) output() (out Output, err error) {
	for i, tail := range []*Tail{&out.Stdout, &out.Stderr} {
		if *tail, err = r.streams[i].tail(); err != nil {
			return Output{}, fmt.Errorf("read %s: %w", filepath.Base(r.streams[i].path), err)
		}
	}
	return out, nil
}
