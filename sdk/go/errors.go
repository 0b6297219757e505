package microvm

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// Error is a refusal by the server.
type Error struct {
	Type       ErrorType     // whose fault it is; "" when the reply was not one of Microvm's
	Code       ErrorCode     // stable; "" when the reply was not one of Microvm's
	Message    string        // for people; says what to do next
	Param      string        // the field or query parameter at fault, or ""
	RequestID  string        // names the request in the daemon's log; may be ""
	Status     int           // the HTTP status
	DocURL     string        // a page about the code; may be ""
	RetryAfter time.Duration // after which a repeat may succeed; 0 is not known
}

func (e *Error) Error() string {
	text := e.Message
	if e.Code != "" {
		text += fmt.Sprintf(" (%s", e.Code)
		if e.RequestID != "" {
			text += ", " + e.RequestID
		}
		text += ")"
	}
	return text
}

// HasCode reports whether err's chain holds an *Error with this code.
func HasCode(err error, code ErrorCode) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// ConnectionError is a request without a whole reply.
type ConnectionError struct {
	// Sent says whether the request may have reached the server and had its
	// effect. It is false when no connection could be made.
	Sent bool
	Err  error // the cause

	final bool // a repeat would do what was done already
}

func (e *ConnectionError) Error() string {
	if !e.Sent {
		return "no connection to the server: " + e.Err.Error()
	}
	return "the connection ended before the reply was whole: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *ConnectionError) Unwrap() error { return e.Err }

// connectionError sorts what an HTTP client failed with; handshake says that
// TLS could not be set up.
func connectionError(err error, handshake bool) *ConnectionError {
	var op *net.OpError
	unsent := handshake || errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
	var wrapped *url.Error // repeats method and address, which the caller knows
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return &ConnectionError{Sent: !unsent, Err: err}
}
