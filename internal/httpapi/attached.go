package httpapi

import (
	"context"

	"github.com/microvmd/microvm/internal/execution"
)

// Attached is what the API does with an execution as it goes on: its output as it
// comes, its input, its terminal.
type Attached interface {
	// Follow replays output from a position on, and then follows it.
	Follow(ctx context.Context, sandboxID, id string, from execution.Position) (Follower, error)
	// Stdin sends input, and waits a bounded time for the program to take it.
	Stdin(ctx context.Context, sandboxID, id string, in execution.Input) (execution.Taken, error)
	Resize(ctx context.Context, sandboxID, id string, size execution.Size) error
}

// Follower is one reader of an execution. It holds nothing that must be closed.
type Follower interface {
	// Next waits for the next event. It may be called again after ctx was over;
	// io.EOF follows the end of the execution.
	Next(ctx context.Context) (execution.Event, error)
	// Position is what was handed out.
	Position() execution.Position
}

// Attach makes an Attached of the manager of executions.
func Attach(m *execution.Manager) Attached { return attached{m} }

type attached struct{ *execution.Manager }

func (a attached) Follow(ctx context.Context, sandboxID, id string, from execution.Position) (Follower, error) {
	follower, err := a.Manager.Follow(ctx, sandboxID, id, from)
	if err != nil {
		return nil, err
	}
	return follower, nil
}
