// Package fault is the one error type that crosses package borders. It owns the
// closed list of kinds and codes that a caller of Microvm can meet, and it
// knows nothing of HTTP: only httpapi maps a Kind to a status.
//
// A message is written for the caller: it names the field or the thing, says
// what to do next, and never holds guest output, a secret or a host path. What
// an operator needs to know goes into the wrapped cause, which is logged and
// never sent.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Kind says whose fault it is and whether a repeat can help.
type Kind string

// The kinds. Each code belongs to exactly one of them (see codes).
const (
	Invalid         Kind = "invalid"         // the request can never succeed as it is
	NotFound        Kind = "not_found"       // the named thing does not exist for this caller
	Conflict        Kind = "conflict"        // the thing is in a state that forbids it
	TooLarge        Kind = "too_large"       // a body or file is over its limit
	OutOfRange      Kind = "out_of_range"    // the part that is asked for does not exist
	Unauthenticated Kind = "unauthenticated" // no key, or a wrong one
	Denied          Kind = "denied"          // not from there, whoever asks
	Capacity        Kind = "capacity"        // full now; a later repeat may succeed
	GuestDiskFull   Kind = "guest_disk_full" // the sandbox's own disk is full
	GuestLost       Kind = "guest_lost"      // the guest does not answer
	Unavailable     Kind = "unavailable"     // the daemon is stopping, or its database is away
	Internal        Kind = "internal"        // ours
)

// Code is the stable name of one error, as clients see it.
type Code string

// The codes that this release can answer with.
const (
	ParameterMissing      Code = "parameter_missing"
	ParameterInvalid      Code = "parameter_invalid"
	BodyInvalid           Code = "body_invalid"
	SandboxNotFound       Code = "sandbox_not_found"
	ExecutionNotFound     Code = "execution_not_found"
	ImageNotFound         Code = "image_not_found"
	ImageInvalid          Code = "image_invalid"
	ImageInUse            Code = "image_in_use"
	FileNotFound          Code = "file_not_found"
	RouteNotFound         Code = "route_not_found"
	SandboxNotRunning     Code = "sandbox_not_running"
	ExecutionNotRunning   Code = "execution_not_running"
	ExecutionNotTTY       Code = "execution_not_tty"
	ResourceAlreadyExists Code = "resource_already_exists"
	FileConflict          Code = "file_conflict"
	RangeInvalid          Code = "range_invalid"
	PayloadTooLarge       Code = "payload_too_large"
	FullGuestDisk         Code = "guest_disk_full"
	TokenMissing          Code = "token_missing"
	TokenInvalid          Code = "token_invalid"
	Forbidden             Code = "forbidden"
	NodeAtCapacity        Code = "node_at_capacity"
	RateLimited           Code = "rate_limited"
	GuestUnreachable      Code = "guest_unreachable"
	ShuttingDown          Code = "shutting_down"
	QueueUnreachable      Code = "queue_unreachable"
	InternalError         Code = "internal_error"
)

var codes = map[Code]Kind{
	ParameterMissing:      Invalid,
	ParameterInvalid:      Invalid,
	BodyInvalid:           Invalid,
	SandboxNotFound:       NotFound,
	ExecutionNotFound:     NotFound,
	ImageNotFound:         NotFound,
	ImageInvalid:          Invalid,
	ImageInUse:            Conflict,
	FileNotFound:          NotFound,
	RouteNotFound:         NotFound,
	SandboxNotRunning:     Conflict,
	ExecutionNotRunning:   Conflict,
	ExecutionNotTTY:       Conflict,
	ResourceAlreadyExists: Conflict,
	FileConflict:          Conflict,
	RangeInvalid:          OutOfRange,
	PayloadTooLarge:       TooLarge,
	FullGuestDisk:         GuestDiskFull,
	TokenMissing:          Unauthenticated,
	TokenInvalid:          Unauthenticated,
	Forbidden:             Denied,
	NodeAtCapacity:        Capacity,
	RateLimited:           Capacity,
	GuestUnreachable:      GuestLost,
	ShuttingDown:          Unavailable,
	QueueUnreachable:      Unavailable,
	InternalError:         Internal,
}

// Codes lists every code, for tests that hold a document against it.
func Codes() map[Code]Kind {
	all := make(map[Code]Kind, len(codes))
	for code, kind := range codes {
		all[code] = kind
	}
	return all
}

// Error is a failure that a caller may see.
type Error struct {
	Code       Code
	Param      string        // the field or query parameter at fault, or ""
	Message    string        // safe to show; ends with what to do next
	RetryAfter time.Duration // hint for Capacity and Unavailable; 0 is none
	Cause      error         // for the log only
}

// New makes an error of a known code. The message is formatted as by Sprintf;
// its arguments must not be secrets, nor guest output but for a bounded %+q.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Param makes a ParameterInvalid error for one field.
func Param(name, format string, args ...any) *Error {
	return &Error{Code: ParameterInvalid, Param: name, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a known code that keeps its cause for the log.
func Wrap(cause error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// Kind returns the kind of the error's code; an unknown code is Internal.
func (e *Error) Kind() Kind {
	if kind, ok := codes[e.Code]; ok {
		return kind
	}
	return Internal
}

func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.Message
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// From returns the *Error in err's chain. Any other error becomes an
// InternalError whose message says nothing of it.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Wrap(err, InternalError, "an internal error happened; the daemon's log has it under this request id")
}

// Is reports whether err's chain holds an *Error with this code.
func Is(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
