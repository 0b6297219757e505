package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	retryPause = 50 * time.Millisecond // between two tries to reach the agent

	// Replies that say little are taken one after the other only so often;
	// after that each costs a pause: an agent can make them for nothing.
	smallReply  = 4 << 10 // bytes
	smallInARow = 16
	smallPause  = 5 * time.Millisecond
)

// pullUntilExit starts the program, unless an earlier daemon did, and pulls its
// output until the exit comes or ctx ends. A try whose answer was lost is
// repeated: the agent starts an id once, and offsets make sure that no byte
// comes twice.
func (r *run) pullUntilExit(ctx context.Context) (*guestwire.Exit, error) {
	id := r.snapshot().ID
	wait := min(int(r.m.cfg.AgentTimeout.Milliseconds())/4, guestwire.MaxPullWait)
	for pace := (pacer{}); ; {
		had := r.next()
		var exit *guestwire.Exit
		err := r.insist(ctx, func(ctx context.Context) (err error) {
			if r.request.Cmd == "" {
				exit, err = r.session.Agent().Pull(ctx, id, r.pull(wait), r.sink())
				return err
			}
			r.request.Pull = r.pull(wait)
			exit, err = r.session.Agent().Start(ctx, id, r.request, r.sink())
			return err
		})
		if err != nil || exit != nil {
			return exit, err
		}
		r.request = guestwire.Start{} // and its env with it
		pace.after(ctx, r.next()-had)
	}
}

// pacer bounds how often an agent is asked that could answer at once, and for
// ever, with next to nothing.
type pacer struct{ small int }

// after pauses behind a reply that moved n bytes, where that is called for.
func (p *pacer) after(ctx context.Context, n int64) {
	switch {
	case n == 0:
		pause(ctx, retryPause) // an honest agent has waited longer than this
	case n >= smallReply:
		p.small = 0
	default:
		if p.small++; p.small > smallInARow {
			pause(ctx, smallPause)
		}
	}
}

// pull acknowledges what is kept, and asks for more.
func (r *run) pull(waitMS int) guestwire.Pull {
	return guestwire.Pull{Stdout: r.streams[0].next, Stderr: r.streams[1].next, WaitMS: waitMS}
}

func (r *run) sink() guestwire.Sink {
	return guestwire.Sink{Started: func(s guestwire.Started) { r.begin(s.PID) }, Output: r.keep}
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
	s := r.streams[f.Type-guestwire.StdoutFrame]
	if err := s.append(f.Offset, f.Payload); err != nil {
		return fmt.Errorf("%w: %w", errKeep, err)
	}
	r.countOutput()
	r.m.reckon(r)
	return nil
}
