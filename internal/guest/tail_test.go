package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/guestwire"
)

// pattern is what the tests write at an offset of a stream.
func pattern(stream int, offset int64, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		at := offset + int64(i)
		p[i] = byte(at ^ at>>8 ^ at>>16 ^ int64(stream)*0x5a)
	}
	return p
}

// A tail against a model that remembers everything: what it gives is what was
// written there, the newest bytes are always among it, and nothing is kept
// beyond the bounds.
func TestTailAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		free := rapid.Int64Range(0, 3<<20).Draw(t, "budget")
		b := &budget{free: free}
		tails := [2]tail{{budget: b}, {budget: b}}
		var acked [2]int64
		buf := make([]byte, guestwire.KeepBytes+1)
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			s := &tails[i]
			if rapid.Bool().Draw(t, "write") {
				n := rapid.SampledFrom([]int{1, 100, 4096, 4097, 65536, 1 << 20, 1<<20 + 7}).Draw(t, "n")
				s.write(pattern(i, s.end, n))
			} else {
				acked[i] = rapid.Int64Range(acked[i], s.end).Draw(t, "ack")
				s.ack(acked[i])
			}
			n, from := s.read(buf, acked[i])
			if from+int64(n) != s.end || !bytes.Equal(buf[:n], pattern(i, from, n)) {
				t.Fatalf("read %d bytes at %d of a stream that ends at %d", n, from, s.end)
			}
			if from > acked[i] && n < minTail || n > guestwire.KeepBytes {
				t.Fatalf("kept %d bytes", n)
			}
			if free >= 2*guestwire.KeepBytes && from > acked[i] && n != guestwire.KeepBytes {
				t.Fatalf("bytes fell at %d though there was room", n)
			}
			if b.free < 0 || b.free+tails[0].charged()+tails[1].charged()-2*minTail != free {
				t.Fatalf("budget is off: free %d", b.free)
			}
		}
	})
}

// cutConn breaks after a number of bytes from the agent.
type cutConn struct {
	net.Conn
	left *atomic.Int64
	cuts *atomic.Int64 // how often that happened
}

func (c cutConn) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		c.cuts.Add(1)
		_ = c.Close()
		return 0, errors.New("cut")
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// Pulls that are cut anywhere and go on from what was stored: no byte comes
// twice, none is missing while the host stays within the bound, and the exit
// comes once all is there.
func TestPullSurvivesCuts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var left, cuts atomic.Int64
	client := newClient(t, b.sock, func(c net.Conn) net.Conn { return cutConn{c, &left, &cuts} })
	cases, failures := 0, int64(0)
	rapid.Check(t, func(t *rapid.T) {
		cases++
		e, mine, err := b.agent.claim("fed")
		if err != nil || !mine {
			t.Fatal(err)
		}
		e.pid = 7
		close(e.started)
		defer func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.streams[0].release()
			e.streams[1].release()
			b.agent.disown(e)
		}()
		var stored [2]int64
		sink := func(f guestwire.Frame) error {
			i := int(f.Type - guestwire.StdoutFrame)
			if f.Offset != stored[i] {
				t.Fatalf("stream %d: frame at %d, stored to %d", i, f.Offset, stored[i])
			}
			if !bytes.Equal(f.Payload, pattern(i, f.Offset, len(f.Payload))) {
				t.Fatalf("stream %d: other bytes at %d", i, f.Offset)
			}
			stored[i] += int64(len(f.Payload))
			return nil
		}
		pull := func(cut int64) *guestwire.Exit {
			left.Store(cut)
			exit, err := client.Pull(context.Background(), "fed", guestwire.Pull{Stdout: stored[0], Stderr: stored[1]}, guestwire.Sink{Output: sink})
			if err != nil {
				// A connection may be cut when it is idle, and fail the next pull.
				if failures++; failures > cuts.Load() {
					t.Fatal(err)
				}
			}
			if err != nil && errors.Is(err, guestwire.ErrProtocol) {
				t.Fatalf("a cut is taken for a broken protocol: %v", err)
			}
			return exit
		}
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			written := e.streams[i].end
			if n := min(rapid.IntRange(0, 300_000).Draw(t, "n"), guestwire.KeepBytes-int(written-stored[i])); n > 0 {
				e.append(i, pattern(i, written, n))
			}
			if pull(rapid.Int64Range(1, 800_000).Draw(t, "cut")) != nil {
				t.Fatal("exit before the end")
			}
		}
		code := 7
		e.mu.Lock()
		e.status = &guestwire.Exit{ExitCode: &code, StdoutBytes: e.streams[0].end, StderrBytes: e.streams[1].end}
		e.mu.Unlock()
		for range 8 {
			if exit := pull(1 << 30); exit != nil {
				if stored[0] != exit.StdoutBytes || stored[1] != exit.StderrBytes || *exit.ExitCode != 7 {
					t.Fatalf("stored %v, exit %+v", stored, exit)
				}
				return
			}
		}
		t.Fatal("the exit never came")
	})
	if cases < 200 {
		t.Errorf("only %d cases ran", cases)
	}
}

func TestPullRefusesWhatWasNeverWritten(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.startAndEnd(t, "a", script("echo hi"))
	for _, pull := range []guestwire.Pull{{Stdout: 4}, {Stderr: 1}, {Stdout: -1}, {WaitMS: -1}, {WaitMS: guestwire.MaxPullWait + 1}} {
		_, err := b.Pull(t.Context(), "a", pull, guestwire.Sink{Output: func(guestwire.Frame) error { return io.EOF }})
		if !guestwire.Refused(err, guestwire.BadRequest) {
			t.Errorf("%+v: %v", pull, err)
		}
	}
}
