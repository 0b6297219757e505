package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	// keyBuffer is how many keys one read takes: less than the API's message.
	keyBuffer = 4 << 10
	// keysAhead is how many such reads may wait for the node, so that ~. is seen
	// although the program reads nothing.
	keysAhead = 256
	// messageLimit bounds one message of the node, in bytes: its own have 32 KiB.
	messageLimit = 1 << 20
	// dialTimeout bounds the making of a connection.
	dialTimeout = 30 * time.Second
	// closeTimeout is how long the node may take to say goodbye.
	closeTimeout = 2 * time.Second
	// reattachTries is how often a lost connection is made again, which takes
	// about half a minute; steadyTime ends the counting.
	reattachTries = 12
	steadyTime    = 10 * time.Second
	firstPause    = 100 * time.Millisecond
	lastPause     = 5 * time.Second
)

// errDetached says that ~. was typed.
var errDetached = errors.New("detached")

// errFinal marks what to attach again is no use for.
var errFinal = errors.New("final")

type finalError struct{ error }

func (f finalError) Is(target error) bool { return target == errFinal }
func (f finalError) Unwrap() error        { return f.error }

// attachment is this process' terminal at that of an execution. It goes over a
// WebSocket, as each key would else cost a request of its own.
type attachment struct {
	client *microvm.Client
	exe    *microvm.Execution
	local  *terminal
	pause  func(err error, lost int) (time.Duration, bool) // before it is attached again, if so

	// Offsets in the output, run's: behind what was shown, or -1 for the last
	// screen, and of the next byte that comes.
	at, next int64

	keys    chan []byte // from readKeys to send
	offline atomic.Bool // the connection was lost: what is typed goes nowhere
}

// attach stays at the terminal until the execution ends, ~. is typed or ctx is
// over, which detach, or the connection stays lost. from is an offset in the
// output, or -1 for the last screen.
func attach(ctx context.Context, client *microvm.Client, exe *microvm.Execution, local *terminal, from int64) (*microvm.Execution, error) {
	restore, err := local.raw()
	if err != nil {
		return exe, err
	}
	defer restore()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer context.AfterFunc(ctx, restore)() // what follows is for a terminal as it was
	a := &attachment{client: client, exe: exe, local: local, pause: reattachPause, at: from, next: max(from, 0), keys: make(chan []byte, keysAhead)}
	// Not waited for: nothing ends a read of a terminal but a key.
	go a.readKeys(ctx, leave)
	exit, err := a.run(ctx)
	if err != nil {
		return exe, err
	}
	return exit.Of(exe), nil
}

// readKeys takes what is typed.
func (a *attachment) readKeys(ctx context.Context, leave context.CancelCauseFunc) {
	defer a.local.guard()
	var typed escapes
	buffer := make([]byte, keyBuffer)
	for {
		n, err := a.local.in.Read(buffer)
		if err != nil || ctx.Err() != nil {
			leave(&interruption{syscall.SIGHUP}) // the terminal is gone
			return
		}
		pass, help, gone := typed.feed(buffer[:n])
		if help {
			a.local.note("%s", escapesHelp)
		}
		if len(pass) > 0 && !a.offline.Load() {
			select {
			case a.keys <- pass:
			case <-ctx.Done():
				return
			}
		}
		if gone {
			leave(errDetached)
			return
		}
	}
}

// run attaches until the execution's end was told.
func (a *attachment) run(ctx context.Context) (*microvm.StreamExit, error) {
	defer a.local.guard()
	told := false
	for lost := 0; ; lost++ {
		began, before := time.Now(), a.at
		exit, err := a.once(ctx, func() {
			if told {
				a.local.note("attached again")
			}
			told = false
		})
		a.offline.Store(true)
		switch {
		case exit != nil:
			return exit, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case a.at != before || time.Since(began) >= steadyTime:
			lost = 0
		}
		pause, again := a.pause(err, lost)
		if !again || lost >= reattachTries {
			return nil, fmt.Errorf("attach to execution: %w", err)
		}
		if !told {
			a.local.note("the connection is lost%s, the program goes on; attaching again; keys are not sent until then; ~. leaves", because(err))
			told = true
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// because is what the node said when it closed the connection.
func because(err error) string {
	var closed websocket.CloseError
	if errors.As(err, &closed) && closed.Reason != "" {
		return " (" + clean(closed.Reason) + ")"
	}
	return ""
}

// reattachPause says whether to attach again after err, and after how long.
func reattachPause(err error, n int) (time.Duration, bool) {
	pause := min(firstPause<<min(n, 10), lastPause)
	pause = pause/2 + rand.N(pause/2+1) //nolint:gosec // spreads load, guards nothing
	var refused *microvm.Error
	switch errors.As(err, &refused); {
	case errors.Is(err, errFinal):
		return 0, false
	case refused == nil:
		return pause, true
	}
	switch refused.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return max(pause, refused.RetryAfter), refused.RetryAfter <= dialTimeout
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return pause, refused.Code == "" // a proxy whose node restarts
	default:
		return 0, false
	}
}

// once attaches and shows what comes until the end, which it returns, or until
// the connection is lost. attached is called when it is made.
func (a *attachment) once(ctx context.Context, attached func()) (*microvm.StreamExit, error) {
	alive := newPulse()
	defer alive.pause()
	socket, err := a.dial(ctx, alive)
	if err != nil {
		return nil, err
	}
	socket.SetReadLimit(messageLimit)
	// The connection outlives ctx a little, to say goodbye.
	bound, cut := context.WithCancel(context.WithoutCancel(ctx))
	sent := make(chan struct{})
	defer func() { cut(); <-sent }()
	go func() {
		defer close(sent)
		a.send(ctx, bound, socket)
	}()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(closeTimeout):
		case <-bound.Done():
		}
		cut()
	})()
	go alive.watch(bound.Done(), cut)
	a.offline.Store(false)
	attached()
	var exit *microvm.StreamExit
	for {
		// A terminal that is held up is no fault of the node's: only reading counts.
		alive.sign()
		kind, message, err := socket.Read(bound)
		alive.pause()
		switch {
		case exit != nil && err != nil: // the node has closed the connection, as it should
			return exit, nil
		case err != nil:
			return nil, fmt.Errorf("the connection to the terminal was lost: %w", err)
		case exit == nil:
			if exit, err = a.show(kind, message); err != nil {
				return nil, finalError{err}
			}
			if exit != nil {
				defer time.AfterFunc(closeTimeout, cut).Stop()
			}
		}
	}
}

// dial opens the WebSocket at the offset that was reached.
func (a *attachment) dial(ctx context.Context, alive *pulse) (*websocket.Conn, error) {
	base, header, h, err := a.client.Connection()
	if err != nil {
		return nil, err
	}
	address := base + "/v1/sandboxes/" + url.PathEscape(a.exe.Sandbox) + "/executions/" + url.PathEscape(a.exe.ID) + "/terminal"
	if a.at >= 0 {
		address += "?after=" + strconv.FormatInt(a.at, 10)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	socket, reply, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: h, HTTPHeader: header,
		OnPingReceived: func(context.Context, []byte) bool { alive.sign(); return true },
	})
	switch {
	case err == nil:
		return socket, nil
	case reply != nil && reply.StatusCode != http.StatusSwitchingProtocols:
		return nil, microvm.ReadError(reply)
	default:
		return nil, err
	}
}

// show does what a message of the node says. The result is the end, when it is
// told.
func (a *attachment) show(kind websocket.MessageType, message []byte) (*microvm.StreamExit, error) {
	if kind == websocket.MessageBinary {
		known := min(max(a.at-a.next, 0), int64(len(message))) // was shown before
		a.next += int64(len(message))
		a.at = max(a.at, a.next)
		if _, err := a.local.out.Write(message[known:]); err != nil {
			return nil, outputError(fmt.Errorf("write to the terminal: %w", err))
		}
		return nil, nil
	}
	var m struct {
		Type   string `json:"type"`
		Offset int64  `json:"offset"`
		To     int64  `json:"to"`
		microvm.StreamExit
	}
	if err := json.Unmarshal(message, &m); err != nil {
		return nil, errors.New("the terminal's messages are not what the API promises")
	}
	switch m.Type {
	case "position":
		a.move(m.Offset)
	case "truncated":
		a.move(m.To)
	case "exit":
		return &m.StreamExit, nil
	}
	return nil, nil // of a newer node
}

// move goes on at an offset, and says when that leaves something out.
func (a *attachment) move(to int64) {
	if a.at >= 0 && to > a.at {
		a.local.note("%s of output are missing here", bytesOf(to-a.at))
	}
	a.next, a.at = to, max(a.at, to)
}

// send sends the terminal's size and its changes, and what is typed, until bound
// is over; when ctx is, it closes the connection, which detaches.
func (a *attachment) send(ctx, bound context.Context, socket *websocket.Conn) {
	defer a.local.guard()
	changes, stop := a.local.resized()
	defer stop()
	for {
		if !a.sendSize(bound, socket) {
			return
		}
		for resized := false; !resized; {
			select {
			case <-changes:
				resized = true
			case keys := <-a.keys:
				if socket.Write(bound, websocket.MessageBinary, keys) != nil {
					return // whoever reads sees it, too
				}
			case <-ctx.Done():
				for len(a.keys) > 0 { // was typed before
					if socket.Write(bound, websocket.MessageBinary, <-a.keys) != nil {
						return
					}
				}
				_ = socket.Close(websocket.StatusNormalClosure, "")
				return
			case <-bound.Done():
				return
			}
		}
	}
}

func (a *attachment) sendSize(ctx context.Context, socket *websocket.Conn) bool {
	rows, cols, ok := a.local.size()
	if !ok {
		return true
	}
	message, err := json.Marshal(microvm.TerminalResize{Type: microvm.TerminalResizeTypeResize, Rows: rows, Cols: cols})
	return err == nil && socket.Write(ctx, websocket.MessageText, message) == nil
}
