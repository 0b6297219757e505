package microvm

import "fmt"

// reasonNodeLost is what newer nodes answer with; this client knows what it
// means already.
const reasonNodeLost ExecutionReason = "node_lost"

// EndingError says that a program was not allowed to give its own answer. An
// agent that meets one must not change its code because of it, unless Status is
// timed_out (too slow, not crashed).
type EndingError struct {
	Status  ExecutionStatus
	Reason  ExecutionReason // "" where the node gave none
	Message string          // what happened, and whether the code failed
	Remedy  string          // what to do next
}

func (e *EndingError) Error() string { return e.Message + "; " + e.Remedy }

// Ended reports whether the execution has ended, in whatever way.
func (e *Execution) Ended() bool { return e.Status != ExecutionStatusRunning }

// Err says whether the ending is the program's own. It is nil for exited,
// whatever the exit code or signal: that is the program's answer. Every other
// ending is an *EndingError; so is no ending yet.
func (e *Execution) Err() error {
	var reason ExecutionReason
	if e.Reason != nil {
		reason = *e.Reason
	}
	made := func(message, remedy string) error {
		return &EndingError{Status: e.Status, Reason: reason, Message: message, Remedy: remedy}
	}
	switch e.Status {
	case ExecutionStatusExited:
		return nil
	case ExecutionStatusRunning:
		return made("it has not ended", "wait for it")
	case ExecutionStatusTimedOut:
		return made(fmt.Sprintf("exceeded its timeout of %d s and was killed: too slow, not crashed", e.TimeoutSeconds),
			"give it a longer timeout, or less to do")
	case ExecutionStatusCanceled:
		return made("was cancelled", "run it again if its answer is still wanted")
	case ExecutionStatusVanished:
		return made(vanished(reason))
	case ExecutionStatusFailed:
		return made(e.failed(reason))
	default:
		return made(fmt.Sprintf("ended as %q, which this client does not know", e.Status), "use a newer client")
	}
}

func vanished(reason ExecutionReason) (message, remedy string) {
	cause, remedy := "", "run it again in a new sandbox"
	switch reason {
	case ExecutionReasonTTL:
		cause, remedy = "its TTL ended", "run it again in a new sandbox with a longer TTL"
	case ExecutionReasonIdle:
		cause, remedy = "it was not used for its idle time", "run it again in a new sandbox with a longer idle time, or touch the sandbox meanwhile"
	case ExecutionReasonDeleted:
		cause, remedy = "it was deleted", "run it again in a new sandbox, if its answer is still wanted"
	case ExecutionReasonVMDied:
		cause = "its microVM died"
	case ExecutionReasonAgentDied:
		cause, remedy = "its guest agent died, which code that runs as root inside can bring about", "run it again in a new sandbox, not as root"
	case ExecutionReasonHostOOM:
		cause = "the host ran out of memory"
	case ExecutionReasonHostRestarted:
		cause = "the host restarted"
	case reasonNodeLost:
		cause = "its node was lost"
	default:
		cause = "no reason is known"
		if reason != "" {
			cause = string(reason)
		}
	}
	return "the sandbox was taken away (" + cause + "); your code did not fail", remedy
}

func (e *Execution) failed(reason ExecutionReason) (message, remedy string) {
	const never = "; it was never started, so your code did not fail"
	switch reason {
	case ExecutionReasonCommandNotFound:
		return fmt.Sprintf("there is no program %q in the sandbox%s", e.Cmd, never), "change cmd, or put the program there first; for shell syntax run sh -c"
	case ExecutionReasonPermissionDenied:
		return fmt.Sprintf("%q may not be executed%s", e.Cmd, never), "set its x bit, or run it by its interpreter or as another user"
	case ExecutionReasonBadDirectory:
		return fmt.Sprintf("the directory %s cannot be entered%s", quoted(e.Cwd, "that is the image's own"), never), "change cwd, or make the directory first"
	case ExecutionReasonUserNotFound:
		return fmt.Sprintf("there is no user %s in the sandbox%s", quoted(e.User, "of the image"), never), "change user; images have user and root"
	case ExecutionReasonAgentUnreachable:
		return "the sandbox did not answer" + never, "run it again; if that fails too, in a new sandbox"
	default:
		cause := "no reason is known"
		if reason != "" {
			cause = string(reason)
		}
		return "it could not be started (" + cause + ")" + never, "run it again in a new sandbox"
	}
}

func quoted(value *string, otherwise string) string {
	if value == nil {
		return otherwise
	}
	return fmt.Sprintf("%q", *value)
}
