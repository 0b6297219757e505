package guest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

// The host knows of the start while the program still thinks.
func TestStartedIsToldAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	calls := 0
	start := guestwire.Start{Cmd: "sleep", Args: []string{"1000"}, Pull: guestwire.Pull{WaitMS: guestwire.MaxPullWait}}
	exit, err := b.Start(t.Context(), "a", start, guestwire.Sink{Started: func(s guestwire.Started) {
		calls++
		e, err := b.agent.find("a")
		if err != nil || s.PID != e.pid {
			t.Errorf("pid %d: %v", s.PID, err)
		}
		if err := b.Signal(t.Context(), "a", "SIGKILL"); err != nil {
			t.Error(err)
		}
	}})
	if err != nil || exit == nil || exit.Signal != "SIGKILL" || calls != 1 {
		t.Errorf("%+v %v, told %d times", exit, err, calls)
	}
}

// A start goes on to the end of a program that is fast.
func TestStartIsAlsoAPull(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var o outcome
	start := script("echo out; echo err >&2; exit 7")
	start.Pull.WaitMS = guestwire.MaxPullWait
	exit, err := b.Start(t.Context(), "a", start, guestwire.Sink{Output: o.take})
	for err == nil && exit == nil {
		exit, err = b.Pull(t.Context(), "a", guestwire.Pull{Stdout: o.stdoutNext, Stderr: o.stderrNext, WaitMS: guestwire.MaxPullWait}, guestwire.Sink{Output: o.take})
	}
	if err != nil || string(o.out) != "out\n" || string(o.err) != "err\n" || *exit.ExitCode != 7 {
		t.Errorf("%q %q %+v %v", o.out, o.err, exit, err)
	}
	start.Pull = guestwire.Pull{Stdout: 5}
	if _, err := b.Start(t.Context(), "a", start, guestwire.Sink{}); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("an offset beyond what was written: %v", err)
	}
}

// countedConn counts what the agent writes.
type countedConn struct {
	net.Conn
	writes *[]string
}

func (c countedConn) Write(p []byte) (int, error) {
	*c.writes = append(*c.writes, string(p))
	return c.Conn.Write(p)
}

// connTransport makes one request after the other on one connection.
type connTransport struct{ net.Conn }

func (c connTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Write(c.Conn); err != nil {
		return nil, err
	}
	reply, err := http.ReadResponse(bufio.NewReader(c.Conn), r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(reply.Body)
	reply.Body = io.NopCloser(bytes.NewReader(body))
	return reply, err
}

// Each write to the host costs the guest a way out of its virtual machine: what
// can be said at once is said in one.
func TestRepliesAreWrittenAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var writes []string
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.agent.serve(countedConn{theirs, &writes})
	}()
	b.startAndEnd(t, "ended", script("echo out"))
	b.must(t, "silent", guestwire.Start{Cmd: "sleep", Args: []string{"1000"}})
	client := guestwire.NewClient(connTransport{ours})
	for _, c := range []struct {
		id     string
		waitMS int
		want   int
	}{{"ended", 1000, 1}, {"silent", 0, 1}, {"silent", 1, 2}} {
		writes = nil
		if _, err := client.Pull(t.Context(), c.id, guestwire.Pull{WaitMS: c.waitMS}, guestwire.Sink{Output: func(guestwire.Frame) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		if len(writes) != c.want {
			t.Errorf("%s, wait %d: %d writes: %q", c.id, c.waitMS, len(writes), writes)
		}
	}
	_ = ours.Close()
	<-done
}
