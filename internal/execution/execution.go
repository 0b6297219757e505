// Package execution owns the Execution noun: one command run in a sandbox, its
// statuses, its output rings, and the pump that copies output from the guest
// agent. It knows no wire types of the API and no SQL.
//
// Statuses: running -> exited | timed_out | canceled | vanished | failed.
// The first cause of an ending wins and is kept.
package execution

import (
	"context"
	"time"
)

// Status is where an execution is, or how it ended.
type Status string

// The statuses (product.md has the table that clients rely on).
const (
	Running  Status = "running"
	Exited   Status = "exited"    // ran and ended; ExitCode or Signal is its own
	TimedOut Status = "timed_out" // passed its timeout and was killed
	Canceled Status = "canceled"  // a caller cancelled it; ExitCode or Signal is what that left
	Vanished Status = "vanished"  // the sandbox under it went away
	Failed   Status = "failed"    // never started
)

// Reason says why an execution did not end by itself. One that is running has
// timeout or canceled from when it is being ended for that.
type Reason string

// The closed list of reasons, by status.
const (
	Timeout          Reason = "timeout"           // timed_out
	ByCaller         Reason = "canceled"          // canceled
	TTL              Reason = "ttl"               // vanished
	Idle             Reason = "idle"              // vanished
	Deleted          Reason = "deleted"           // vanished
	VMDied           Reason = "vm_died"           // vanished
	AgentDied        Reason = "agent_died"        // vanished
	HostOOM          Reason = "host_oom"          // vanished
	HostRestarted    Reason = "host_restarted"    // vanished
	CommandNotFound  Reason = "command_not_found" // failed
	PermissionDenied Reason = "permission_denied" // failed
	BadDirectory     Reason = "bad_directory"     // failed
	UserNotFound     Reason = "user_not_found"    // failed
	AgentUnreachable Reason = "agent_unreachable" // failed
)

// Execution is an immutable copy of what is known of one execution.
type Execution struct {
	ID        string
	Sandbox   string // its id
	Cmd       string
	Args      []string
	Cwd       string // "" is the image's working directory
	User      string // "" is the image's default user
	Timeout   time.Duration
	Deadline  time.Duration // when Timeout is over, in the host's uptime (sandbox.Sandbox.HostBoot says of which boot)
	TTY       bool          // it runs on a terminal
	StdinOpen bool          // its stdin takes what is sent while it runs
	Status    Status
	Reason    Reason
	PID       int    // as the guest sees it; 0 where that is not known
	ExitCode  *int   // nil where there was none; never invented
	Signal    string // "SIGKILL", or ""
	OOMKilled bool   // a process of it was killed by the guest's OOM killer

	StdoutBytes int64 // all that the program wrote
	StderrBytes int64

	Created  time.Time
	Finished time.Time // zero while running
}

// Query selects the executions of one sandbox for a list, newest first.
type Query struct {
	Sandbox       string
	StartingAfter string
	EndingBefore  string
	Limit         int // 1..100
}

// Page is one page of a list.
type Page struct {
	Data    []Execution
	HasMore bool
}

// Store keeps executions. A write that returned nil survives a crash.
type Store interface {
	InsertExecution(ctx context.Context, e Execution) error
	// CauseExecution stores e.Reason, for which a running execution is being
	// ended. The first stays, as does the end of one that has ended:
	// ErrAlreadyFinished.
	CauseExecution(ctx context.Context, e Execution) error
	// FinishExecution stores the end of a running execution; it refuses to
	// change one that has ended.
	FinishExecution(ctx context.Context, e Execution) error
	// Execution finds one by its sandbox and id, or fault.ExecutionNotFound.
	Execution(ctx context.Context, sandbox, id string) (Execution, error)
	Executions(ctx context.Context, q Query) (Page, error)
	// RunningExecutions returns all that have not ended.
	RunningExecutions(ctx context.Context) ([]Execution, error)
}
