package microvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// told is one thing that a program's stream has to tell.
type told struct {
	kind   EventType
	offset int64
	data   string
	to     int64
}

// history is a stream with all there can be: bytes that are no UTF-8, a cut
// character, gaps, empty lines, comments.
var history = []told{
	{kind: EventStarted},
	{kind: EventStdout, data: "hello\n"},
	{kind: EventStdout, offset: 6, data: "\x00\xff\xfe\r\n\n\x1b[31m"},
	{kind: "comment"},
	{kind: EventTruncated, data: "stderr", to: 100},
	{kind: EventStderr, offset: 100, data: "w\xc3"},
	{kind: EventStderr, offset: 102, data: "\xa4rning"},
	{kind: EventStdout, offset: 17, data: strings.Repeat("line\n", 20)},
	{kind: EventTruncated, data: "stdout", offset: 117, to: 4096},
	{kind: EventStdout, offset: 4096, data: "end"},
	{kind: EventExit},
}

const historyOutput = "hello\n\x00\xff\xfe\r\n\n\x1b[31m"

// tell writes the history behind a position, as a node does.
func tell(w io.Writer, from Position) {
	at := from
	event := func(name string, data any) {
		text, _ := json.Marshal(data)
		fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", at, name, text)
	}
	for _, e := range history {
		switch e.kind {
		case EventStarted:
			if from == (Position{}) {
				event("started", StreamStarted{PID: 7})
			}
		case EventStdout, EventStderr:
			of, end := at.of(OutputStream(e.kind)), e.offset+int64(len(e.data))
			if end > *of {
				skip := max(*of-e.offset, 0)
				*of = end
				event(string(e.kind), StreamOutput{Offset: e.offset + skip, Data: []byte(e.data[skip:])})
			}
		case EventTruncated:
			of := at.of(OutputStream(e.data))
			if e.to > *of {
				gap := StreamTruncated{Stream: OutputStream(e.data), From: *of, To: e.to}
				*of = e.to
				event("truncated", gap)
			}
		case EventExit:
			event("exit", StreamExit{Status: ExecutionStatusExited, ExitCode: new(3)})
		default:
			fmt.Fprint(w, ": still here\n\n")
		}
	}
}

// streaming serves the history, from where the request wants it.
func streaming(w http.ResponseWriter, r *http.Request) {
	var from Position
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		var err error
		if from, err = ParsePosition(last); err != nil {
			panic(err)
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tell(w, from)
}

// gathered is what came out of a stream.
type gathered struct {
	starts, exits int
	stdout        bytes.Buffer
	stderr        bytes.Buffer
	at            Position
	gaps          []string
}

func (g *gathered) take(t *testing.T, e Event) {
	t.Helper()
	switch e.Type {
	case EventStarted:
		g.starts += e.PID / 7
	case EventStdout, EventStderr:
		of := g.at.of(e.Stream)
		if e.Offset != *of {
			t.Fatalf("%s at %d, not at %d", e.Stream, e.Offset, *of)
		}
		*of += int64(len(e.Data))
		if e.Stream == OutputStreamStdout {
			g.stdout.Write(e.Data)
		} else {
			g.stderr.Write(e.Data)
		}
	case EventTruncated:
		of := g.at.of(e.Stream)
		if e.Offset != *of {
			t.Fatalf("%s is cut at %d, not at %d", e.Stream, e.Offset, *of)
		}
		*of = e.To
		g.gaps = append(g.gaps, fmt.Sprintf("%s %d-%d", e.Stream, e.Offset, e.To))
	case EventExit:
		g.exits++
		if *e.Exit.ExitCode != 3 {
			t.Fatalf("exit %+v", e.Exit)
		}
	}
	if e.Position != g.at {
		t.Fatalf("%s has position %s, not %s", e.Type, e.Position, g.at)
	}
}

func (g *gathered) check(t *testing.T) {
	t.Helper()
	want := historyOutput + strings.Repeat("line\n", 20) + "end"
	if g.starts != 1 || g.exits != 1 || g.stdout.String() != want || g.stderr.String() != "wärning" {
		t.Fatalf("%d starts, %d exits, %q, %q", g.starts, g.exits, g.stdout.String(), g.stderr.String())
	}
	if got := strings.Join(g.gaps, ", "); got != "stderr 0-100, stdout 117-4096" {
		t.Fatalf("gaps %s", got)
	}
}

// cutter stands between client and server and ends connections after some bytes
// of their replies.
type cutter struct {
	net.Listener
	target string

	mu   sync.Mutex
	cuts []int // of the next connections; then none. Guarded by mu
	n    int   // connections so far, guarded by mu
}

func newCutter(t *testing.T, target string, cuts ...int) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, target: target, cuts: cuts}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.pass(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return c
}

func (c *cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer server.Close()
	c.mu.Lock()
	limit := int64(1 << 40)
	if c.n < len(c.cuts) {
		limit = int64(c.cuts[c.n])
	}
	c.n++
	c.mu.Unlock()
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	_, _ = io.CopyN(client, server, limit)
}

// impatient is a client that does not wait between two tries, and keeps no
// connection for the next one.
func impatient(address string) *Client {
	c := New(WithURL("http://"+address), WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
	c.sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return c
}

// Wherever the connection is cut, in the header, in an event or between two: no
// byte is missing and none comes twice.
func TestStreamThatIsCutAtEveryByte(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(streaming))
	defer server.Close()
	target := strings.TrimPrefix(server.URL, "http://")
	var whole bytes.Buffer
	tell(&whole, Position{})
	length := whole.Len() + 400 // with the header and the framing of chunks
	for _, twice := range []bool{false, true} {
		for n := range length {
			cuts := []int{n}
			if twice {
				cuts = append(cuts, length-n)
			}
			proxy := newCutter(t, target, cuts...)
			var got gathered
			for event, err := range impatient(proxy.Addr().String()).Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
				if err != nil {
					t.Fatalf("cut at %v: %v", cuts, err)
				}
				got.take(t, event)
			}
			got.check(t)
			_ = proxy.Close()
		}
	}
}

// However often it breaks: as long as it goes on a little each time, so does the
// stream.
func TestStreamThatBreaksAgainAndAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		recorder := httptest.NewRecorder()
		recorder.Body = &b
		streaming(recorder, r)
		events := strings.SplitAfter(b.String(), "\n\n")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Join(events[:min(2, len(events))], "")+"event: stdout\nda") // and no more of it
	}))
	defer server.Close()
	c := impatient(strings.TrimPrefix(server.URL, "http://"))
	c.retries = -waitRetries + 2 // what breaks three times without an event is given up
	var got gathered
	for event, err := range c.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		got.take(t, event)
	}
	got.check(t)
}

func TestStreamFromAPosition(t *testing.T) {
	r := serve(t, handlers{streaming})
	var got gathered
	got.at = Position{Stdout: 20, Stderr: 103}
	for event, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, got.at) {
		if err != nil {
			t.Fatal(err)
		}
		got.take(t, event)
	}
	if got.stdout.String() != "e\n"+strings.Repeat("line\n", 19)+"end" || got.stderr.String() != "rning" || got.starts != 0 {
		t.Fatalf("%q %q", got.stdout.String(), got.stderr.String())
	}
	if seen := r.seen(); len(seen) != 1 || seen[0] != "GET "+executionPath+"/stream" {
		t.Fatalf("requests %q", seen)
	}
}

func events(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, text)
	}
}

const exitEvent = "event: exit\ndata: {\"exit_code\":0,\"signal\":null,\"timed_out\":false,\"oom_killed\":false,\"status\":\"exited\",\"reason\":null}\n\n"

func TestStreamGoesOnOrGivesUp(t *testing.T) {
	page := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
		}
	}
	end := events(exitEvent)
	broken := events("event: error\ndata: {\"message\":\"the daemon is stopping\",\"code\":\"shutting_down\"}\n\n")
	for name, test := range map[string]struct {
		script   handlers
		requests int
		fails    string // part of the error
	}{
		"cut":                      {handlers{cut(""), end}, 2, ""},
		"a daemon that stops":      {handlers{refusal(503, ErrorTypeAPIError, ErrorCodeShuttingDown, "Retry-After", "1"), end}, 2, ""},
		"too many":                 {handlers{refusal(429, ErrorTypeCapacityError, ErrorCodeRateLimited, "Retry-After", "1"), end}, 2, ""},
		"a proxy without a daemon": {handlers{page(502), page(504), page(503), end}, 4, ""},
		"broken off":               {handlers{broken, end}, 2, ""},
		"an end without an end":    {handlers{events(""), end}, 2, ""},
		"not there":                {handlers{refusal(404, ErrorTypeInvalidRequestError, ErrorCodeExecutionNotFound)}, 1, "execution_not_found"},
		"an error of the daemon":   {handlers{refusal(500, ErrorTypeAPIError, ErrorCodeInternalError)}, 1, "internal_error"},
		"guest unreachable":        {handlers{refusal(502, ErrorTypeAPIError, ErrorCodeGuestUnreachable)}, 1, "guest_unreachable"},
		"no stream":                {handlers{reply(200, sandbox())}, 1, "is no stream of events"},
		"always cut":               {handlers{cut("")}, 1 + 2 + waitRetries, "the connection ended"},
		"always broken off":        {handlers{broken}, 1 + 2 + waitRetries, "the daemon is stopping (shutting_down)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, test.script)
			var last error
			exits := 0
			for event, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
				if event.Type == EventExit {
					exits++
				}
				last = err
			}
			if test.fails == "" && (last != nil || exits != 1) || test.fails != "" && (last == nil || !strings.Contains(last.Error(), test.fails) || !strings.HasPrefix(last.Error(), "stream execution: ")) {
				t.Fatalf("error %v, %d exits", last, exits)
			}
			if got := len(r.seen()); got != test.requests {
				t.Fatalf("%d requests, want %d", got, test.requests)
			}
		})
	}
	r := serve(t, handlers{broken})
	for _, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
		if !HasCode(err, ErrorCodeShuttingDown) {
			t.Fatalf("error %v", err)
		}
	}
}

// What the API does not promise is an error at once; what it does not know yet
// is passed over.
func TestStreamsThatLie(t *testing.T) {
	event := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	for name, text := range map[string]string{
		"no JSON":               event("stdout", "hello"),
		"no base64":             event("stdout", `{"data":"***","offset":0}`),
		"negative offset":       event("stdout", `{"data":"aGk=","offset":-1}`),
		"offset without end":    event("stdout", `{"data":"aGk=","offset":9223372036854775807}`),
		"offset over all":       event("stdout", `{"data":"aGk=","offset":9223372036854775808}`),
		"gap backwards":         event("truncated", `{"stream":"stdout","from":9,"to":3}`),
		"gap of what":           event("truncated", `{"stream":"stdlog","from":0,"to":3}`),
		"an end that is none":   event("exit", `{"status":"running"}`),
		"an end without status": event("exit", `{}`),
		"line without end":      "data: " + strings.Repeat("x", eventLimit),
		"event without end":     strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", eventLimit/1000+1),
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, handlers{events(text)})
			var last error
			for event, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
				if err == nil {
					t.Fatalf("told %+v", event)
				}
				last = err
			}
			if last == nil || !strings.Contains(last.Error(), "not what the API promises") || len(r.seen()) != 1 {
				t.Fatalf("error %v after %q", last, r.seen())
			}
		})
	}
	text := event("hibernated", "{}") + "data: nameless\n\n" + "retry: 5\r\n\r\n" +
		event("stdout", `{"data":"aGVsbG8=","offset":0}`) +
		event("stdout", `{"data":"bG8h","offset":3}`) + // two of its bytes were told
		event("stdout", `{"data":"bG8h","offset":3}`) + // all were
		event("truncated", `{"stream":"stdout","from":0,"to":4}`) + // is long past
		event("stdout", `{"data":"eA==","offset":10}`) + // and four are missing that nobody declared
		exitEvent
	r := serve(t, handlers{events(text)})
	var got []string
	for event, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
		got = append(got, fmt.Sprintf("%s %d %q %d %v", event.Type, event.Offset, event.Data, event.To, err))
	}
	want := []string{`stdout 0 "hello" 0 <nil>`, `stdout 5 "!" 0 <nil>`, `truncated 6 "" 10 <nil>`, `stdout 10 "x" 0 <nil>`, `exit 0 "" 0 <nil>`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got %s", strings.Join(got, "\n"))
	}
}

func TestStreamEndsWithItsCaller(t *testing.T) {
	left := make(chan struct{})
	endless := func(w http.ResponseWriter, r *http.Request) {
		events("event: stdout\ndata: {\"data\":\"aGk=\",\"offset\":0}\n\n")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		left <- struct{}{}
	}
	r := serve(t, handlers{endless})
	for _, err := range r.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	<-left // the connection went with the loop

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	gone := errors.New("the caller left")
	var last error
	for _, err := range r.Executions.Stream(ctx, sandboxID, executionID, Position{}) {
		cancel(gone)
		last = err
	}
	<-left
	if !errors.Is(last, gone) || len(r.seen()) != 2 {
		t.Fatalf("error %v after %q", last, r.seen())
	}
	for _, err := range New(WithURL("nonsense")).Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
		if err == nil || !strings.Contains(err.Error(), "make client") {
			t.Fatalf("error %v", err)
		}
	}
	for _, err := range r.Executions.Stream(t.Context(), sandboxID, "..", Position{}) {
		if err == nil || len(r.seen()) != 2 {
			t.Fatalf("error %v", err)
		}
	}
}

// A connection on which nothing comes any more counts as lost; a caller who takes
// his time with an event does not make it one.
func TestStreamOfASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connections := 0
		bodies := make(chan *io.PipeWriter, 9)
		c := New(WithURL("http://node"), WithHTTPClient(&http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
			connections++
			reader, writer := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
			bodies <- writer
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader}, nil
		})}))
		go func() {
			first := <-bodies
			for range 3 { // it is alive as long as it says so
				time.Sleep(15 * time.Second)
				_, _ = io.WriteString(first, ": still here\n\n")
			}
			_, _ = io.WriteString(first, "event: stdout\ndata: {\"data\":\"aGk=\",\"offset\":0}\n\nevent: stdout\ndata: {\"data\":\"aG8=\",\"offset\":2}\n\n")
			second := <-bodies
			_, _ = io.WriteString(second, exitEvent)
		}()
		began := time.Now()
		var output string
		for event, err := range c.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
			if err != nil {
				t.Fatal(err)
			}
			if event.Type == EventStdout {
				output += string(event.Data)
				time.Sleep(10 * silenceLimit)
				if connections != 1 {
					t.Fatal("a slow caller lost the connection")
				}
			}
		}
		took := time.Since(began) - 20*silenceLimit
		if output != "hiho" || connections != 2 || took < 45*time.Second+silenceLimit || took > 46*time.Second+silenceLimit {
			t.Fatalf("%q by %d connections in %s", output, connections, took)
		}
	})
}

// A program that prints nothing for long may stand behind a proxy that ends
// every connection after a while.
func TestStreamOfAQuietProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connections := 0
		c := New(WithURL("http://node"), WithHTTPClient(&http.Client{Transport: transportFunc(func(*http.Request) (*http.Response, error) {
			connections++
			reader, writer := io.Pipe()
			go func() {
				time.Sleep(30 * time.Second)
				if connections == 10*waitRetries {
					_, _ = io.WriteString(writer, exitEvent)
				}
				_ = writer.Close()
			}()
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader}, nil
		})}))
		for _, err := range c.Executions.Stream(t.Context(), sandboxID, executionID, Position{}) {
			if err != nil {
				t.Fatalf("after %d connections: %v", connections, err)
			}
		}
		synctest.Wait()
	})
}

func TestPositions(t *testing.T) {
	for _, p := range []Position{{}, {1024, 0}, {0, 7}, {1<<63 - 1, 1<<63 - 1}} {
		if got, err := ParsePosition(p.String()); err != nil || got != p {
			t.Errorf("%s became %s, %v", p, got, err)
		}
	}
	for _, text := range []string{"", "1", "1.", ".1", "1.2.3", "-1.0", "+1.0", "a.b", "9223372036854775808.0", "1,0"} {
		if p, err := ParsePosition(text); err == nil {
			t.Errorf("%q became %s", text, p)
		}
	}
}
