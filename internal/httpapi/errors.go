package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// DocURL is the page of one error code. docs/errors.md has one section per code.
func DocURL(code fault.Code) string {
	return "https://github.com/microvmd/microvm/blob/main/docs/errors.md#" + string(code)
}

// statusOf is the one place that maps a kind of fault to an HTTP status.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.OutOfRange:
		return http.StatusRequestedRangeNotSatisfiable
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Denied:
		return http.StatusForbidden
	case fault.Capacity:
		return http.StatusTooManyRequests
	case fault.GuestDiskFull:
		return http.StatusInsufficientStorage
	case fault.GuestLost:
		return http.StatusBadGateway
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

func typeOf(kind fault.Kind) gen.ErrorType {
	switch kind {
	case fault.Invalid, fault.NotFound, fault.Conflict, fault.TooLarge, fault.OutOfRange, fault.GuestDiskFull:
		return gen.ErrorTypeInvalidRequestError
	case fault.Unauthenticated, fault.Denied:
		return gen.ErrorTypeAuthenticationError
	case fault.Capacity:
		return gen.ErrorTypeCapacityError
	default:
		return gen.ErrorTypeAPIError
	}
}

// What Retry-After says when the fault has no hint of its own.
const (
	retryCapacity    = 2 * time.Second
	retryUnavailable = 5 * time.Second
)

// fail replies with err. A reply that has begun cannot turn into an error: the
// connection is cut, so that the caller sees that it is not whole.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	f := fault.From(err)
	if r.Context().Err() != nil {
		x.gone = true // nobody reads a reply
	}
	s.logCause(r.Context(), x, f)
	if x.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeFault(w, x, f)
}

// logCause logs what an operator needs to know of a failure, and notes its code
// for the access log.
func (s *server) logCause(ctx context.Context, x *exchange, f *fault.Error) {
	x.code = f.Code
	if f.Cause == nil || x.gone {
		return
	}
	level := slog.LevelInfo
	if f.Kind() == fault.Internal {
		level = slog.LevelError
	}
	s.Logger.LogAttrs(ctx, level, "request failed",
		slog.String("request_id", x.id), slog.String("code", string(f.Code)), slog.Any("cause", f.Cause))
}

// wireCode is the code as the specification has it; one that fault does not list
// is of kind Internal.
func wireCode(f *fault.Error) gen.ErrorCode {
	if code := gen.ErrorCode(f.Code); code.Valid() {
		return code
	}
	return gen.ErrorCodeInternalError
}

func writeFault(w http.ResponseWriter, x *exchange, f *fault.Error) {
	kind := f.Kind()
	detail := gen.ErrorDetail{
		Type:      typeOf(kind),
		Code:      wireCode(f),
		Message:   f.Message,
		Param:     orNil(f.Param),
		RequestID: x.id,
		DocURL:    DocURL(fault.Code(wireCode(f))),
	}
	body, err := json.Marshal(gen.ErrorReply{Error: detail})
	if err != nil {
		panic(err) // strings only: cannot happen
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	switch kind {
	case fault.Unauthenticated:
		header.Set("WWW-Authenticate", `Bearer realm="microvm"`)
	case fault.Capacity:
		header.Set("Retry-After", retryAfter(f.RetryAfter, retryCapacity))
	case fault.Unavailable:
		header.Set("Retry-After", retryAfter(f.RetryAfter, retryUnavailable))
	}
	linger := x.prepareLinger()
	w.WriteHeader(statusOf(kind))
	_, _ = w.Write(body) // a caller that went away needs no reply
	if linger {
		x.linger()
	}
}

// retryAfter is in whole seconds, rounded up, at least 1.
func retryAfter(hint, standard time.Duration) string {
	if hint <= 0 {
		hint = standard
	}
	return strconv.FormatInt(int64((hint+time.Second-1)/time.Second), 10)
}

// orNil is nil for the zero value, which the wire shows as null.
func orNil[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}
