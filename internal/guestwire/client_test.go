package guestwire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// agentFunc is an agent that answers every request with what it likes.
type agentFunc func(*http.Request) (status int, length int64, body io.Reader)

func (f agentFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	status, length, body := f(r)
	header := http.Header{"Location": {"http://elsewhere/"}}
	return &http.Response{StatusCode: status, ContentLength: length, Header: header, Body: io.NopCloser(body), Request: r}, nil
}

// answer is a client whose agent always gives this reply.
func answer(status int, body string) *Client {
	return NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) {
		return status, int64(len(body)), strings.NewReader(body)
	}))
}

// endless gives bytes for ever and counts them.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.n += int64(len(p))
	return len(p), nil
}

// calls is every method that reads a reply as a whole.
func calls(c *Client) map[string]error {
	ctx := context.Background()
	errs := make(map[string]error)
	errs["echo"] = c.Echo(ctx, "x")
	_, errs["configure"] = c.Configure(ctx, Configure{Generation: 2})
	_, errs["start"] = c.Start(ctx, "a", Start{}, into(nil))
	_, errs["pull"] = c.Pull(ctx, "a", Pull{}, into(nil))
	errs["signal"] = c.Signal(ctx, "a", "SIGTERM")
	_, errs["stdin"] = c.Stdin(ctx, "a", 7, []byte("x"), false, time.Second)
	errs["resize"] = c.Resize(ctx, "a", Size{Rows: 1, Cols: 1})
	errs["forget"] = c.Forget(ctx, "a")
	_, errs["write"] = c.WriteFile(ctx, "a", 0o644, strings.NewReader("x"))
	_, errs["append"] = c.AppendFile(ctx, "a", 7, 0o644, strings.NewReader("x"))
	_, errs["batch"] = c.WriteFiles(ctx, []NewFile{{Path: "a", Content: []byte("x")}})
	_, errs["move"] = c.Move(ctx, Move{From: "a", To: "b"})
	_, errs["make directory"] = c.MakeDir(ctx, "a", 0o755)
	_, errs["stat"] = c.Stat(ctx, "a")
	_, errs["remove"] = c.Remove(ctx, "a", true)
	_, _, errs["list"] = c.List(ctx, List{Path: "a", Depth: 2, Limit: 10})
	_, errs["unpack"] = c.WriteArchive(ctx, "a", false, false, strings.NewReader("x"))
	errs["watch"] = c.Watch(ctx, "a", true, func(Change) error { return nil })
	return errs
}

// into is a sink that keeps what comes in list, which may be nil.
func into(list *[]Frame) Sink {
	return Sink{Output: func(f Frame) error {
		if list != nil {
			*list = append(*list, f)
		}
		return nil
	}}
}

func TestEndlessRepliesAreBounded(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 400, 404, 500} {
		var body *endless
		c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) {
			body = &endless{}
			return status, -1, body
		}))
		for name, err := range calls(c) {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%d %s: %v", status, name, err)
			}
		}
		if body.n > 8*MaxReplyBody {
			t.Errorf("%d bytes were read", body.n)
		}
	}
}

func TestRefusalsAreAClosedList(t *testing.T) {
	t.Parallel()
	for code, status := range statusOf {
		err := answer(status, fmt.Sprintf(`{"code":%q,"detail":"from the guest"}`, code)).Signal(t.Context(), "a", "SIGTERM")
		if !Refused(err, code) || strings.Contains(err.Error(), "from the guest") {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, c := range []*Client{
		answer(400, `{"code":"made_up"}`), answer(404, `{"code":"bad_request"}`), answer(500, `not JSON`), answer(418, `{}`),
		answer(201, `{}`), answer(302, ``), answer(400, strings.Repeat("[", 50_000)),
	} {
		for name, err := range calls(c) {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestImpossibleRepliesBreakTheProtocol(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, err := answer(200, `{"generation":1}`).Configure(ctx, Configure{Generation: 2})
	_, err2 := answer(200, `{"offset":4,"closed":false}`).Stdin(ctx, "a", 5, nil, false, 0)
	_, err3 := answer(200, `{"mode":"0000","size":-1}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	_, err4 := answer(200, `{"mode":"0000","path":"`+strings.Repeat("a", 3*MaxPath)+`"}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	_, err5 := answer(200, `{"mode":"not what was asked for"}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	for i, err := range []error{err, err2, err3, err4, err5, answer(200, "other").Echo(ctx, "x")} {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%d: %v", i, err)
		}
	}
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, &endless{} }))
	if _, _, err := c.ReadFile(ctx, "a", Whole); !errors.Is(err, ErrProtocol) {
		t.Errorf("a file without a length: %v", err)
	}
}

func frames(list ...Frame) string {
	var wire bytes.Buffer
	for _, f := range list {
		if err := WriteFrame(&wire, f); err != nil {
			panic(err)
		}
	}
	return wire.String()
}

func started(text string) Frame { return Frame{Type: StartedFrame, Payload: []byte(text)} }

var begun = started(`{"pid":7}`)

func out(offset int64, text string) Frame {
	return Frame{Type: StdoutFrame, Offset: offset, Payload: []byte(text)}
}

func exited(text string) Frame { return Frame{Type: ExitFrame, Payload: []byte(text)} }

func TestPullChecksOrder(t *testing.T) {
	t.Parallel()
	whole := frames(begun, out(5, "ab"))
	for name, c := range map[string]struct {
		wire string
		want error
		exit bool
	}{
		"nothing more":            {frames(begun), nil, false},
		"in order":                {frames(begun, out(5, "ab"), out(7, "c")), nil, false},
		"with a gap":              {frames(begun, out(9, "ab")), nil, false},
		"to the end":              {frames(begun, out(5, "ab"), exited(`{"exit_code":0,"stdout_bytes":7}`)), nil, true},
		"goes back":               {frames(begun, out(4, "ab")), ErrProtocol, false},
		"overlaps":                {frames(begun, out(5, "ab"), out(6, "b")), ErrProtocol, false},
		"is empty":                {frames(begun, out(5, "")), ErrProtocol, false},
		"overflows":               {frames(begun, out(1<<63-1, "a")), ErrProtocol, false},
		"ends too early":          {frames(begun, out(5, "ab"), exited(`{"exit_code":0,"stdout_bytes":8}`)), ErrProtocol, false},
		"ends in a frame":         {whole[:len(whole)-1], ErrProtocol, false},
		"ends in a header":        {whole[:len(whole)-3], ErrProtocol, false},
		"has no known type":       {frames(begun) + "\x07" + strings.Repeat("\x00", 12), ErrProtocol, false},
		"impossible exit":         {frames(begun, exited(`{"exit_code":300,"stdout_bytes":5}`)), ErrProtocol, false},
		"not started":             {frames(out(5, "ab")), ErrProtocol, false},
		"ended, never started":    {frames(exited(`{"exit_code":0,"stdout_bytes":5}`)), ErrProtocol, false},
		"nothing at all":          {"", ErrProtocol, false},
		"ends before the start":   {frames(begun)[:5], ErrProtocol, false},
		"started twice":           {frames(begun, begun), ErrProtocol, false},
		"started late again":      {frames(begun, out(5, "ab"), begun), ErrProtocol, false},
		"pid of PID 1":            {frames(started(`{"pid":1}`)), ErrProtocol, false},
		"negative pid":            {frames(started(`{"pid":-7}`)), ErrProtocol, false},
		"started without a pid":   {frames(started(`{}`)), ErrProtocol, false},
		"started with no JSON":    {frames(started(`pid 7`)), ErrProtocol, false},
		"started with a long pid": {frames(started(`{"pid":18446744073709551616}`)), ErrProtocol, false},
	} {
		for verb, call := range map[string]func(*Client, Sink) (*Exit, error){
			"pull": func(c *Client, s Sink) (*Exit, error) { return c.Pull(t.Context(), "a", Pull{Stdout: 5}, s) },
			"start": func(c *Client, s Sink) (*Exit, error) {
				return c.Start(t.Context(), "a", Start{Pull: Pull{Stdout: 5}}, s)
			},
		} {
			told := 0
			sink := into(nil)
			sink.Started = func(s Started) {
				if told++; s.PID != 7 {
					t.Errorf("%s: pid %d", name, s.PID)
				}
			}
			got, err := call(answer(200, c.wire), sink)
			if !errors.Is(err, c.want) || (got != nil) != c.exit || told > 1 || c.want == nil && told != 1 {
				t.Errorf("%s %s: %+v %v, told %d times of the start", verb, name, got, err, told)
			}
		}
	}
	full := errors.New("ring is full")
	sink := Sink{Output: func(Frame) error { return full }}
	if _, err := answer(200, whole).Pull(t.Context(), "a", Pull{Stdout: 5}, sink); !errors.Is(err, full) {
		t.Errorf("sink: %v", err)
	}
}

// A connection that breaks is no lie: what came before counts, and a repeat may
// mend it. That holds wherever it breaks, and however the body's length was told.
func TestABrokenConnectionIsNoBrokenProtocol(t *testing.T) {
	t.Parallel()
	wire := frames(begun, out(5, "abc"), exited(`{"exit_code":0,"stdout_bytes":8}`))
	for cut := range len(wire) {
		for form, text := range map[string]string{
			"length": fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(wire), wire[:cut]),
			"chunk":  fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", len(wire), wire[:cut]),
			"chunks": fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", max(cut, 1), wire[:max(cut, 1)]),
		} {
			var got []Frame
			exit, err := NewClient(textTransport(text)).Pull(t.Context(), "a", Pull{Stdout: 5}, into(&got))
			if err == nil || errors.Is(err, ErrProtocol) || exit != nil {
				t.Fatalf("%s, cut at %d: %+v %v", form, cut, exit, err)
			}
			if cut >= len(frames(begun, out(5, "abc"))) && (len(got) != 1 || string(got[0].Payload) != "abc") {
				t.Errorf("%s, cut at %d: got %v", form, cut, got)
			}
		}
	}
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 26\r\n\r\n"
	for cut := range len(head) {
		_, err := NewClient(textTransport(head[:cut])).Pull(t.Context(), "a", Pull{}, into(nil))
		if err == nil || errors.Is(err, ErrProtocol) {
			t.Errorf("header cut at %d: %v", cut, err)
		}
	}
	reset := errors.New("connection reset")
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) {
		return 200, -1, io.MultiReader(strings.NewReader(wire[:20]), iotest.ErrReader(reset))
	}))
	if _, err := c.Pull(t.Context(), "a", Pull{Stdout: 5}, into(nil)); !errors.Is(err, reset) || errors.Is(err, ErrProtocol) {
		t.Errorf("reset: %v", err)
	}
}

// textTransport answers with a reply as it stands on the wire.
type textTransport string

func (text textTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return http.ReadResponse(bufio.NewReader(strings.NewReader(string(text))), r)
}

func TestStdinSaysWhatItSends(t *testing.T) {
	t.Parallel()
	var query, body string
	c := NewClient(transportFunc(func(r *http.Request) (*http.Response, error) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		query, body = r.URL.RawQuery, string(data)
		return http.ReadResponse(bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n"+`{"offset":9,"closed":true} `)), r)
	}))
	taken, err := c.Stdin(t.Context(), "a", 7, []byte("xyz"), true, 1500*time.Millisecond)
	if err != nil || taken != (StdinTaken{Offset: 9, Closed: true}) || query != "close=true&offset=7&wait_ms=1500" || body != "xyz" {
		t.Errorf("%+v %v, sent %q with %q", taken, err, body, query)
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A million frames of one byte end at the bound of one reply.
func TestPullIsBounded(t *testing.T) {
	t.Parallel()
	offset := int64(0)
	first := frames(begun)
	one := func() []byte {
		if first != "" {
			text := first
			first = ""
			return []byte(text)
		}
		offset++
		return []byte(frames(Frame{Type: StdoutFrame, Offset: offset - 1, Payload: []byte("x")}))
	}
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, &generator{next: one} }))
	_, err := c.Pull(t.Context(), "a", Pull{}, into(nil))
	if err != nil && !errors.Is(err, ErrProtocol) || offset > MaxPullBytes {
		t.Errorf("%v after %d frames", err, offset)
	}
}

type generator struct {
	next func() []byte
	rest []byte
}

func (g *generator) Read(p []byte) (int, error) {
	if len(g.rest) == 0 {
		g.rest = g.next()
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

// Whatever a reply says, every call ends with a result that keeps the bounds,
// or an error of a known kind.
func FuzzClient(f *testing.F) {
	f.Add(200, `{"generation":2}`)
	f.Add(200, `{"offset":8,"closed":true}`)
	f.Add(422, `{"code":"command_not_found"}`)
	f.Add(200, frames(begun, out(0, "x"), exited(`{"exit_code":0,"stdout_bytes":1}`)))
	f.Fuzz(func(t *testing.T, status int, body string) {
		for name, err := range calls(answer(status, body)) {
			var refusal *Error
			if err != nil && !errors.Is(err, ErrProtocol) && !errors.As(err, &refusal) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Whatever frames come, and wherever they stop: the start is told once and
// first, output comes in order, in frames that keep the bounds, and an exit only
// after all of it. A body that broke off is no lie.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(frames(begun, out(5, "ab"), out(7, "c"), exited(`{"exit_code":0,"stdout_bytes":8}`))), false)
	f.Add([]byte(frames(begun, out(9, "ab"), Frame{Type: StderrFrame, Payload: []byte("x")}, out(11, "c"))), true)
	f.Add([]byte(frames(begun, begun)), false)
	f.Add([]byte(frames(out(5, "a"))), false)
	f.Add([]byte(frames(begun, out(5, "ab"))[:30]), true)
	f.Add([]byte(frames(begun, out(1<<63-2, "ab"))), false)
	f.Fuzz(func(t *testing.T, wire []byte, broken bool) {
		body := io.Reader(bytes.NewReader(wire))
		if broken {
			body = io.MultiReader(body, iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, body }))
		told, next := 0, map[FrameType]int64{StdoutFrame: 5, StderrFrame: 0}
		exit, err := c.Pull(t.Context(), "a", Pull{Stdout: 5}, Sink{
			Started: func(s Started) {
				if told++; s.PID <= 1 {
					t.Errorf("pid %d", s.PID)
				}
			},
			Output: func(f Frame) error {
				if at, ok := next[f.Type]; !ok || told != 1 || f.Offset < at || len(f.Payload) == 0 || len(f.Payload) > MaxFramePayload {
					t.Errorf("frame %d of %d bytes at %d, after %d", f.Type, len(f.Payload), f.Offset, at)
				}
				next[f.Type] = f.Offset + int64(len(f.Payload))
				return nil
			},
		})
		if err == nil && told != 1 || exit != nil && (err != nil || exit.StdoutBytes != next[StdoutFrame] || exit.StderrBytes != next[StderrFrame]) {
			t.Errorf("%+v %v, told %d times of the start", exit, err, told)
		}
		if err != nil && !broken && !errors.Is(err, ErrProtocol) {
			t.Error(err)
		}
	})
}

// TestManySmallFramesCostLittle: a reply of frames of one byte each is cheap for
// the guest, and must not cost the host a write to disk for each.
func TestManySmallFramesCostLittle(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	body.WriteString(frames(begun))
	const frames = 35_000
	for i := range int64(frames) {
		for _, kind := range []FrameType{StdoutFrame, StderrFrame} {
			if err := WriteFrame(&body, Frame{Type: kind, Offset: 5 + i, Payload: []byte{byte(i)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls, sums := 0, map[FrameType]int{}
	_, err := answer(200, body.String()).Pull(t.Context(), "a", Pull{Stdout: 5, Stderr: 5}, Sink{Output: func(f Frame) error {
		if f.Offset != int64(5+sums[f.Type]) {
			t.Errorf("offset %d after %d bytes", f.Offset, sums[f.Type])
		}
		for i, b := range f.Payload {
			if b != byte(sums[f.Type]+i) {
				t.Fatalf("byte %d is %d", sums[f.Type]+i, b)
			}
		}
		calls++
		sums[f.Type] += len(f.Payload)
		return nil
	}})
	if err != nil || calls > 10 || sums[StdoutFrame] != frames || sums[StderrFrame] != frames {
		t.Fatalf("%d calls, %v bytes: %v", calls, sums, err)
	}
	body.Reset()
	if err := WriteFrame(&body, begun); err != nil {
		t.Fatal(err)
	}
	for i := range int64(frames) {
		if err := WriteFrame(&body, Frame{Type: StdoutFrame, Offset: 2*i + 1, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := answer(200, body.String()).Pull(t.Context(), "a", Pull{}, into(nil)); !errors.Is(err, ErrProtocol) {
		t.Fatalf("%d gaps: %v", frames, err)
	}
}
