package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/guestwire"
)

const long = guestwire.MaxStdinWait * time.Millisecond // no test waits for its end

// open makes the stdin of a program one that is fed.
func open(start guestwire.Start) guestwire.Start {
	start.StdinOpen = true
	return start
}

// feedAll sends text from offset on, until all is taken.
func (b *box) feedAll(t testing.TB, id string, offset int64, text string, end bool) guestwire.StdinTaken {
	t.Helper()
	for {
		p := text[:min(len(text), guestwire.MaxStdin)]
		taken, err := b.Stdin(t.Context(), id, offset, []byte(p), end && len(p) == len(text), long)
		if err != nil {
			t.Fatal(err)
		}
		text = text[min(int(taken.Offset-offset), len(text)):]
		if offset = taken.Offset; len(text) == 0 {
			return taken
		}
	}
}

// must starts a program.
func (b *box) must(t testing.TB, id string, start guestwire.Start) int {
	t.Helper()
	pid, err := b.begin(t, id, start)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestStdinComesExactlyOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(guestwire.Start{Cmd: "cat"}))
	for _, c := range []struct {
		offset int64
		text   string
		want   int64
	}{
		{0, "hello", 5}, {0, "hello", 5}, {3, "lo wor", 9}, {9, "", 9}, {0, "", 9}, {9, "ld", 11}, {2, "llo", 11},
	} {
		taken, err := b.Stdin(t.Context(), "a", c.offset, []byte(c.text), false, long)
		if err != nil || taken.Offset != c.want || taken.Closed {
			t.Errorf("%q at %d: %+v %v", c.text, c.offset, taken, err)
		}
	}
	if _, err := b.Stdin(t.Context(), "a", 12, []byte("x"), false, long); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("beyond what was taken: %v", err)
	}
	if _, err := b.Stdin(t.Context(), "a", 5, []byte("x"), true, long); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("a close before what was taken: %v", err)
	}
	for range 2 { // a repeat is answered as the first
		if taken, err := b.Stdin(t.Context(), "a", 10, []byte("d!"), true, long); err != nil || taken != (guestwire.StdinTaken{Offset: 12, Closed: true}) {
			t.Errorf("close: %+v %v", taken, err)
		}
	}
	if o := b.finish(t, "a"); string(o.out) != "hello world!" || o.code(t) != 0 {
		t.Errorf("got %q %+v", o.out, o.exit)
	}
	if taken, err := b.Stdin(t.Context(), "a", 12, []byte("more"), false, long); err != nil || taken != (guestwire.StdinTaken{Offset: 16, Closed: true}) {
		t.Errorf("after the end: %+v %v", taken, err)
	}
}

// Whatever is repeated, split or sent late, the program reads each byte once.
func TestStdinAgainstModel(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cases := 0
	rapid.Check(t, func(rt *rapid.T) {
		cases++
		id := fmt.Sprintf("e%d", cases)
		want := pattern(0, 0, rapid.IntRange(0, 300_000).Draw(rt, "size"))
		b.must(t, id, open(guestwire.Start{Cmd: "cat"}))
		for at := int64(0); ; {
			from := rapid.Int64Range(0, at).Draw(rt, "from")
			to := rapid.Int64Range(from, min(from+guestwire.MaxStdin, int64(len(want)))).Draw(rt, "to")
			end := to == int64(len(want)) && rapid.Bool().Draw(rt, "end")
			taken, err := b.Stdin(t.Context(), id, from, want[from:to], end, time.Duration(rapid.IntRange(0, 1).Draw(rt, "wait"))*long)
			if err != nil || taken.Offset < at || taken.Offset > max(at, to) || taken.Closed && !end {
				rt.Fatalf("%d to %d after %d: %+v %v", from, to, at, taken, err)
			}
			if at = taken.Offset; taken.Closed {
				break
			}
		}
		if o := b.finish(t, id); !bytes.Equal(o.out, want) || o.code(t) != 0 {
			rt.Fatalf("%d bytes came out, %d went in", len(o.out), len(want))
		}
		if err := b.Forget(t.Context(), id); err != nil {
			rt.Fatal(err)
		}
	})
	if cases < 200 {
		t.Errorf("only %d cases ran", cases)
	}
}

func TestStdinRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "none", guestwire.Start{Cmd: "sleep", Args: []string{"1000"}})
	b.must(t, "a", open(guestwire.Start{Cmd: "cat"}))
	for id, want := range map[string]guestwire.Code{"none": guestwire.NoStdin, "nobody": guestwire.NoExecution} {
		if _, err := b.Stdin(t.Context(), id, 0, []byte("x"), false, 0); !guestwire.Refused(err, want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := b.Stdin(t.Context(), "a", 0, make([]byte, guestwire.MaxStdin+1), false, 0); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("too much at once: %v", err)
	}
	const good = "?offset=0&close=false&wait_ms=0"
	for request, want := range map[string]int{
		good + " HTTP/1.1\r\nContent-Length: 1\r\n\r\nx":                               200,
		good + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n":    400,
		"?offset=-1&close=false&wait_ms=0 HTTP/1.1\r\n\r\n":                            400,
		"?offset=&close=false&wait_ms=0 HTTP/1.1\r\n\r\n":                              400,
		"?offset=0&close=perhaps&wait_ms=0 HTTP/1.1\r\n\r\n":                           400,
		"?offset=0&close=false&wait_ms=-1 HTTP/1.1\r\n\r\n":                            400,
		"?offset=0&close=false&wait_ms=20001 HTTP/1.1\r\n\r\n":                         400,
		"?offset=9223372036854775808&close=false&wait_ms=0 HTTP/1.1\r\n\r\n":           400,
		"?offset=9223372036854775807&close=true&wait_ms=0 HTTP/1.1\r\n\r\n":            400,
		"?offset=1&close=true&wait_ms=0 HTTP/1.1\r\nContent-Length: 262145\r\n\r\nabc": 400,
	} {
		if status, body, _ := b.exchange(t, "PUT /v1/executions/a/stdin"+request); status != want {
			t.Errorf("%q: %d %s", request, status, body)
		}
	}
}

// A program that does not read gets what fits, and the request returns.
func TestStdinOfAProgramThatDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(script("read go; exec cat")))
	text := "go\n" + strings.Repeat("x", guestwire.MaxStdin-3)
	first, err := b.Stdin(t.Context(), "a", 0, []byte("go"), false, 0)
	if err != nil || first.Offset != 2 {
		t.Fatal(first, err)
	}
	pid := b.must(t, "b", open(guestwire.Start{Cmd: "sleep", Args: []string{"1000"}}))
	full, err := b.Stdin(t.Context(), "b", 0, []byte(text), false, 0)
	if err != nil || full.Offset < 4096 || full.Offset >= int64(len(text)) || full.Closed {
		t.Fatalf("without a wait: %+v %v", full, err)
	}
	const wait = 20 * time.Millisecond
	began := time.Now()
	again, err := b.Stdin(t.Context(), "b", full.Offset, []byte(text[full.Offset:]), true, wait)
	if took := time.Since(began); err != nil || again != full || took < wait {
		t.Errorf("with one: %+v %v after %s", again, err, took)
	}
	// One that waits is told of the end at once.
	done := make(chan guestwire.StdinTaken)
	go func() {
		taken, err := b.Stdin(context.Background(), "b", full.Offset, []byte(text[full.Offset:]), false, long)
		if err != nil {
			t.Error(err)
		}
		done <- taken
	}()
	if err := b.Signal(t.Context(), "b", "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	if taken := <-done; !taken.Closed || taken.Offset != int64(len(text)) {
		t.Errorf("when program %d had ended: %+v", pid, taken)
	}
	b.feedAll(t, "a", 2, "\n", true)
	if o := b.finish(t, "a"); len(o.out) != 0 || o.code(t) != 0 {
		t.Errorf("the other's: %q %+v", o.out, o.exit)
	}
}

// What nobody will read is thrown away, and kills nobody.
func TestStdinThatIsClosedInside(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(script("exec <&-; echo closed; exec sleep 1000")))
	b.until(t, "a", "closed\n")
	for i := range 3 {
		taken, err := b.Stdin(t.Context(), "a", int64(i), []byte("x"), i == 2, long)
		if err != nil || taken != (guestwire.StdinTaken{Offset: int64(i) + 1, Closed: true}) {
			t.Errorf("%d: %+v %v", i, taken, err)
		}
	}
	// A child that holds the pipe does not keep it open for the host.
	b.startAndEnd(t, "b", open(script("exec 3<&0; sleep 1000 <&3 & exit 0")))
	if taken, err := b.Stdin(t.Context(), "b", 0, make([]byte, guestwire.MaxStdin), false, long); err != nil || taken != (guestwire.StdinTaken{Offset: guestwire.MaxStdin, Closed: true}) {
		t.Errorf("after the end: %+v %v", taken, err)
	}
	if err := b.Signal(t.Context(), "b", "SIGKILL"); err != nil {
		t.Error(err)
	}
	if err := b.Echo(t.Context(), "alive"); err != nil {
		t.Error(err)
	}
}

// One request at a time feeds a program; the next waits, but no longer than it
// may.
func TestStdinTakesTurns(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(guestwire.Start{Cmd: "cat"}))
	e, err := b.agent.find("a")
	if err != nil {
		t.Fatal(err)
	}
	e.input.turn <- struct{}{}
	for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
		began := time.Now()
		taken, err := b.Stdin(t.Context(), "a", 0, []byte("abc"), true, wait)
		if err != nil || taken != (guestwire.StdinTaken{}) || time.Since(began) < wait {
			t.Errorf("while another has the turn: %+v %v", taken, err)
		}
	}
	if _, err := b.Stdin(t.Context(), "a", 1, []byte("abc"), true, 0); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("an offset beyond, while another has the turn: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := b.Stdin(context.Background(), "a", 0, []byte("abc"), true, long)
		done <- err
	}()
	<-e.input.turn
	if err := <-done; err != nil {
		t.Error(err)
	}
	if o := b.finish(t, "a"); string(o.out) != "abc" {
		t.Errorf("got %q", o.out)
	}
}

// Of a body that breaks off, what the program got counts.
func TestStdinThatBreaksOff(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(guestwire.Start{Cmd: "cat"}))
	want := string(pattern(0, 0, 200_000))
	conn, err := net.Dial("unix", b.sock)
	if err != nil {
		t.Fatal(err)
	}
	head := "PUT /v1/executions/a/stdin?offset=0&close=true&wait_ms=20000 HTTP/1.1\r\nContent-Length: 200000\r\n\r\n"
	if _, err := io.WriteString(conn, head+want[:150_000]); err != nil {
		t.Fatal(err)
	}
	o := b.until(t, "a", want[:100_000])
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	taken, err := b.Stdin(t.Context(), "a", 0, nil, false, long)
	if err != nil || taken.Closed || taken.Offset < 100_000 || taken.Offset > 150_000 {
		t.Fatalf("got %+v %v", taken, err)
	}
	b.feedAll(t, "a", taken.Offset, want[taken.Offset:], true)
	if o := b.finish(t, "a", o); string(o.out) != want {
		t.Errorf("%d bytes came out, %d went in", len(o.out), len(want))
	}
}

// An agent that is closed waits for no program that does not read.
func TestCloseEndsAFeed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", open(guestwire.Start{Cmd: "sleep", Args: []string{"1000"}}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = b.Stdin(context.Background(), "a", 0, make([]byte, guestwire.MaxStdin), false, long)
	}()
	began := time.Now()
	if err := b.agent.Close(); err != nil {
		t.Error(err)
	}
	<-done
	if took := time.Since(began); took > long/2 {
		t.Errorf("it took %s", took)
	}
}
