package sandbox

import "fmt"

// State is where a sandbox is in its life.
type State string

// The states.
const (
	Starting State = "starting" // listed, not usable
	Running  State = "running"
	Stopped  State = "stopped" // final
)

// StopReason is why a sandbox stopped, in the words every client knows.
type StopReason string

// The stop reasons.
const (
	StopDeleted StopReason = "stopped" // a caller deleted it
	StopExpired StopReason = "expired" // its TTL ended
	StopIdle    StopReason = "idle"    // it was not used for its idle time
	StopFailed  StopReason = "failed"  // ours or its VM's doing; Reason says which
)

// Reason says more about an ending. Executions under the sandbox vanish with it.
type Reason string

// The reasons.
const (
	ReasonDeleted       Reason = "deleted"        // by a caller
	ReasonTTL           Reason = "ttl"            // its TTL ended
	ReasonIdle          Reason = "idle"           // it was not used for its idle time
	ReasonBootFailed    Reason = "boot_failed"    // the microVM never became usable
	ReasonVMDied        Reason = "vm_died"        // the VMM process ended by itself
	ReasonHostOOM       Reason = "host_oom"       // the host's OOM killer ended the VMM process
	ReasonAgentDied     Reason = "agent_died"     // the guest agent went silent, broke the protocol, or ended and its guest with it
	ReasonHostRestarted Reason = "host_restarted" // the daemon came back and found no VM to adopt
)

// stopReasons says which stop reason goes with each reason.
var stopReasons = map[Reason]StopReason{
	ReasonDeleted:       StopDeleted,
	ReasonTTL:           StopExpired,
	ReasonIdle:          StopIdle,
	ReasonBootFailed:    StopFailed,
	ReasonVMDied:        StopFailed,
	ReasonHostOOM:       StopFailed,
	ReasonAgentDied:     StopFailed,
	ReasonHostRestarted: StopFailed,
}

// moves is the whole table of legal moves.
var moves = map[State][]State{
	Starting: {Running, Stopped},
	Running:  {Stopped},
}

// move refuses what the table does not have.
func move(from, to State) error {
	for _, legal := range moves[from] {
		if legal == to {
			return nil
		}
	}
	return fmt.Errorf("move sandbox: %s to %s is no legal move", from, to)
}
