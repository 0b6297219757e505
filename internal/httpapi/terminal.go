package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// Bounds of one terminal.
const (
	defaultTail  = 64 << 10         // bytes of output that are replayed
	maxMessage   = 64 << 10         // bytes of a client's message
	typedAhead   = 4                // messages that wait for the program to read; then the client waits
	sendTimeout  = 30 * time.Second // a client that does not take a message for this long is cut off
	pongTimeout  = 30 * time.Second // as one that does not answer a ping
	holdTimeout  = 15 * time.Minute // for a program to read what was typed, until its client is sent away
	drainTimeout = 10 * time.Second // after a client has gone, for what it had typed
	closeTimeout = 5 * time.Second  // for the client's part in closing
)

// OpenTerminal is GET /v1/sandboxes/{sandbox}/executions/{execution}/terminal.
func (s *server) OpenTerminal(ctx context.Context, r gen.OpenTerminalRequestObject) (gen.OpenTerminalResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	if r.Params.After != nil && r.Params.Tail != nil {
		return nil, fault.Param("tail", "tail and after both say where to begin; send one of them")
	}
	x := exchangeOf(ctx)
	if err := checkHandshake(x.request); err != nil {
		return nil, err
	}
	found, err := s.Executions.Wait(ctx, r.Sandbox, r.Execution, 0)
	if err != nil {
		return nil, err
	}
	if !found.TTY {
		return nil, execution.NotTTY()
	}
	from, err := s.replayFrom(r, found)
	if err != nil {
		return nil, err
	}
	follower, err := s.Attached.Follow(ctx, r.Sandbox, r.Execution, execution.Position{Stdout: from})
	if err != nil {
		return nil, err
	}
	return s.watch(ctx, func(bound context.Context, w http.ResponseWriter) error {
		socket, err := websocket.Accept(w, x.request, &websocket.AcceptOptions{InsecureSkipVerify: true}) // see checkHandshake
		if err != nil {
			return err
		}
		t := &terminal{
			s: s, x: x, sandbox: r.Sandbox, id: r.Execution, socket: socket, follower: follower,
			from: from, typed: make(chan []byte, typedAhead),
		}
		t.run(bound)
		return nil
	}), nil
}

// replayFrom is the offset at which a client that attaches begins.
func (s *server) replayFrom(r gen.OpenTerminalRequestObject, found execution.Execution) (int64, error) {
	if r.Params.After != nil {
		return *r.Params.After, nil
	}
	tail := int64(defaultTail)
	if r.Params.Tail != nil {
		tail = int64(*r.Params.Tail)
	}
	output, err := s.Executions.Output(found)
	if err != nil {
		return 0, err
	}
	begin := output.Stdout.Offset
	return max(begin, begin+int64(len(output.Stdout.Bytes))-tail), nil
}

// terminal is one client at the terminal of an execution. Four goroutines serve
// it: show writes output, read takes messages, feed hands input to the program,
// and ping finds out whether the client is still there. show's is the request's;
// it waits for the others.
type terminal struct {
	s           *server
	x           *exchange
	sandbox, id string
	socket      *websocket.Conn
	follower    Follower
	from        int64        // where the replay begins
	typed       chan []byte  // from read to feed
	sent        atomic.Int64 // bytes, by show and by ping

	// held is odd while read waits for the program or the guest. It takes no answer
	// to a ping then, and the client, which cannot write, may have none to give.
	held atomic.Int64
}

// errPanicked is what ends a terminal of which a goroutine panicked.
var errPanicked = errors.New("a goroutine of the terminal panicked")

// How a terminal ends that no message of the client's ended.
var (
	endDetached = &closing{code: websocket.StatusNormalClosure}
	endOver     = &closing{code: websocket.StatusNormalClosure, reason: "the execution has ended"}
	endVanished = &closing{code: websocket.StatusPolicyViolation, reason: "nobody takes the output or answers a ping"}
	endUnread   = &closing{code: websocket.StatusTryAgainLater, reason: "the program has not read its input for 15 minutes; what is typed is lost; attach again"}
	endGoing    = &closing{code: websocket.StatusGoingAway, reason: "the daemon is stopping; the execution goes on; attach again with after"}
)

// run serves the client until one side ends it. What the client has typed before
// it went still reaches the program.
func (t *terminal) run(ctx context.Context) {
	t.socket.SetReadLimit(-1) // read has a bound that tells the client more
	showing, end := context.WithCancelCause(ctx)
	defer end(nil)
	// The library drops a connection when the context of a read or write ends,
	// and the client would not be told why: both go on until the socket is closed.
	talking, drop := context.WithCancel(context.WithoutCancel(ctx))
	defer drop()
	defer func() { _ = t.socket.CloseNow() }() // closed already, but after a panic
	var others sync.WaitGroup
	beside := func(do func()) {
		others.Go(func() {
			defer func() { // as of a request's own goroutine: it ends this terminal and nothing else
				if cause := recover(); cause != nil {
					t.s.logPanic(ctx, t.x, cause)
					end(failed(talking, errPanicked))
				}
			}()
			do()
		})
	}
	beside(func() {
		defer close(t.typed)
		end(t.read(talking))
	})
	beside(func() { t.feed(talking, end) })
	beside(func() { t.ping(showing, talking, end) })

	end(t.show(showing, talking))
	how := whyEnded(showing)
	t.close(how)
	drain := time.AfterFunc(drainTimeout, drop)
	defer drain.Stop()
	others.Wait()
	t.x.bytes += t.sent.Load()
	if how.fault != nil {
		t.s.logCause(ctx, t.x, how.fault)
	}
}

// whyEnded is the first cause of an end.
func whyEnded(showing context.Context) *closing {
	cause := context.Cause(showing)
	var how *closing
	switch {
	case errors.As(cause, &how):
		return how
	case errors.Is(cause, errStopping):
		return endGoing
	default:
		return endDetached
	}
}

// close ends the socket, telling the client why. The library reads on until the
// client has answered; the deadline bounds that, whatever the client sends.
func (t *terminal) close(how *closing) {
	if how == endVanished {
		t.x.gone = true
		_ = t.socket.CloseNow() // it is closed already, or is now
		return
	}
	_ = t.x.conn.SetDeadline(time.Now().Add(closeTimeout)) // a closed one needs none
	_ = t.socket.Close(how.code, how.reason)               // as well as the client lets us
}

// show writes the output until ctx ends, and returns how the terminal ends.
func (t *terminal) show(ctx, talking context.Context) *closing {
	how := t.tell(talking, gen.TerminalPosition{Type: gen.TerminalPositionTypePosition, Offset: t.from})
	for how == nil {
		event, err := t.follower.Next(ctx)
		if err != nil {
			return failed(ctx, err)
		}
		how = t.pass(talking, event)
	}
	return how
}

// pass hands one event to the client. A terminal has one stream: a guest that
// tells of another lies, and is not shown.
func (t *terminal) pass(ctx context.Context, event execution.Event) *closing {
	switch {
	case event.Kind == execution.EventEnded:
		e := wireExit(event.Execution)
		how := t.tell(ctx, gen.TerminalExit{
			Type: gen.TerminalExitTypeExit, ExitCode: e.ExitCode, Signal: e.Signal, TimedOut: e.TimedOut,
			OOMKilled: e.OOMKilled, Status: e.Status, Reason: e.Reason,
		})
		if how != nil {
			return how
		}
		return endOver
	case event.Stream != execution.Stdout:
		return nil
	case event.Kind == execution.EventTruncated:
		how := t.tell(ctx, gen.TerminalTruncated{Type: gen.TerminalTruncatedTypeTruncated, From: event.Offset, To: event.To})
		if how != nil {
			return how
		}
		return t.tell(ctx, gen.TerminalPosition{Type: gen.TerminalPositionTypePosition, Offset: event.To})
	default:
		return t.send(ctx, websocket.MessageBinary, event.Data)
	}
}

func (t *terminal) tell(ctx context.Context, message any) *closing {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // numbers and our own strings: cannot happen
	}
	return t.send(ctx, websocket.MessageText, text)
}

func (t *terminal) send(ctx context.Context, kind websocket.MessageType, message []byte) *closing {
	bound, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := t.socket.Write(bound, kind, message); err != nil {
		return endVanished
	}
	t.sent.Add(int64(len(message)))
	return nil
}

// failed is how an error of the execution's side ends a terminal.
func failed(ctx context.Context, err error) *closing {
	if ctx.Err() != nil {
		return whyEnded(ctx)
	}
	f := fault.From(err)
	switch f.Kind() {
	case fault.Unavailable:
		return endGoing
	case fault.GuestLost:
		return &closing{websocket.StatusInternalError, "the guest does not answer; get the sandbox to see whether it still runs", f}
	default:
		return &closing{websocket.StatusInternalError, "an internal error happened; the execution goes on; attach again with after", f}
	}
}

// refused is how an error of what the client sent ends a terminal. An execution
// that has ended takes no more, and show is telling so.
func refused(ctx context.Context, err error) *closing {
	if err == nil || fault.Is(err, fault.ExecutionNotRunning) {
		return nil
	}
	return failed(ctx, err)
}

// read takes the client's messages, and returns how the terminal ends.
func (t *terminal) read(ctx context.Context) *closing {
	for {
		kind, content, err := t.socket.Reader(ctx)
		if err != nil {
			return endDetached
		}
		message, err := io.ReadAll(io.LimitReader(content, maxMessage+1))
		switch {
		case err != nil:
			return endDetached
		case len(message) > maxMessage:
			return tooLong
		}
		take := t.resize
		if kind == websocket.MessageBinary {
			take = t.hand
		}
		if how := take(ctx, message); how != nil {
			return how
		}
	}
}

// hand gives feed what was typed. When the program does not read, the client
// waits.
func (t *terminal) hand(ctx context.Context, message []byte) *closing {
	select {
	case t.typed <- message:
		return nil
	default:
	}
	t.held.Add(1)
	defer t.held.Add(1)
	over := time.NewTimer(holdTimeout)
	defer over.Stop()
	select {
	case t.typed <- message:
		return nil
	case <-over.C:
		return endUnread
	case <-ctx.Done():
		return endDetached
	}
}

func (t *terminal) resize(ctx context.Context, message []byte) *closing {
	size, how := decodeResize(message)
	if how != nil {
		return how
	}
	t.held.Add(1)
	defer t.held.Add(1)
	return refused(ctx, t.s.Attached.Resize(ctx, t.sandbox, t.id, size))
}

// feed hands what was typed to the program, until read ends.
func (t *terminal) feed(ctx context.Context, end context.CancelCauseFunc) {
	in := t.s.inputs.open(t.sandbox, t.id)
	defer in.leave()
	failed := false
	for data := range t.typed {
		if failed {
			continue // nothing may be typed behind what was lost
		}
		if how := refused(ctx, in.typed(ctx, data)); how != nil {
			failed = true
			end(how)
		}
	}
}

// ping ends a terminal whose client answers none.
func (t *terminal) ping(ctx, talking context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		held := t.held.Load()
		if held%2 == 1 {
			if how := t.tell(talking, gen.TerminalWaiting{Type: gen.TerminalWaitingTypeWaiting}); how != nil {
				end(how)
				return
			}
			continue
		}
		bound, cancel := context.WithTimeout(talking, pongTimeout)
		err := t.socket.Ping(bound)
		silent := err != nil && errors.Is(bound.Err(), context.DeadlineExceeded)
		cancel()
		if silent && t.held.Load() == held {
			end(endVanished)
			return
		}
	}
}
