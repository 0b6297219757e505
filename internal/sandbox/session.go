package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// life is the running part of a sandbox's life, shared by all its users. It ends
// when the sandbox does, and then says why.
type life struct {
	owner   *owner
	sandbox Sandbox // as it was when it became usable
	agent   *guestwire.Client
	ctx     context.Context // done when the sandbox ends
	cancel  context.CancelCauseFunc

	mu    sync.Mutex
	users int       // guarded by mu; sessions that were not released
	last  time.Time // guarded by mu; when users became 0
	over  bool      // guarded by mu; no more users
}

func newLife(o *owner) *life {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &life{owner: o, sandbox: o.sb, agent: o.m.cfg.Agents.Client(o.plan.Host), ctx: ctx, cancel: cancel, last: time.Now()}
}

// use counts one more user, unless the sandbox has ended.
func (l *life) use() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.users++
	}
	return !l.over
}

func (l *life) unuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 {
		l.last = time.Now()
	}
}

// reclaim ends the life when it was not used for idle, as one decision: a user
// comes before it or is refused. Otherwise it says how long to wait at least.
func (l *life) reclaim(idle time.Duration) (wait time.Duration, idled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users > 0 {
		return idle, false
	}
	if wait := idle - time.Since(l.last); wait > 0 {
		return wait, false
	}
	l.over = true
	return 0, true
}

// end lets no more users in and tells those that are there.
func (l *life) end(why error) {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.cancel(why)
}

// reason is why the sandbox ended; "" while it has not.
func (l *life) reason() Reason {
	var ended *Ended
	if errors.As(context.Cause(l.ctx), &ended) {
		return ended.Reason
	}
	return ""
}

// Session is one use of a running sandbox. While it is not released the sandbox
// is not idle.
type Session struct {
	life *life
	once sync.Once
}

// Ended is the cause of a session's context once the sandbox has ended.
type Ended struct{ Reason Reason }

func (e *Ended) Error() string { return "the sandbox ended: " + string(e.Reason) }

// ErrLeft is the cause of a session's context once the daemon stops and leaves
// the sandbox to the next one.
var ErrLeft = errors.New("the daemon stops; the sandbox goes on")

// Release ends the use. A second call does nothing.
func (s *Session) Release() { s.once.Do(s.life.unuse) }

// Agent is the client for the guest's agent.
func (s *Session) Agent() *guestwire.Client { return s.life.agent }

// Done is closed when the sandbox has begun to end, or the daemon leaves it.
func (s *Session) Done() <-chan struct{} { return s.life.ctx.Done() }

// Reason is why the sandbox ended; "" while it has not, and when it was left.
func (s *Session) Reason() Reason { return s.life.reason() }

// Bind returns a context that also ends with the session's sandbox, with *Ended
// or ErrLeft as its cause.
func (s *Session) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life.ctx, func() { cancel(context.Cause(s.life.ctx)) })
	return bound, func() { stop(); cancel(context.Canceled) }
}

// AgentFailed asks the owner to end the sandbox because its agent is silent or
// broke the protocol. The sandbox's own ending may still come first.
func (s *Session) AgentFailed(why error) {
	s.life.owner.log.Error("guest agent failed", "error", why)
	s.life.owner.end(ReasonAgentDied)
}

// notRunning is the refusal of a use of a sandbox that is not running.
func notRunning(sb Sandbox) error {
	if sb.State == Stopped {
		return fault.New(fault.SandboxNotRunning, "sandbox %s has stopped (%s); create another one", sb.ID, sb.Reason)
	}
	return fault.New(fault.SandboxNotRunning, "sandbox %s is still starting; wait until its state is running", sb.ID)
}
