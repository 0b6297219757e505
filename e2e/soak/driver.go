package soak

import (
	"context"
	"math/rand/v2"
	"time"
)

// Spec is what a sandbox is made of.
type Spec struct {
	Mark string // put into a tag
	TTL  time.Duration
	Idle time.Duration // 0 is never
}

// Driver is a node. Every call but a kill is one request, that is not repeated,
// and waits first until a daemon is there. Its error is nil, a *Refusal,
// ErrLost, or something that no node should say.
type Driver interface {
	Sandboxes
	Lives
	Programs
	Killer
}

// Sandboxes makes, finds and ends them.
type Sandboxes interface {
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	Get(ctx context.Context, id string) (Sandbox, error)
	// Running lists those that run.
	Running(ctx context.Context) ([]Sandbox, error)
	Delete(ctx context.Context, id string) (Sandbox, error)
}

// Lives makes sandboxes live longer.
type Lives interface {
	Extend(ctx context.Context, id string, ttl time.Duration) (Sandbox, error)
	Touch(ctx context.Context, id string) (Sandbox, error)
}

// Programs starts executions and follows them.
type Programs interface {
	Start(ctx context.Context, sandbox string, p Program) (Execution, error)
	// Look returns an execution with its output when it has ended, or as it is
	// after wait.
	Look(ctx context.Context, sandbox, id string, wait time.Duration) (Execution, error)
	// Executions lists all of a sandbox, without output.
	Executions(ctx context.Context, sandbox string) ([]Execution, error)
}

// Killer ends what no caller can.
type Killer interface {
	// KillDaemon kills the daemon at a moment that luck chooses, has down done
	// while there is none, and starts the next. It tells where the kill struck.
	KillDaemon(ctx context.Context, luck *rand.Rand, down func()) (step string, err error)
	// KillVMM kills the VMM of a sandbox, if there is one.
	KillVMM(sandbox string) error
}
