package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// keepalive is after how much silence a stream says that it is still there.
const keepalive = 15 * time.Second

// StreamExecution is GET /v1/sandboxes/{sandbox}/executions/{execution}/stream.
func (s *server) StreamExecution(ctx context.Context, r gen.StreamExecutionRequestObject) (gen.StreamExecutionResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	from, err := resumeAt(r.Params.After, r.Params.LastEventID)
	if err != nil {
		return nil, err
	}
	follower, err := s.Attached.Follow(ctx, r.Sandbox, r.Execution, from)
	if err != nil {
		return nil, err
	}
	return s.watch(ctx, func(bound context.Context, w http.ResponseWriter) error {
		return s.stream(bound, exchangeOf(ctx), w, follower)
	}), nil
}

// watch is a reply that ends when the server stops, at the latest.
func (s *server) watch(ctx context.Context, reply func(bound context.Context, w http.ResponseWriter) error) longReply {
	return func(w http.ResponseWriter) error {
		bound, done, err := s.watches.begin(ctx)
		if err != nil {
			return err
		}
		defer done()
		return reply(bound, w)
	}
}

// longReply writes a reply that goes on until its caller or its subject ends.
// An error before the header becomes a reply, one after it cuts the connection.
type longReply func(http.ResponseWriter) error

// VisitStreamExecutionResponse writes the reply.
func (l longReply) VisitStreamExecutionResponse(w http.ResponseWriter) error { return l(w) }

// VisitOpenTerminalResponse writes the reply.
func (l longReply) VisitOpenTerminalResponse(w http.ResponseWriter) error { return l(w) }

// stream writes server-sent events, as
// https://html.spec.whatwg.org/multipage/server-sent-events.html has them. It
// holds no more than one event; a caller that does not take that one in time is
// cut off (see exchange.Write), and what a slow one misses the follower tells.
func (s *server) stream(ctx context.Context, x *exchange, w http.ResponseWriter, follower Follower) error {
	beginEvents(w)
	err := x.send(nil) // the caller knows that it is there before the first event
	for err == nil {
		var event execution.Event
		var told bool
		if event, told, err = nextEvent(ctx, follower); err != nil {
			break
		}
		if told {
			err = x.send(encodeStreamed(event, follower.Position()))
		} else {
			err = x.send([]byte(": still here\n\n"))
		}
	}
	stopping := errors.Is(context.Cause(ctx), errStopping)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, errNotTaken), ctx.Err() != nil && !stopping:
		x.gone = true
		return err
	}
	f := fault.From(err)
	if stopping || f.Code == fault.ShuttingDown {
		f = fault.New(fault.ShuttingDown, "the daemon is stopping; the execution goes on; reconnect with Last-Event-ID")
	}
	s.logCause(ctx, x, f)
	return x.send(encodeEvent("", "error", gen.StreamError{Code: wireCode(f), Message: f.Message}))
}

// beginEvents writes the header of a reply of server-sent events.
func beginEvents(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // nginx would hold events back
	w.WriteHeader(http.StatusOK)
}

// nextEvent is the next event, or none when there was none for a while.
func nextEvent(ctx context.Context, follower Follower) (event execution.Event, told bool, err error) {
	bound, cancel := context.WithTimeout(ctx, keepalive)
	defer cancel()
	event, err = follower.Next(bound)
	if errors.Is(err, context.DeadlineExceeded) && bound.Err() != nil && ctx.Err() == nil {
		return event, false, nil
	}
	return event, err == nil, err
}

func encodeStreamed(e execution.Event, behind execution.Position) []byte {
	var name string
	var data any
	switch e.Kind {
	case execution.EventStarted:
		name, data = "started", gen.StreamStarted{PID: e.PID}
	case execution.EventOutput:
		return encodeOutput(e, formatPosition(behind))
	case execution.EventTruncated:
		name, data = "truncated", gen.StreamTruncated{Stream: gen.OutputStream(e.Stream), From: e.Offset, To: e.To}
	case execution.EventEnded:
		name, data = "exit", wireExit(e.Execution)
	}
	return encodeEvent(formatPosition(behind), name, data)
}

// encodeOutput is what encodeEvent makes of a gen.StreamOutput, in one buffer.
func encodeOutput(e execution.Event, id string) []byte {
	const frame = len("id: \nevent: stdout\ndata: {\"data\":\"\",\"offset\":}\n\n") + 20 // digits
	b := make([]byte, 0, frame+len(id)+base64.StdEncoding.EncodedLen(len(e.Data)))
	b = append(b, "id: "+id+"\nevent: "+string(e.Stream)+"\ndata: {\"data\":\""...)
	b = base64.StdEncoding.AppendEncode(b, e.Data)
	b = append(b, `","offset":`...)
	b = strconv.AppendInt(b, e.Offset, 10)
	return append(b, "}\n\n"...)
}

// wireExit is how an execution ended.
func wireExit(e execution.Execution) gen.StreamExit {
	return gen.StreamExit{
		ExitCode:  e.ExitCode,
		Signal:    orNil(e.Signal),
		TimedOut:  e.Status == execution.TimedOut,
		OOMKilled: e.OOMKilled,
		Status:    gen.ExecutionStatus(e.Status),
		Reason:    orNil(gen.ExecutionReason(e.Reason)),
	}
}

// encodeEvent is one event on the wire; without an id it does not move the
// caller's Last-Event-ID.
func encodeEvent(id, name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // numbers, bytes and our own strings: cannot happen
	}
	var b bytes.Buffer
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("event: " + name + "\ndata: ")
	b.Write(text) // JSON has no line break
	b.WriteString("\n\n")
	return b.Bytes()
}

// errNotTaken is a part of a reply that its caller did not take.
var errNotTaken = errors.New("the caller is gone or does not read")

// send writes a part of a reply and hands it to the network.
func (x *exchange) send(part []byte) error {
	if len(part) > 0 {
		if _, err := x.Write(part); err != nil {
			return errors.Join(errNotTaken, err)
		}
	}
	if err := x.control.Flush(); err != nil {
		return errors.Join(errNotTaken, err)
	}
	return nil
}
