package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// TestStreamOnTheWire is the stream byte by byte, and what its header says.
func TestStreamOnTheWire(t *testing.T) {
	s := start(t)
	s.world.feed = newFeed(
		started(214), output(execution.Stdout, 0, "caf\xc3"), output(execution.Stderr, 0, "\x00\xff"),
		output(execution.Stdout, 4, "\xa9\n"), truncated(execution.Stderr, 2, 5000), ended(3),
	)
	got := s.do(t, "GET", streamPath, "")
	const want = `id: 0.0
event: started
data: {"pid":214}

id: 4.0
event: stdout
data: {"data":"Y2Fmww==","offset":0}

id: 4.2
event: stderr
data: {"data":"AP8=","offset":0}

id: 6.2
event: stdout
data: {"data":"qQo=","offset":4}

id: 6.5000
event: truncated
data: {"from":2,"stream":"stderr","to":5000}

id: 6.5000
event: exit
data: {"exit_code":3,"oom_killed":false,"reason":null,"signal":null,"status":"exited","timed_out":false}

`
	if string(got.body) != want {
		t.Errorf("the stream is\n%s, want\n%s", got.body, want)
	}
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s %q", name, got.Header.Get(name))
		}
	}
}

func TestStreamTellsEveryEnding(t *testing.T) {
	code := 0
	for name, test := range map[string]struct {
		e    execution.Execution
		want string
	}{
		"canceled":     {execution.Execution{Status: execution.Canceled, Reason: execution.ByCaller, ExitCode: &code}, `{"exit_code":0,"oom_killed":false,"reason":"canceled","signal":null,"status":"canceled","timed_out":false}`},
		"timed out":    {execution.Execution{Status: execution.TimedOut, Reason: execution.Timeout, Signal: "SIGKILL"}, `{"exit_code":null,"oom_killed":false,"reason":"timeout","signal":"SIGKILL","status":"timed_out","timed_out":true}`},
		"vanished":     {execution.Execution{Status: execution.Vanished, Reason: execution.HostOOM}, `{"exit_code":null,"oom_killed":false,"reason":"host_oom","signal":null,"status":"vanished","timed_out":false}`},
		"failed":       {execution.Execution{Status: execution.Failed, Reason: execution.CommandNotFound}, `{"exit_code":null,"oom_killed":false,"reason":"command_not_found","signal":null,"status":"failed","timed_out":false}`},
		"short memory": {execution.Execution{Status: execution.Exited, Signal: "SIGKILL", OOMKilled: true}, `{"exit_code":null,"oom_killed":true,"reason":null,"signal":"SIGKILL","status":"exited","timed_out":false}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.feed = newFeed(execution.Event{Kind: execution.EventEnded, Execution: test.e})
			if got := s.do(t, "GET", streamPath, ""); !strings.HasSuffix(string(got.body), "event: exit\ndata: "+test.want+"\n\n") {
				t.Errorf("%s", got.body)
			}
		})
	}
}

// TestStreamResumes breaks off behind every event and goes on there, by each way
// of saying where: both parts together are the whole.
func TestStreamResumes(t *testing.T) {
	var binary strings.Builder
	for b := range 256 {
		binary.WriteByte(byte(b))
	}
	inBubble(t, func(t *testing.T, b *bubble) {
		b.world.feed = newFeed(
			started(1), output(execution.Stdout, 0, "a\xf0\x9f"), output(execution.Stderr, 0, binary.String()),
			output(execution.Stdout, 3, "\x98\x80"), output(execution.Stderr, 256, "z"), ended(0),
		)
		read := func(path string, header ...string) []streamed {
			got := b.get(t, path, header...)
			defer got.Body.Close()
			return readEvents(got.Body).all(t)
		}
		whole := read(streamPath)
		if len(whole) != 6 || string(joined(t, whole, "stdout", 0)) != "a\U0001F600" || string(joined(t, whole, "stderr", 0)) != binary.String()+"z" {
			t.Fatalf("the whole is %q", whole)
		}
		for i, event := range whole[:5] {
			rest := whole[i+1:]
			if i == 0 {
				rest = whole // who has seen no output is at the start
			}
			for name, again := range map[string][]streamed{
				"Last-Event-ID": read(streamPath, "Last-Event-ID", event.id),
				"after":         read(streamPath + "?after=" + event.id),
				"both":          read(streamPath+"?after=0.0", "Last-Event-ID", event.id),
			} {
				if !slices.Equal(again, rest) {
					t.Errorf("%s %s: %q, want %q", name, event.id, again, rest)
				}
			}
		}
		// Not only where an event ended: a client may count for itself.
		if part := read(streamPath + "?after=2.100"); string(joined(t, part, "stdout", 2)) != "\x9f\x98\x80" || string(joined(t, part, "stderr", 100)) != binary.String()[100:]+"z" {
			t.Errorf("%q", part)
		}
	})
}

// TestStreamIsThereBeforeItsEvents: the header and each event come at once, and
// in silence a comment every 15 s.
func TestStreamIsThereBeforeItsEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.world.feed = newFeed()
		began := time.Now()
		got := b.get(t, streamPath)
		defer got.Body.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("the header came after %s", took)
		}
		events := readEvents(got.Body)
		next := func(after time.Duration) streamed {
			t.Helper()
			event, err := events.next()
			if err != nil || time.Since(began) != after {
				t.Fatalf("%v after %s, want %s (%v)", event, time.Since(began), after, err)
			}
			return event
		}
		for _, after := range []time.Duration{keepalive, 2 * keepalive} {
			if event := next(after); event.comment == "" || event.name != "" || event.id != "" {
				t.Errorf("%+v", event)
			}
		}
		time.Sleep(time.Second)
		b.world.feed.tell(started(1))
		if event := next(31 * time.Second); event.name != "started" {
			t.Errorf("%+v", event)
		}
		if event := next(46 * time.Second); event.comment == "" {
			t.Errorf("%+v", event)
		}
		b.world.feed.tell(ended(0))
		if event := next(46 * time.Second); event.name != "exit" {
			t.Errorf("%+v", event)
		}
		if _, err := events.next(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream goes on after its end: %v", err)
		}
	})
}

// TestStreamReadersDoNotWaitForEachOther: ten of them, of which one takes
// nothing and one is gone.
func TestStreamReadersDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.world.feed = newFeed()
		stuck := b.get(t, streamPath)
		defer stuck.Body.Close()
		gone := b.get(t, streamPath)
		gone.Body.Close()
		var readers sync.WaitGroup
		var want bytes.Buffer
		for range 8 {
			got := b.get(t, streamPath)
			readers.Go(func() {
				defer got.Body.Close()
				if all := joined(t, readEvents(got.Body).all(t), "stdout", 0); !bytes.Equal(all, want.Bytes()) {
					t.Errorf("a reader got %d bytes", len(all))
				}
			})
		}
		began := time.Now()
		for i := range 200 {
			piece := bytes.Repeat([]byte{byte(i)}, 32<<10)
			b.world.feed.tell(output(execution.Stdout, int64(i*len(piece)), string(piece)))
			want.Write(piece)
		}
		b.world.feed.tell(ended(0))
		readers.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("the others waited %s", took)
		}
	})
}

// TestStreamEndsWithItsReader: one that has gone, at once; one that takes nothing,
// after a bound; nothing of either stays.
func TestStreamEndsWithItsReader(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.world.feed = newFeed(started(1))
			got := b.get(t, streamPath)
			if _, err := readEvents(got.Body).next(); err != nil {
				t.Fatal(err)
			}
			b.ended(t, func() { got.Body.Close() }, 0)
		})
	})
	t.Run("takes nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.world.feed = newFeed()
			conn := b.dial()
			defer conn.Close()
			if _, err := io.WriteString(conn, request("GET", streamPath, "")); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // the header
				t.Fatal(err)
			}
			b.ended(t, func() { b.world.feed.tell(output(execution.Stdout, 0, strings.Repeat("x", 32<<10))) }, writeStall)
		})
	})
}

// ended does what ends the one request under way, and looks for its line in the
// log, which comes after so long and not before.
func (b *bubble) ended(t *testing.T, end func(), after time.Duration) {
	t.Helper()
	over := func() bool { synctest.Wait(); return strings.Contains(b.log.String(), `"msg":"request"`) }
	if over() {
		t.Fatalf("it has ended before:\n%s", b.log)
	}
	end()
	if after > 0 {
		time.Sleep(after - time.Second)
		if over() {
			t.Errorf("it has ended too early:\n%s", b.log)
		}
		time.Sleep(3 * time.Second) // a large write may take longer
	}
	if !over() || !strings.Contains(b.log.String(), `"caller_gone":true`) {
		t.Errorf("after %s it goes on:\n%s", after, b.log)
	}
}

// TestStreamThatBreaksOff says why and what to do, shows nothing of the cause,
// and moves no client's position.
func TestStreamThatBreaksOff(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		code    gen.ErrorCode
		message string
		cause   string
	}{
		"stopping": {fault.New(fault.ShuttingDown, "x"), gen.ErrorCodeShuttingDown, "the daemon is stopping; the execution goes on; reconnect with Last-Event-ID", ""},
		"internal": {errors.New("read /secret/place"), gen.ErrorCodeInternalError, "an internal error happened; the daemon's log has it under this request id", "read /secret/place"},
		"guest":    {fault.Wrap(errors.New("agent x"), fault.GuestUnreachable, "the guest does not answer"), gen.ErrorCodeGuestUnreachable, "the guest does not answer", "agent x"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.feed = newFeed(output(execution.Stdout, 0, "a"))
			s.world.feed.fail(test.err)
			got := s.do(t, "GET", streamPath, "")
			events := readEvents(bytes.NewReader(got.body)).all(t)
			last := events[len(events)-1]
			var wire gen.StreamError
			last.decode(t, &wire)
			if last.name != "error" || last.id != "" || wire.Code != test.code || wire.Message != test.message {
				t.Errorf("%+v", last)
			}
			if bytes.Contains(got.body, []byte("/secret/")) {
				t.Error("the cause was sent")
			}
			s.Close() // the log is whole
			if log := s.log.String(); !strings.Contains(log, test.cause) || !strings.Contains(log, `"code":"`+string(test.code)+`"`) {
				t.Errorf("the log lacks the cause or the code:\n%s", log)
			}
		})
	}
}

// TestShutdownEndsStreams: a server that stops waits for no program.
func TestShutdownEndsStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.world.feed = newFeed(started(1))
		got := b.get(t, streamPath)
		defer got.Body.Close()
		events := readEvents(got.Body)
		if event, err := events.next(); err != nil || event.name != "started" {
			t.Fatal(event, err)
		}
		began := time.Now()
		var stopping sync.WaitGroup
		stopping.Go(func() {
			if err := b.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
		event, err := events.next()
		if err != nil || event.name != "error" || !strings.Contains(event.data, "reconnect with Last-Event-ID") {
			t.Errorf("%+v %v", event, err)
		}
		if rest := events.all(t); len(rest) > 0 {
			t.Errorf("%+v", rest)
		}
		stopping.Wait()
		if took := time.Since(began); took > time.Second { // net/http looks now and then
			t.Errorf("it took %s", took)
		}
	})
}

// TestNoStreamBeginsAtTheEnd: a request that got in before the listeners closed.
func TestNoStreamBeginsAtTheEnd(t *testing.T) {
	s := start(t)
	s.Config.Handler.(*server).watches.stop()
	for path, edit := range map[string]func(*http.Request){streamPath: func(*http.Request) {}, terminalPath: handshake} {
		s.world.exe.TTY = true
		got := s.do(t, "GET", path, "", edit)
		if detail := got.fault(t); got.StatusCode != http.StatusServiceUnavailable || detail.Code != gen.ErrorCodeShuttingDown || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %+v", path, got.StatusCode, detail)
		}
	}
}
