package firecracker

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// device makes a dial function whose n-th connection is served by the n-th
// function; the last serves all that follow.
func device(serve ...func(net.Conn)) (dial func(context.Context) (net.Conn, error), tries *int) {
	tries = new(int)
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		f := serve[min(*tries, len(serve)-1)]
		*tries++
		go func() {
			defer func() { _ = theirs.Close() }()
			f(theirs)
		}()
		return ours, nil
	}, tries
}

// connect reads the request, which must come in one write, and answers.
func connect(answer ...string) func(net.Conn) {
	return func(c net.Conn) {
		var buf [64]byte
		n, err := c.Read(buf[:])
		if err != nil || string(buf[:n]) != "CONNECT 1024\n" {
			return
		}
		for _, piece := range answer {
			_, _ = io.WriteString(c, piece)
		}
		_, _ = io.Copy(io.Discard, c)
	}
}

func silent(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
func hangUp(net.Conn)   {}

func TestVsockConnects(t *testing.T) {
	for name, serve := range map[string][]func(net.Conn){
		"at once":       {connect("OK 1073741824\nstream")},
		"byte by byte":  {connect("O", "K", " ", "7", "\n", "stream")},
		"after EOF":     {hangUp, hangUp, connect("OK 1\nstream")},
		"after silence": {silent, connect("OK 1\nstream")},
		"after a half":  {connect("OK "), connect("OK 1\nstream")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, tries := device(serve...)
				ctx, cancel := context.WithTimeout(t.Context(), vsockWait)
				defer cancel()
				conn, err := dialVsock(ctx, dial, 1024)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				if *tries != len(serve) {
					t.Errorf("%d tries, want %d", *tries, len(serve))
				}
				time.Sleep(time.Minute) // virtual: no deadline may be left on the stream
				var buf [6]byte
				if _, err := io.ReadFull(conn, buf[:]); err != nil || string(buf[:]) != "stream" {
					t.Errorf("the stream starts with %q: %v", buf, err)
				}
			})
		})
	}
}

func TestVsockGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
		after time.Duration // at most
	}{
		"silence":        {silent, "deadline exceeded", vsockWait},
		"end of file":    {hangUp, "deadline exceeded", vsockWait},
		"garbage":        {connect("HTTP/1.1 400 Bad\n"), "is not that of a vsock device", 0},
		"no number":      {connect("OK x\n"), "is not that of a vsock device", 0},
		"huge line":      {connect(strings.Repeat("O", 1<<16)), "line is too long", 0},
		"endless digits": {connect("OK " + strings.Repeat("1", 100) + "\n"), "line is too long", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, _ := device(c.serve)
				ctx, cancel := context.WithTimeout(t.Context(), vsockWait)
				defer cancel()
				began := time.Now()
				_, err := dialVsock(ctx, dial, 1024)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("want %q, got %v", c.want, err)
				}
				if took := time.Since(began); took > c.after {
					t.Errorf("took %v, want at most %v", took, c.after)
				}
			})
		})
	}
}

// TestVsockTriesLessAndLess: a guest without an agent is asked at growing pauses,
// and one that comes back is reached soon.
func TestVsockTriesLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pauses []time.Duration
		last := time.Now()
		back := last.Add(24 * time.Hour)
		dial := func(context.Context) (net.Conn, error) {
			pauses, last = append(pauses, time.Since(last)), time.Now()
			ours, theirs := net.Pipe()
			answer := hangUp
			if !time.Now().Before(back) {
				answer = connect("OK 1\n")
			}
			go func() { defer func() { _ = theirs.Close() }(); answer(theirs) }()
			return ours, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), vsockWait)
		defer cancel()
		if _, err := dialVsock(ctx, dial, 1024); err == nil {
			t.Fatal("connected to nothing")
		}
		var sum time.Duration
		for _, pause := range pauses {
			if sum += pause; pause > max(vsockFirst, sum/vsockShare) || pause > vsockLast {
				t.Errorf("a pause of %s after %s: a guest that comes up waits for it", pause, sum)
			}
		}
		if len(pauses) > 110 { // it was one each 10 ms once
			t.Errorf("%d tries in %s", len(pauses), vsockWait)
		}
		began := time.Now()
		back = began.Add(10 * time.Second)
		ctx, cancel = context.WithTimeout(t.Context(), vsockWait)
		defer cancel()
		conn, err := dialVsock(ctx, dial, 1024)
		if took := time.Since(began); err != nil || took < 10*time.Second || took > 10*time.Second+vsockLast {
			t.Fatalf("connected after %s: %v", took, err)
		}
		_ = conn.Close()
		synctest.Wait()
	})
}

// TestVsockBoundsDials: many callers of a silent guest hold few connections, those
// that get no turn end with their contexts, and a guest that answers serves all.
func TestVsockBoundsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialed := &counted{}
		serve := silent
		v := newVsock(func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { defer func() { _ = theirs.Close() }(); serve(theirs) }()
			return dialed.conn(ours), nil
		}, 1024)
		const callers = 200
		ask := func() (failed int) {
			results := make(chan error, callers)
			ctx, cancel := context.WithTimeout(t.Context(), vsockWait)
			defer cancel()
			for range callers {
				go func() {
					conn, err := v.connect(ctx)
					if err == nil {
						_ = conn.Close()
					}
					results <- err
				}()
			}
			for range callers {
				if err := <-results; err != nil {
					failed++
				}
			}
			return failed
		}
		began := time.Now()
		if failed := ask(); failed != callers || time.Since(began) != vsockWait {
			t.Errorf("%d of %d failed after %s", failed, callers, time.Since(began))
		}
		if dialed.most != vsockDials || dialed.now != 0 || dialed.all > vsockDials*int(vsockWait/vsockTry) {
			t.Errorf("%+v", dialed)
		}
		serve = connect("OK 1\n")
		if failed := ask(); failed != 0 || dialed.now != 0 {
			t.Errorf("%d failed with a guest that answers, %+v", failed, dialed)
		}
		synctest.Wait()
	})
}

// counted counts connections.
type counted struct {
	mu             sync.Mutex
	now, most, all int // guarded by mu
}

type countedConn struct {
	net.Conn
	close func()
}

func (c *counted) conn(inner net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.all++
	c.most = max(c.most, c.now)
	return countedConn{inner, sync.OnceFunc(func() { c.mu.Lock(); c.now--; c.mu.Unlock() })}
}

func (c countedConn) Close() error { c.close(); return c.Conn.Close() }

func TestVsockWithoutDeviceFailsAtOnce(t *testing.T) {
	gone := errors.New("no such jail")
	_, err := dialVsock(t.Context(), func(context.Context) (net.Conn, error) { return nil, gone }, 1024)
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
