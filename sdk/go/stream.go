package microvm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"time"
)

// steadyTime is how long a stream must have lasted for its end to be the first
// loss and not one more.
const steadyTime = 10 * time.Second

// EventType says what an Event tells.
type EventType string

// The events of a stream.
const (
	EventStarted   EventType = "started"   // the program runs: PID
	EventStdout    EventType = "stdout"    // output: Stream, Offset, Data
	EventStderr    EventType = "stderr"    // output: Stream, Offset, Data
	EventTruncated EventType = "truncated" // output that is not kept any more: Stream, Offset, To
	EventExit      EventType = "exit"      // the end: Exit; the last one
)

// Event is one event of a stream.
type Event struct {
	Type EventType
	// Position lies behind the event. A new stream from there goes on without a
	// byte missing or told twice.
	Position Position

	PID    int          // of the program, as the guest sees it
	Stream OutputStream // of Offset, Data and To
	Offset int64        // of the first byte in all that was written to Stream
	Data   []byte       // exact bytes; a character may be cut in two between events
	To     int64        // of the first byte behind a gap
	Exit   *StreamExit  // how the execution ended
}

// Stream iterates over an execution's events from a position on: what of its
// output is kept, then what comes, to its end, which is the last event. It works
// after the end, and after the sandbox has stopped, too. Breaking off ends
// nothing but the reading.
//
// A connection that breaks is made again where it broke off, also while the
// daemon restarts, for about half a minute; no byte is told twice, and output
// that is lost is an event. A caller that is slow holds nothing up: what falls
// out of the node's memory meanwhile (1 MiB a stream is kept) is an event as
// well. The iteration ends at the first error, which it yields.
func (s *ExecutionService) Stream(ctx context.Context, sandbox, id string, from Position) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		const verb = "stream execution"
		path, err := pathOf(sandbox, id)
		if err != nil {
			yield(Event{}, fmt.Errorf("%s: %w", verb, err))
			return
		}
		f := &follower{c: s.c, path: path + "/stream", at: from, yield: yield}
		if err := f.run(ctx); err != nil {
			yield(Event{}, fmt.Errorf("%s: %w", verb, err))
		}
	}
}

// errLeft says that the caller has broken off.
var errLeft = errors.New("the caller broke off")

// follower is one iteration. Only its caller's goroutine touches it.
type follower struct {
	c       *Client
	path    string
	at      Position // behind what was handed out
	started bool     // the start was handed out
	ended   bool     // the end was
	yield   func(Event, error) bool
}

// run connects until the end was handed out, or to do so once more is no use.
func (f *follower) run(ctx context.Context) error {
	if f.c.invalid != nil {
		return f.c.invalid
	}
	for lost := 0; ; lost++ {
		began, before := f.c.now(), f.at
		err := f.once(ctx)
		switch {
		case f.ended || errors.Is(err, errLeft):
			return nil
		case ctx.Err() != nil:
			return contextError(ctx, err)
		case f.at != before || f.c.now().Sub(began) >= steadyTime:
			lost = 0
		}
		pause, again := streamPause(err, lost)
		if !again || lost >= f.c.retries+waitRetries {
			return err
		}
		if f.c.sleep(ctx, pause) != nil {
			return contextError(ctx, err)
		}
	}
}

// streamPause says whether to connect again after err, and after how long.
func streamPause(err error, n int) (time.Duration, bool) {
	var broken *brokenStream
	var refused *Error
	switch {
	case errors.As(err, &broken):
		return backoff(n), true
	case errors.As(err, &refused) && refused.Code == "" && (refused.Status == http.StatusBadGateway || refused.Status == http.StatusGatewayTimeout):
		return backoff(n), true // a proxy whose node restarts
	default:
		return request{method: http.MethodGet}.pause(err, n)
	}
}

// brokenStream is a stream that the node broke off with a reason.
type brokenStream struct{ err *Error }

func (b *brokenStream) Error() string { return "the stream was broken off: " + b.err.Error() }
func (b *brokenStream) Unwrap() error { return b.err }

// errSilent is the cause of a connection's end on which nothing came for longer
// than the node lets pass between two signs of life.
var errSilent = errors.New("the server was silent for too long")

// once makes one connection and hands out what it brings.
func (f *follower) once(ctx context.Context) error {
	r := request{path: f.path, header: map[string]string{}}
	if f.at != (Position{}) {
		r.header["Last-Event-ID"] = f.at.String()
	}
	begun := func() error { return nil }
	return f.c.listen(ctx, r, begun, func(name string, data []byte) (over bool, err error) {
		err = f.take(EventType(name), data)
		return f.ended, err
	})
}

// listen makes one connection of server-sent events. It calls begun when it is
// there, and take with each event until that says that it is over. A connection on
// which nothing comes for too long is lost.
func (c *Client) listen(ctx context.Context, r request, begun func() error, take func(name string, data []byte) (over bool, err error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	r.method, r.long = http.MethodGet, true
	r.header["Accept"] = "text/event-stream"
	r.header["Accept-Encoding"] = "identity" // a proxy that compresses would hold events back
	err := c.once(ctx, r, func(reply *http.Response) error {
		if kind, _, _ := mime.ParseMediaType(reply.Header.Get("Content-Type")); kind != "text/event-stream" {
			return fmt.Errorf("the reply is not what the API promises: %q is no stream of events", kind)
		}
		if err := begun(); err != nil {
			return err
		}
		events := newEventReader(&watchedReader{reply.Body, silence, c.silence})
		for {
			name, data, err := events.next()
			switch {
			case errors.Is(err, errEventTooLong):
				return err
			case err != nil:
				return &ConnectionError{Sent: true, Err: err}
			}
			if over, err := take(name, data); over || err != nil {
				return err
			}
		}
	})
	var lost *ConnectionError
	if errors.As(err, &lost) && errors.Is(context.Cause(ctx), errSilent) {
		lost.Err = errSilent
	}
	return err
}

// watchedReader lets a timer run while it reads, and only then: the caller may
// take its time with what it got.
type watchedReader struct {
	r     io.Reader
	timer *time.Timer
	limit time.Duration
}

func (w *watchedReader) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	defer w.timer.Stop()
	return w.r.Read(p)
}

// take hands out one event. Those of newer nodes that this client does not know
// are passed over.
func (f *follower) take(kind EventType, data []byte) error {
	switch kind {
	case EventStarted:
		var e StreamStarted
		if err := f.decode(kind, data, &e); err != nil || f.started {
			return err // a stream that begins at the start anew tells it again
		}
		f.started = true
		return f.hand(Event{Type: kind, PID: e.PID})
	case EventStdout, EventStderr:
		e, plain := plainOutput(data)
		if !plain {
			if err := f.decode(kind, data, &e); err != nil {
				return err
			}
		}
		return f.output(kind, OutputStream(kind), e)
	case EventTruncated:
		var e StreamTruncated
		if err := f.decode(kind, data, &e); err != nil {
			return err
		}
		if !e.Stream.Valid() || e.From < 0 || e.To < e.From {
			return notPromised(kind)
		}
		return f.gap(e.Stream, e.To)
	case EventExit:
		e := new(StreamExit)
		if err := f.decode(kind, data, e); err != nil {
			return err
		}
		if e.Status == "" || e.Status == ExecutionStatusRunning {
			return notPromised(kind)
		}
		f.ended = true
		return f.hand(Event{Type: kind, Exit: e})
	case "error":
		var e StreamError
		if err := f.decode(kind, data, &e); err != nil {
			return err
		}
		return &brokenStream{&Error{Type: ErrorTypeAPIError, Code: e.Code, Message: e.Message, Status: http.StatusOK}}
	default:
		return nil
	}
}

// plainOutput reads the data of an output event in the form in which nodes write
// it, three times as fast as a decoder of JSON, which takes every other form.
func plainOutput(data []byte) (e StreamOutput, ok bool) {
	text, ok := bytes.CutPrefix(data, []byte(`{"data":"`))
	encoded, rest, closed := bytes.Cut(text, []byte(`","offset":`))
	digits, ended := bytes.CutSuffix(rest, []byte(`}`))
	if !ok || !closed || !ended || len(digits) == 0 || digits[0] < '0' || digits[0] > '9' {
		return e, false
	}
	offset, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return e, false
	}
	raw := make([]byte, base64.StdEncoding.DecodedLen(len(encoded)))
	n, err := base64.StdEncoding.Decode(raw, encoded)
	return StreamOutput{Data: raw[:n], Offset: offset}, err == nil
}

// output hands out what of some output was not handed out yet.
func (f *follower) output(kind EventType, stream OutputStream, e StreamOutput) error {
	end, ok := behind(e.Offset, len(e.Data))
	if !ok {
		return notPromised(kind)
	}
	if err := f.gap(stream, e.Offset); err != nil {
		return err
	}
	at := f.at.of(stream)
	if end <= *at {
		return nil
	}
	from := *at
	*at = end
	return f.hand(Event{Type: kind, Stream: stream, Offset: from, Data: e.Data[from-e.Offset:]})
}

// gap hands out that output up to an offset is lost, where it is.
func (f *follower) gap(stream OutputStream, to int64) error {
	at := f.at.of(stream)
	if to <= *at {
		return nil
	}
	from := *at
	*at = to
	return f.hand(Event{Type: EventTruncated, Stream: stream, Offset: from, To: to})
}

func (f *follower) hand(e Event) error {
	e.Position = f.at
	if !f.yield(e, nil) {
		return errLeft
	}
	return nil
}

func (f *follower) decode(kind EventType, data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return notPromised(kind)
	}
	return nil
}

func notPromised(kind EventType) error {
	return fmt.Errorf("the stream is not what the API promises: a wrong event %q", kind)
}
