package sandbox

import (
	"context"
	"errors"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Session is the use of a running sandbox. There is one per sandbox, shared by
// all its users; it ends when the sandbox does, and then says why.
type Session struct {
	owner   *owner
	sandbox Sandbox
	agent   *guestwire.Client
	ctx     context.Context // done when the sandbox ends
	cancel  context.CancelCauseFunc
}

// Ended is the cause of a session's context once the sandbox has ended.
type Ended struct{ Reason Reason }

func (e *Ended) Error() string { return "the sandbox ended: " + string(e.Reason) }

func newSession(o *owner, sb Sandbox) *Session {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(o.ctx))
	return &Session{owner: o, sandbox: sb, agent: o.m.cfg.Agents.Client(o.plan.Host), ctx: ctx, cancel: cancel}
}

// Sandbox is the sandbox as it was when it became usable.
func (s *Session) Sandbox() Sandbox { return s.sandbox.clone() }

// Agent is the client for the guest's agent.
func (s *Session) Agent() *guestwire.Client { return s.agent }

// Done is closed when the sandbox has begun to end.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Reason is why the sandbox ended; "" while it has not.
func (s *Session) Reason() Reason {
	var ended *Ended
	if errors.As(context.Cause(s.ctx), &ended) {
		return ended.Reason
	}
	return ""
}

// Bind returns a context that also ends with the sandbox, with *Ended as its
// cause.
func (s *Session) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return bound, func() { stop(); cancel(context.Canceled) }
}

// AgentFailed asks the owner to end the sandbox because its agent is silent or
// broke the protocol. The sandbox's own ending may still come first.
func (s *Session) AgentFailed(why error) {
	s.owner.log.Error("guest agent failed", "error", why)
	s.owner.end(ReasonAgentDied)
}

func (s *Session) end(reason Reason) { s.cancel(&Ended{Reason: reason}) }

// notRunning is the refusal of a use of a sandbox that is not running.
func notRunning(sb Sandbox) error {
	if sb.State == Stopped {
		return fault.New(fault.SandboxNotRunning, "sandbox %s has stopped (%s); create another one", sb.ID, sb.Reason)
	}
	return fault.New(fault.SandboxNotRunning, "sandbox %s is still starting; wait until its state is running", sb.ID)
}
