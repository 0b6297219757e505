package execution

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	retryPause  = 50 * time.Millisecond // between two tries to reach the agent
	killRepeats = 500 * time.Millisecond

	// Replies that say little are taken one after the other only so often;
	// after that each costs a pause: an agent can make them for nothing.
	smallReply  = 4 << 10 // bytes
	smallInARow = 16
	smallPause  = 5 * time.Millisecond
)

// run follows one execution from its start to its end. One goroutine (follow)
// decides how it ended, so the first cause wins by being first there.
type run struct {
	m         *Manager
	sandboxID string
	session   *sandbox.Session // set before anything of follow runs
	log       *slog.Logger

	started  chan struct{} // closed when the guest started it, or it ended without
	finished chan struct{} // closed when the end is stored, or the daemon leaves it to the next

	stdout, stderr *stream

	mu sync.Mutex
	e  Execution // guarded by mu
}

// stream is one output stream; its ring is made with the first byte.
type stream struct {
	path string
	next int64 // follow only: the offset that follows what is in the ring

	mu   sync.Mutex
	ring *Ring // guarded by mu; nil before the first byte and after the end
}

func newRun(m *Manager, e Execution) *run {
	return &run{
		m: m, sandboxID: e.Sandbox, e: e,
		log:     m.cfg.Logger.With("sandbox", e.Sandbox, "execution", e.ID),
		started: make(chan struct{}), finished: make(chan struct{}),
		stdout: &stream{path: filepath.Join(m.dir(e), "stdout")},
		stderr: &stream{path: filepath.Join(m.dir(e), "stderr")},
	}
}

func (r *run) snapshot() Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.e
}

// reopen finds the output that an earlier daemon kept.
func (r *run) reopen() {
	for _, s := range []*stream{r.stdout, r.stderr} {
		if err := s.reopen(); err != nil {
			r.log.Error("output so far is lost", "error", err)
		}
	}
	r.e.StdoutBytes, r.e.StderrBytes = r.stdout.next, r.stderr.next
}

func (s *stream) reopen() error {
	ring, err := OpenRing(s.path)
	switch {
	case err == nil:
		s.ring, s.next = ring, ring.Total()
	case errors.Is(err, os.ErrNotExist):
		err = nil
	default: // damaged: what comes goes into another
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// follow runs the execution to its end and stores it, or leaves it to the next
// daemon.
func (r *run) follow(ctx context.Context, session *sandbox.Session) {
	r.session = session
	defer session.Release()
	ctx, unbind := session.Bind(ctx)
	defer unbind()
	end := r.start(ctx)
	if end == nil {
		close(r.started)
		end = r.pump(ctx, r.snapshot().Timeout)
	}
	r.settle(ctx, end)
}

// goOn follows what an earlier daemon started; left is what the timeout leaves
// of its time. It starts nothing: what the agent does not know never ran, and
// nobody waits for it any more.
func (r *run) goOn(ctx context.Context, session *sandbox.Session, left time.Duration) {
	r.session = session
	defer session.Release()
	ctx, unbind := session.Bind(ctx)
	defer unbind()
	close(r.started)
	var end *ending
	switch exit, err := r.look(ctx); {
	case exit != nil && (left > 0 || exit.Signal != "SIGKILL"): // else an earlier daemon's kill, most likely
		end = endOf(func(e *Execution) { e.exited(*exit) })
	case errors.Is(err, errUnknown) && r.stdout.next+r.stderr.next == 0: // else it ran, and the agent breaks its word
		end = endOf(func(e *Execution) { e.Status, e.Reason = Failed, AgentUnreachable })
	default:
		end = r.pump(ctx, left)
	}
	r.settle(ctx, end)
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
		had := r.stdout.next + r.stderr.next
		exit, err := r.session.Agent().Pull(ctx, r.snapshot().ID, guestwire.Pull{Stdout: r.stdout.next, Stderr: r.stderr.next, WaitMS: lookWaitMS}, r.keep)
		var refusal *guestwire.Error
		if errors.As(err, &refusal) && refusal.Code == guestwire.NoExecution {
			return nil, errUnknown
		}
		if err != nil || exit != nil || r.stdout.next+r.stderr.next == had {
			return exit, err
		}
	}
}

// settle stores an end, or leaves the execution.
func (r *run) settle(ctx context.Context, end *ending) {
	stored := end != leave && r.finish(ctx, *end)
	r.close()
	if stored {
		r.forget(ctx)
	}
}

// close lets the store answer.
func (r *run) close() {
	r.stdout.close()
	r.stderr.close()
	if e := r.snapshot(); e.Status != Running {
		if err := r.m.shelve(e); err != nil {
			r.log.Error("cannot make room for output", "error", err)
		}
	}
	r.m.settled(r)
	select {
	case <-r.started:
	default:
		close(r.started)
	}
}

// ending is how an execution ended: a change to its record.
type ending func(*Execution)

// leave is no ending: the daemon stops and the program goes on.
var leave = new(ending)

// start has the agent start the program. It returns nil when the program runs.
// A try whose answer was lost is repeated; the agent starts an id once.
func (r *run) start(ctx context.Context) *ending {
	e := r.snapshot()
	request := guestwire.Start{Cmd: e.Cmd, Args: e.Args, Cwd: e.Cwd, User: e.User}
	err := r.insist(ctx, func(ctx context.Context) error {
		_, err := r.session.Agent().Start(ctx, e.ID, request)
		return err
	})
	var refusal *guestwire.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		reason, known := failReasons[refusal.Code]
		if !known {
			r.log.Warn("guest could not start a program", "code", string(refusal.Code))
			reason = AgentUnreachable
		}
		return endOf(func(e *Execution) { e.Status, e.Reason = Failed, reason })
	default:
		return r.vanished(err)
	}
}

// pump copies output into the rings until the program has ended, the sandbox
// has, or the timeout has passed and the kill was confirmed or given up.
func (r *run) pump(ctx context.Context, left time.Duration) *ending {
	running, cancel := context.WithTimeoutCause(ctx, left, errTimeout)
	defer cancel()
	exit, err := r.pullUntilExit(running)
	if err == nil {
		return endOf(func(e *Execution) { e.exited(*exit) })
	}
	if !errors.Is(context.Cause(running), errTimeout) {
		return r.vanished(err)
	}
	return r.kill(ctx)
}

var errTimeout = errors.New("the execution's timeout has passed")

// kill ends the program after its timeout. The sandbox is ended when the guest
// does not confirm in time.
func (r *run) kill(ctx context.Context) *ending {
	id := r.snapshot().ID
	confirm, cancel := context.WithTimeout(ctx, r.m.cfg.KillTimeout)
	defer cancel()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for confirm.Err() == nil {
			_ = r.session.Agent().Signal(confirm, id, "SIGKILL") // repeated until the exit is seen
			pause(confirm, killRepeats)
		}
	}()
	exit, err := r.pullUntilExit(confirm)
	cancel()
	<-killed
	if err != nil && errors.Is(context.Cause(ctx), sandbox.ErrLeft) {
		return leave // the next daemon sees that the time is over
	}
	if err != nil && ctx.Err() == nil {
		r.session.AgentFailed(fmt.Errorf("kill after timeout is not confirmed: %w", err))
	}
	return endOf(func(e *Execution) {
		if exit != nil {
			e.exited(*exit)
		}
		e.Status, e.Reason = TimedOut, Timeout
	})
}

// pullUntilExit pulls output until the exit comes or ctx ends. A broken
// connection is dialled again; offsets make sure that no byte comes twice.
func (r *run) pullUntilExit(ctx context.Context) (*guestwire.Exit, error) {
	e := r.snapshot()
	for small := 0; ; {
		had := r.stdout.next + r.stderr.next
		var exit *guestwire.Exit
		err := r.insist(ctx, func(ctx context.Context) error {
			var err error
			exit, err = r.session.Agent().Pull(ctx, e.ID, guestwire.Pull{
				Stdout: r.stdout.next,
				Stderr: r.stderr.next,
				WaitMS: min(int(r.m.cfg.AgentTimeout.Milliseconds())/4, guestwire.MaxPullWait),
			}, r.keep)
			return err
		})
		if err != nil || exit != nil {
			return exit, err
		}
		switch said := r.stdout.next + r.stderr.next - had; {
		case said == 0:
			pause(ctx, retryPause) // an honest agent has waited longer than this
		case said >= smallReply:
			small = 0
		default:
			if small++; small > smallInARow {
				pause(ctx, smallPause)
			}
		}
	}
}

// insist repeats one call to the agent until it answers, for AgentTimeout. A
// refusal is an answer. It ends the sandbox when the agent stays silent or
// breaks the protocol.
func (r *run) insist(ctx context.Context, call func(context.Context) error) error {
	tries, cancel := context.WithTimeout(ctx, r.m.cfg.AgentTimeout)
	defer cancel()
	for {
		err := call(tries)
		var refusal *guestwire.Error
		switch {
		case err == nil || errors.As(err, &refusal):
			return err
		case errors.Is(err, errKeep):
			return err
		case errors.Is(err, guestwire.ErrProtocol):
			r.session.AgentFailed(err)
			return err
		case ctx.Err() != nil:
			return err
		case tries.Err() != nil:
			r.session.AgentFailed(fmt.Errorf("silent for %s: %w", r.m.cfg.AgentTimeout, err))
			return err
		}
		pause(tries, retryPause)
	}
}

var errKeep = errors.New("output cannot be kept")

// keep appends one frame to its ring.
func (r *run) keep(f guestwire.Frame) error {
	s := r.stdout
	if f.Type == guestwire.StderrFrame {
		s = r.stderr
	}
	if err := s.append(f.Offset, f.Payload); err != nil {
		return fmt.Errorf("%w: %w", errKeep, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.e.StdoutBytes, r.e.StderrBytes = r.stdout.next, r.stderr.next
	return nil
}

func (s *stream) append(offset int64, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
			return err
		}
		ring, err := CreateRing(s.path)
		if err != nil {
			return err
		}
		s.ring = ring
	}
	if err := s.ring.Append(offset, p); err != nil {
		return err
	}
	s.next = offset + int64(len(p))
	return nil
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring != nil {
		_ = s.ring.Close() // nothing is buffered: every append was a pwrite
		s.ring = nil
	}
}

func (s *stream) tail() (Tail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		return readTail(s.path)
	}
	return s.ring.tail()
}

// output is what is kept so far.
func (r *run) output() (out Output, err error) {
	if out.Stdout, err = r.stdout.tail(); err != nil {
		return Output{}, fmt.Errorf("read stdout: %w", err)
	}
	if out.Stderr, err = r.stderr.tail(); err != nil {
		return Output{}, fmt.Errorf("read stderr: %w", err)
	}
	return out, nil
}

// tail reads what the ring has from its last gap on.
func (r *Ring) tail() (Tail, error) {
	t := Tail{Offset: r.Start()}
	for next := t.Offset; ; {
		data, at, err := r.ReadAt(next, RingBytes)
		if err != nil || len(data) == 0 {
			return t, err
		}
		if at > next {
			t = Tail{Offset: at} // what lies before the gap does not join on
		}
		t.Bytes = append(t.Bytes, data...)
		next = at + int64(len(data))
	}
}

// vanished is the ending of an execution whose sandbox went away. When the
// agent failed first, the sandbox's own end follows at once; its reason, the
// first that its owner saw, is the one that counts.
func (r *run) vanished(err error) *ending {
	var refusal *guestwire.Error
	switch {
	case errors.Is(err, errKeep):
		r.log.Error("execution lost its output", "error", err)
		r.session.AgentFailed(err)
	case errors.As(err, &refusal): // of the output of a program that it started
		r.session.AgentFailed(err)
	}
	<-r.session.Done()
	if r.session.Reason() == "" {
		return leave
	}
	reason := vanishReasons[r.session.Reason()]
	return endOf(func(e *Execution) { e.Status, e.Reason = Vanished, reason })
}

func endOf(change ending) *ending { return &change }

// finish stores the end, then shows it: what a caller has seen survives a
// crash. It tries until the store takes it or the daemon stops; then the next
// start settles the row.
func (r *run) finish(ctx context.Context, change ending) (stored bool) {
	e := r.snapshot()
	change(&e)
	e.Finished = time.Now()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.e = e
	}()
	for wait := retryPause; ; wait = min(2*wait, 10*time.Second) {
		err := r.m.store(ctx, func(ctx context.Context) error { return r.m.cfg.Store.FinishExecution(ctx, e) })
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
	if err := r.session.Agent().Forget(ctx, r.e.ID); err != nil && r.session.Reason() == "" {
		r.log.Warn("agent does not forget", "error", err)
	}
}

func (e *Execution) exited(exit guestwire.Exit) {
	e.Status, e.ExitCode, e.Signal, e.OOMKilled = Exited, exit.ExitCode, exit.Signal, exit.OOMKilled
	e.StdoutBytes, e.StderrBytes = exit.StdoutBytes, exit.StderrBytes
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
