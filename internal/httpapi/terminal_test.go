package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// onTerminal makes the world's execution one that runs on a terminal and has
// written nothing.
func (b *bubble) onTerminal() {
	b.world.exe.TTY, b.world.exe.StdinOpen = true, true
	b.world.exe.Status, b.world.exe.ExitCode, b.world.exe.Finished = execution.Running, nil, time.Time{}
	b.world.output = execution.Output{}
	b.world.feed = newFeed(started(214))
}

// screen is a client at a terminal. It reads all the time, and so answers pings.
type screen struct {
	*websocket.Conn
	t        *testing.T
	messages chan string
	waiting  atomic.Int32 // messages that say that the program does not read
}

func (b *bubble) attach(t *testing.T, query string) *screen {
	t.Helper()
	options := &websocket.DialOptions{HTTPClient: b.client, HTTPHeader: http.Header{}}
	if !strings.Contains(query, "ticket=") {
		options.HTTPHeader.Set("Authorization", "Bearer "+goodToken)
	}
	conn, _, err := websocket.Dial(t.Context(), "ws://x"+terminalPath+query, options)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	s := &screen{Conn: conn, t: t, messages: make(chan string, 100)}
	go func() {
		for {
			message, open := s.read()
			if message == `text: {"type":"waiting"}` {
				s.waiting.Add(1)
				continue
			}
			s.messages <- message
			if !open {
				return
			}
		}
	}()
	return s
}

// read is the next message, as a text with its kind before it.
func (s *screen) read() (message string, open bool) {
	kind, content, err := s.Read(s.t.Context())
	if err != nil {
		return "closed: " + closeText(err), false
	}
	if kind == websocket.MessageText {
		return "text: " + string(content), true
	}
	return "bytes: " + string(content), true
}

func closeText(err error) string {
	var how websocket.CloseError
	if errors.As(err, &how) {
		return fmt.Sprintf("%d %s", how.Code, how.Reason)
	}
	return "without a word"
}

func (s *screen) expect(messages ...string) {
	s.t.Helper()
	for _, want := range messages {
		if got := <-s.messages; got != want {
			s.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) says(text string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func at(offset int) string { return fmt.Sprintf(`text: {"offset":%d,"type":"position"}`, offset) }

const (
	exitText = `text: {"exit_code":0,"oom_killed":false,"reason":null,"signal":null,"status":"exited","timed_out":false,"type":"exit"}`
	overText = "closed: 1000 the execution has ended"
)

// TestTerminalBothWays: what is written is shown, what is typed arrives, the size
// follows the window's, and the end is told.
func TestTerminalBothWays(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.resized = make(chan execution.Size, 1)
		s := b.attach(t, "")
		s.expect(at(0))
		b.world.feed.tell(output(execution.Stdout, 0, "$ \xff\x00\xc3"))
		s.expect("bytes: $ \xff\x00\xc3")
		s.typed("ls\r")
		s.typed("\x03\x00\xff")
		s.typed("")
		s.says(`{"type":"resize","rows":50,"cols":132}`)
		if size := <-b.world.resized; size != (execution.Size{Rows: 50, Cols: 132}) {
			t.Errorf("resized to %v", size)
		}
		synctest.Wait()
		if text := b.world.stdin.text(); text != "ls\r\x03\x00\xff" {
			t.Errorf("typed %q", text)
		}
		b.world.feed.tell(output(execution.Stdout, 5, "\xa9"), ended(0))
		s.expect("bytes: \xa9", exitText, overText)
		synctest.Wait()
		if log := b.log.String(); !strings.Contains(log, `"status":101`) || !strings.Contains(log, `"route":"GET /v1/sandboxes/{sandbox}/executions/{execution}/terminal"`) || strings.Contains(log, "caller_gone") {
			t.Errorf("the log:\n%s", log)
		}
	})
}

// TestTerminalReplaysTheTail: what a client sees first, for each way of asking.
func TestTerminalReplaysTheTail(t *testing.T) {
	const size = 100_000
	all := strings.Repeat("0123456789", size/10)
	for query, from := range map[string]int{
		"":               size - 64<<10,
		"?tail=0":        size,
		"?tail=7":        size - 7,
		"?tail=1048576":  0,
		"?after=0":       0,
		"?after=99999":   size - 1,
		"?after=100000":  size,
		"?after=1&tail=": -1, // refused, see TestRefusals
	} {
		if from < 0 {
			continue
		}
		t.Run(query, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.onTerminal()
				b.world.output.Stdout = execution.Tail{Bytes: []byte(all)}
				b.world.feed = newFeed(started(1), output(execution.Stdout, 0, all))
				s := b.attach(t, query)
				s.expect(at(from))
				if from < size {
					s.expect("bytes: " + all[from:])
				}
				b.world.feed.tell(ended(0))
				s.expect(exitText, overText)
			})
		})
	}
	t.Run("the front is gone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			b.world.output.Stdout = execution.Tail{Bytes: []byte("tail"), Offset: 5000}
			b.world.feed = newFeed(started(1), truncated(execution.Stdout, 0, 5000), output(execution.Stdout, 5000, "tail"), ended(0))
			b.attach(t, "").expect(at(5000), "bytes: tail", exitText, overText)
			b.attach(t, "?after=10").expect(at(10), `text: {"from":10,"to":5000,"type":"truncated"}`, at(5000), "bytes: tail", exitText, overText)
		})
	})
	t.Run("after the end", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.world.exe.TTY = true
			b.attach(t, "").expect(at(0), "bytes: hello\n", exitText, overText)
		})
	})
}

// TestTerminalDetaches: the program goes on, what was typed before arrives, and
// another client takes over with the screen as it is.
func TestTerminalDetaches(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.stdin.room = 2
		s := b.attach(t, "")
		s.expect(at(0))
		s.typed("make\r")
		if err := s.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if text := b.world.stdin.text(); text != "ma" {
			t.Errorf("the program that reads two bytes got %q", text)
		}
		b.world.stdin.read(-1)
		synctest.Wait()
		if text := b.world.stdin.text(); text != "make\r" {
			t.Errorf("what was typed before the client went: %q", text)
		}
		if b.world.cancel != (execution.Cancel{}) {
			t.Error("detaching cancels")
		}
		b.world.feed.tell(output(execution.Stdout, 0, "done\r\n"))
		b.world.output.Stdout.Bytes = []byte("done\r\n")
		again := b.attach(t, "")
		again.expect(at(0), "bytes: done\r\n")
		again.typed("x")
		b.world.feed.tell(ended(0))
		again.expect(exitText, overText)
		synctest.Wait()
		if text := b.world.stdin.text(); text != "make\rx" {
			t.Errorf("the second client typed behind the first: %q", text)
		}
	})
}

// TestTerminalsShareOneInput: two clients, a request with an offset and the text
// of the start; nothing that anybody sent is lost or comes twice.
func TestTerminalsShareOneInput(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.stdin.spool = 5
		first, second := b.attach(t, ""), b.attach(t, "")
		first.expect(at(0))
		second.expect(at(0))
		first.typed("a")
		time.Sleep(25 * time.Second) // the program has not begun to read
		func() {
			in := b.world.stdin
			in.mu.Lock()
			defer in.mu.Unlock()
			in.spool, in.taken = 0, []byte("begin")
			close(in.more)
			in.more = make(chan struct{})
		}()
		synctest.Wait()
		if text := b.world.stdin.text(); text != "begina" {
			t.Fatalf("typed into the text of the start: %q", text)
		}
		var typing sync.WaitGroup
		for n, s := range []*screen{first, second} {
			typing.Go(func() {
				for range 200 {
					s.typed(string(rune('b' + n)))
				}
			})
		}
		typing.Wait()
		synctest.Wait()
		text := b.world.stdin.text()
		if strings.Count(text, "b") != 201 || strings.Count(text, "c") != 200 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
		if got := b.post(t, runPath+"/stdin", fmt.Sprintf(`{"offset":%d,"data":"ZA=="}`, len(text))); got.StatusCode != http.StatusOK {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
		first.typed("e")
		synctest.Wait()
		if text := b.world.stdin.text(); !strings.HasSuffix(text, "de") {
			t.Errorf("%s", text[len(text)-5:])
		}
		b.world.feed.tell(ended(0))
		first.expect(exitText, overText)
		second.expect(exitText, overText)
	})
}

// TestTypingAsksOnce where input is, and again only when it cannot know: a
// request that failed may have written something.
func TestTypingAsksOnce(t *testing.T) {
	program := newStdin()
	all := &inputs{attached: attachedFake{&world{stdin: program}}}
	in := all.open(sandboxID, executionID)
	defer in.leave()
	for n, step := range []struct {
		do    func() error
		asked int // requests in all
		text  string
	}{
		{func() error { return in.typed(t.Context(), []byte("a")) }, 2, "a"},
		{func() error { return in.typed(t.Context(), []byte("b")) }, 3, "ab"},
		{func() error {
			_, err := in.put(t.Context(), execution.Input{Offset: 2, Data: []byte("c")})
			return err
		}, 4, "abc"},
		{func() error { return in.typed(t.Context(), []byte("d")) }, 5, "abcd"},
		{func() error {
			program.late = errors.New("cut")
			if _, err := in.put(t.Context(), execution.Input{Offset: 4, Data: []byte("e")}); err == nil {
				return errors.New("it did not fail")
			}
			return nil
		}, 6, "abcde"},
		{func() error { return in.typed(t.Context(), []byte("f")) }, 8, "abcdef"},
	} {
		if err := step.do(); err != nil || program.asked != step.asked || program.text() != step.text {
			t.Errorf("step %d: %d requests, %q, %v", n, program.asked, program.text(), err)
		}
	}
}

// TestTerminalOfAProgramThatDoesNotRead: its client waits as long as it likes,
// still sees output, and loses nothing.
func TestTerminalOfAProgramThatDoesNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.stdin.room = 0
		s := b.attach(t, "")
		s.expect(at(0))
		const pieces = 2 * typedAhead
		var typing sync.WaitGroup
		typing.Go(func() {
			for i := range pieces {
				s.typed(fmt.Sprint(i))
			}
		})
		time.Sleep(10 * time.Minute)
		b.world.feed.tell(output(execution.Stdout, 0, "busy"))
		s.expect("bytes: busy")
		if n := s.waiting.Load(); n < 39 || n > 41 {
			t.Errorf("%d signs of life in 10 minutes", n)
		}
		b.world.stdin.read(-1)
		typing.Wait()
		synctest.Wait()
		if text := b.world.stdin.text(); text != "01234567" {
			t.Errorf("%q", text)
		}
		b.world.feed.tell(ended(0))
		s.expect(exitText, overText)
	})
}

// TestTerminalOfAProgramThatNeverReads keeps its client only so long: one that
// has gone meanwhile cannot be told from one that waits.
func TestTerminalOfAProgramThatNeverReads(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.stdin.room = 0
		s := b.attach(t, "")
		s.expect(at(0))
		time.Sleep(time.Second) // no ping comes together with the close frame: pipes hold neither
		for range typedAhead + 2 {
			s.typed("x")
		}
		began := time.Now()
		s.expect("closed: 1013 " + endUnread.reason)
		if took := time.Since(began); took != holdTimeout {
			t.Errorf("it took %s", took)
		}
		time.Sleep(drainTimeout)
	})
}

// TestTerminalRefusesBeforeItIsOne: with an envelope, like every other route.
func TestTerminalRefusesBeforeItIsOne(t *testing.T) {
	s := start(t)
	got := s.do(t, "GET", terminalPath, "", handshake)
	if detail := got.fault(t); got.StatusCode != http.StatusConflict || detail.Code != gen.ErrorCodeExecutionNotTTY {
		t.Errorf("%d %+v", got.StatusCode, detail)
	}
	if len(s.world.from) > 0 {
		t.Error("it was followed")
	}
	s.world.exe.TTY = true
	host := strings.TrimPrefix(s.URL, "http://")
	for origin, want := range map[string]int{
		"http://" + host: 101, "https://" + strings.ToUpper(host): 101, "http://" + host + ".evil.example": 403, "http://127.0.0.1:1": 403, "null": 403, "file://": 403, "%": 403,
	} {
		conn := s.dial(t, "GET "+terminalPath+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+goodToken+"\r\nOrigin: "+origin+"\r\n"+shakeHeader+"\r\n")
		got, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.StatusCode != want {
			t.Errorf("a page of %s: %d", origin, got.StatusCode)
		}
		got.Body.Close()
	}
}

const shakeHeader = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"

// TestTerminalClosesOnWhatItDoesNotTake, and says why.
func TestTerminalClosesOnWhatItDoesNotTake(t *testing.T) {
	for name, test := range map[string]struct {
		kind    websocket.MessageType
		message string
		want    string
	}{
		"no JSON":        {websocket.MessageText, "ls", "closed: 1007 " + notAnObject.reason},
		"no UTF-8":       {websocket.MessageText, "{\"type\":\"\xff\"}", "closed: 1007 " + notAnObject.reason},
		"another type":   {websocket.MessageText, `{"type":"stdin","data":"x"}`, "closed: 1008 " + notAResize.reason},
		"no size":        {websocket.MessageText, `{"type":"resize","rows":0,"cols":80}`, "closed: 1008 " + notAResize.reason},
		"too many bytes": {websocket.MessageBinary, strings.Repeat("x", maxMessage+1), "closed: 1009 " + tooLong.reason},
		"too long text":  {websocket.MessageText, strings.Repeat(" ", 10*maxMessage), "closed: 1009 " + tooLong.reason},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.onTerminal()
				s := b.attach(t, "")
				s.expect(at(0))
				s.typed("before")
				var sending sync.WaitGroup
				sending.Go(func() { _ = s.Write(t.Context(), test.kind, []byte(test.message)) })
				s.expect(test.want)
				sending.Wait()
				synctest.Wait()
				if text := b.world.stdin.text(); text != "before" {
					t.Errorf("typed %q", text)
				}
			})
		})
	}
	t.Run("as many as may be", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			s := b.attach(t, "")
			s.expect(at(0))
			s.typed(strings.Repeat("x", maxMessage))
			synctest.Wait()
			if n := len(b.world.stdin.text()); n != maxMessage {
				t.Errorf("%d bytes arrived", n)
			}
			s.CloseNow()
		})
	})
}

// TestTerminalOfAGuestThatFails: the socket says what is wrong with which side.
func TestTerminalOfAGuestThatFails(t *testing.T) {
	gone := fault.Wrap(errors.New("vsock secret"), fault.GuestUnreachable, "the guest does not answer")
	for name, test := range map[string]struct {
		do   func(b *bubble, s *screen)
		want string
		log  string
	}{
		"input": {func(b *bubble, s *screen) {
			b.world.stdin.err = gone
			s.typed("x")
		}, "closed: 1011 the guest does not answer; get the sandbox to see whether it still runs", "vsock secret"},
		"resize": {func(b *bubble, s *screen) {
			b.world.err = gone
			s.says(`{"type":"resize","rows":1,"cols":1}`)
		}, "closed: 1011 the guest does not answer; get the sandbox to see whether it still runs", "vsock secret"},
		"output": {
			func(b *bubble, _ *screen) { b.world.feed.fail(errors.New("disk secret")) },
			"closed: 1011 an internal error happened; the execution goes on; attach again with after", "disk secret",
		},
		"the daemon stops": {
			func(b *bubble, _ *screen) { b.world.feed.fail(fault.New(fault.ShuttingDown, "x")) },
			"closed: 1001 the daemon is stopping; the execution goes on; attach again with after", "",
		},
		"it has ended and its end is not told yet": {func(b *bubble, s *screen) {
			b.world.stdin.err = fault.New(fault.ExecutionNotRunning, "x")
			s.typed("x")
			s.typed("y")
			synctest.Wait()
			b.world.feed.tell(ended(0))
			s.expect(exitText)
		}, overText, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.onTerminal()
				s := b.attach(t, "")
				s.expect(at(0))
				test.do(b, s)
				s.expect(test.want)
				synctest.Wait()
				if log := b.log.String(); !strings.Contains(log, test.log) {
					t.Errorf("the log lacks the cause:\n%s", log)
				}
			})
		})
	}
}

// TestTerminalBelievesNoCount: a guest that says it took more than it got, or gave
// some back, is not written to any more, and one that answers at once without
// taking anything is not asked without pause.
func TestTerminalBelievesNoCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, guest := range []liar{{at: 7}, {at: -1}} {
			in := (&inputs{attached: &guest}).open(sandboxID, executionID)
			if err := in.typed(t.Context(), []byte("abc")); !fault.Is(err, fault.GuestUnreachable) {
				t.Errorf("%+v: %v", guest, err)
			}
		}
		for _, guest := range []liar{{at: 3}, {at: 3, unfed: true}} {
			in := (&inputs{attached: &guest}).open(sandboxID, executionID)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := in.typed(ctx, []byte("abc")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v: %v", guest, err)
			}
			if most := int(time.Minute/stallPause) + 5; guest.asked > most {
				t.Errorf("it was asked %d times in a minute", guest.asked)
			}
		}
	})
}

// liar has taken 3 bytes, and says at once of what is sent that it is at a number
// of its own.
type liar struct {
	at    int64
	unfed bool // never reads the text of its start
	asked int
}

func (*liar) Follow(context.Context, string, string, execution.Position) (Follower, error) {
	return nil, nil
}
func (*liar) Resize(context.Context, string, string, execution.Size) error { return nil }

func (l *liar) Stdin(ctx context.Context, _, _ string, in execution.Input) (execution.Taken, error) {
	l.asked++
	switch {
	case ctx.Err() != nil:
		return execution.Taken{}, ctx.Err()
	case l.unfed:
		return execution.Taken{Offset: 1, Behind: true}, nil
	case len(in.Data) > 0:
		return execution.Taken{Offset: l.at}, nil
	default:
		return execution.Taken{Offset: 3}, nil
	}
}

// TestAPanicEndsOneTerminal, tells its client, and ends nothing else.
func TestAPanicEndsOneTerminal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.resized = make(chan execution.Size)
		close(b.world.resized) // a size that is sent to it panics
		s, other := b.attach(t, ""), b.attach(t, "")
		s.expect(at(0))
		other.expect(at(0))
		s.says(`{"type":"resize","rows":1,"cols":1}`)
		s.expect("closed: 1011 an internal error happened; the execution goes on; attach again with after")
		synctest.Wait()
		if log := b.log.String(); !strings.Contains(log, "request panicked") {
			t.Errorf("the log: %s", log)
		}
		other.typed("still here")
		synctest.Wait()
		if text := b.world.stdin.text(); text != "still here" {
			t.Errorf("of the other: %q", text)
		}
	})
}

// TestTerminalShowsOneStream: a guest that sends another lies.
func TestTerminalShowsOneStream(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		b.world.feed = newFeed(started(1), output(execution.Stderr, 0, "x"), truncated(execution.Stderr, 1, 9), output(execution.Stdout, 0, "y"), ended(0))
		b.attach(t, "").expect(at(0), "bytes: y", exitText, overText)
	})
}

// TestShutdownEndsTerminals, and waits for them: their connections are not
// net/http's.
func TestShutdownEndsTerminals(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		s, deaf := b.attach(t, ""), b.rawTerminal(t)
		s.expect(at(0))
		began := time.Now()
		var stopping sync.WaitGroup
		stopping.Go(func() {
			if err := b.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
		s.expect("closed: 1001 " + endGoing.reason)
		stopping.Wait()
		// The one that takes nothing, not even a close frame, is waited for so long.
		if took := time.Since(began); took < closeTimeout || took > closeTimeout+time.Second {
			t.Errorf("it took %s", took)
		}
		deaf.Close()
	})
	t.Run("no longer than its context", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			deaf := b.rawTerminal(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := b.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			deaf.Close()
		})
	})
}

// rawTerminal is a client that has read its first message and does nothing by
// itself: no answer to a ping, nor to a close.
func (b *bubble) rawTerminal(t *testing.T) net.Conn {
	t.Helper()
	conn := b.dial()
	if _, err := io.WriteString(conn, request("GET", terminalPath, shakeHeader)); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	got, err := http.ReadResponse(reader, nil)
	if err != nil || got.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(got, err)
	}
	frame := make([]byte, 2+len(at(0))-len("text: "))
	if _, err := io.ReadFull(reader, frame); err != nil || !bytes.Contains(frame, []byte("position")) {
		t.Fatalf("%q %v", frame, err)
	}
	return conn
}

// masked is a client's frame (RFC 6455, 5.2), which may announce more than it has.
func masked(first byte, announced uint64, payload string) []byte {
	frame := append([]byte{first, 0x80 | 127}, binary.BigEndian.AppendUint64(nil, announced)...)
	frame = append(frame, 0, 0, 0, 0) // a mask that changes nothing
	return append(frame, payload...)
}

// TestTerminalEndsWithItsClient, whatever the client does not do any more.
func TestTerminalEndsWithItsClient(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			s := b.attach(t, "")
			s.expect(at(0))
			_ = s.CloseNow()
			synctest.Wait()
			if !strings.Contains(b.log.String(), `"status":101`) {
				t.Error("it goes on")
			}
		})
	})
	for name, test := range map[string]struct {
		do    func(b *bubble, conn net.Conn)
		after time.Duration
	}{
		"reads, answers no ping": {func(_ *bubble, conn net.Conn) { go func() { _, _ = io.Copy(io.Discard, conn) }() }, keepalive + pongTimeout},
		"takes no output": {func(b *bubble, _ net.Conn) {
			b.world.feed.tell(output(execution.Stdout, 0, strings.Repeat("x", 32<<10)))
		}, sendTimeout},
		"stops within a message": {func(_ *bubble, conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = conn.Write(masked(0x82, 100, "half"))
		}, keepalive + pongTimeout},
		"announces what never comes": {func(_ *bubble, conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = conn.Write(masked(0x82, 1<<62, strings.Repeat("x", maxMessage+1)))
		}, closeTimeout},
		"sends on after it was told to stop": {func(_ *bubble, conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			go func() {
				for _, err := conn.Write(masked(0x81, 2, "no")); err == nil; _, err = conn.Write(masked(0x82, 1, "x")) {
					time.Sleep(time.Millisecond)
				}
			}()
		}, closeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.onTerminal()
				conn := b.rawTerminal(t)
				defer conn.Close()
				synctest.Wait()
				over := func() bool { synctest.Wait(); return strings.Contains(b.log.String(), `"status":101`) }
				test.do(b, conn)
				time.Sleep(test.after - time.Second)
				if over() {
					t.Errorf("it has ended too early:\n%s", b.log)
				}
				time.Sleep(2 * time.Second)
				if !over() {
					t.Errorf("after %s it goes on", test.after)
				}
			})
		})
	}
	t.Run("answers late, because it has to wait", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			b.world.stdin.room = 0
			conn := b.rawTerminal(t)
			defer conn.Close()
			ping := make([]byte, 3)
			if _, err := io.ReadFull(conn, ping); err != nil || ping[0] != 0x89 || ping[1] != 1 {
				t.Fatalf("%x %v", ping, err)
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }() // it takes what it is told meanwhile
			for range typedAhead + 2 {                       // now nothing is read any more, and the answer waits with the client
				if _, err := conn.Write(masked(0x82, 1, "x")); err != nil {
					t.Fatal(err)
				}
			}
			answered := make(chan error, 1)
			go func() {
				_, err := conn.Write([]byte{0x8a, 0x81, 0, 0, 0, 0, ping[2]})
				answered <- err
			}()
			time.Sleep(2 * pongTimeout)
			b.world.stdin.read(-1)
			if err := <-answered; err != nil {
				t.Errorf("it was cut off: %v", err)
			}
			synctest.Wait()
			if text := b.world.stdin.text(); text != "xxxxxx" {
				t.Errorf("%q", text)
			}
		})
	})
	t.Run("a client that answers stays", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.onTerminal()
			s := b.attach(t, "")
			s.expect(at(0))
			time.AfterFunc(time.Hour, func() { b.world.feed.tell(ended(0)) })
			s.expect(exitText, overText) // its reader answers the pings meanwhile
		})
	})
}

// TestTerminalTakesATicket: what a browser does.
func TestTerminalTakesATicket(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		made := b.post(t, "/v1/tickets", `{"method":"GET","path":"`+terminalPath+`"}`)
		start := bytes.Index(made.body, []byte("mvt_"))
		ticket := string(made.body[start : start+68])
		s := b.attach(t, "?tail=0&ticket="+ticket)
		s.expect(at(0))
		got := b.get(t, terminalPath+"?ticket="+ticket, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg==")
		if detail := refusal(t, got); detail.Code != gen.ErrorCodeTokenInvalid {
			t.Errorf("it opens twice: %+v", detail)
		}
		_ = s.CloseNow()
		synctest.Wait()
		if strings.Contains(b.log.String(), ticket) {
			t.Error("the log has it")
		}
	})
}

// TestTerminalBeginsWhereItsOutputIs: the positions that the manager is asked for.
func TestTerminalBeginsWhereItsOutputIs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.onTerminal()
		s := b.attach(t, "?after=42")
		s.expect(at(42))
		_ = s.CloseNow()
		if want := []execution.Position{{Stdout: 42}}; !slices.Equal(b.world.from, want) {
			t.Errorf("followed from %v", b.world.from)
		}
	})
}
