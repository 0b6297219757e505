package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	vsockWait  = 20 * time.Second       // for a connection to a guest's port, all tries
	vsockTry   = 5 * time.Second        // for one try: silence is one form of failure
	vsockFirst = 10 * time.Millisecond  // between two tries, at least
	vsockLast  = 250 * time.Millisecond // and at most
	vsockShare = 4                      // in between, the part of the time so far: a guest that comes up is reached at most so much later
	vsockDials = 8                      // connections to one guest that are made at once
	maxOK      = 32                     // bytes of the line "OK <port>"
)

// vsock makes connections to one port of one guest. A guest that does not answer
// (it may have ended its agent) costs its VMM and the host few tries, however many
// callers want to reach it: with dials and pauses as they are, 32 a second.
type vsock struct {
	dial   func(context.Context) (net.Conn, error) // to Firecracker's socket
	port   int
	places chan struct{} // one for each connection in the making
}

func newVsock(dial func(context.Context) (net.Conn, error), port int) *vsock {
	return &vsock{dial: dial, port: port, places: make(chan struct{}, vsockDials)}
}

// connect makes a connection, in its turn.
func (v *vsock) connect(ctx context.Context) (net.Conn, error) {
	select {
	case v.places <- struct{}{}:
		defer func() { <-v.places }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // a place that came with it is too late
		return nil, fmt.Errorf("connect to guest port %d: %w (%d others were being made all the time)", v.port, context.Cause(ctx), vsockDials)
	}
	return dialVsock(ctx, v.dial, v.port)
}

// dialVsock connects to a port of a guest through Firecracker's socket
// (docs/vsock.md there): "CONNECT <port>\n" in one write, "OK <n>\n" read byte
// by byte, since what follows is the stream. Silence and an end of file are how
// a failure looks, so both are tried again until the context ends; any other
// answer is an error at once.
func dialVsock(ctx context.Context, dial func(context.Context) (net.Conn, error), port int) (net.Conn, error) {
	for began := time.Now(); ; {
		conn, err := tryVsock(ctx, dial, port)
		if err == nil {
			return conn, nil
		}
		var silent *silentError
		if !errors.As(err, &silent) {
			return nil, fmt.Errorf("connect to guest port %d: %w", port, err)
		}
		wait := time.NewTimer(min(max(time.Since(began)/vsockShare, vsockFirst), vsockLast))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil, fmt.Errorf("connect to guest port %d: %w (last try: %w)", port, context.Cause(ctx), err)
		case <-wait.C:
		}
	}
}

// silentError is a failure that another try may mend.
type silentError struct{ cause error }

func (e *silentError) Error() string { return "no answer: " + e.cause.Error() }
func (e *silentError) Unwrap() error { return e.cause }

func tryVsock(ctx context.Context, dial func(context.Context) (net.Conn, error), port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, vsockTry)
	defer cancel()
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := shakeHands(ctx, conn, port); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func shakeHands(ctx context.Context, conn net.Conn, port int) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err := io.WriteString(conn, "CONNECT "+strconv.Itoa(port)+"\n")
	if err != nil {
		stop()
		return &silentError{err}
	}
	line, err := readLine(conn, maxOK)
	if !stop() { // the deadline is set, or about to be
		return &silentError{context.Cause(ctx)}
	}
	switch {
	case errors.Is(err, errTooLong):
		return fmt.Errorf("%w: not the answer of a vsock device", err)
	case err != nil:
		return &silentError{err}
	}
	number, ok := strings.CutPrefix(line, "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
		return fmt.Errorf("answer %q is not that of a vsock device", line)
	}
	return nil
}
