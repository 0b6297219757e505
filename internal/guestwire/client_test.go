package guestwire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
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
	_, errs["start"] = c.Start(ctx, "a", Start{})
	_, errs["pull"] = c.Pull(ctx, "a", Pull{}, func(Frame) error { return nil })
	errs["signal"] = c.Signal(ctx, "a", "SIGTERM")
	errs["forget"] = c.Forget(ctx, "a")
	_, errs["write"] = c.WriteFile(ctx, "a", 0o644, strings.NewReader("x"))
	return errs
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
	_, err2 := answer(200, `{"pid":1}`).Start(ctx, "a", Start{})
	_, err3 := answer(200, `{"mode":"0000","size":-1}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	_, err4 := answer(200, `{"mode":"0000","path":"`+strings.Repeat("a", 3*MaxPath)+`"}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	_, err5 := answer(200, `{"mode":"not what was asked for"}`).WriteFile(ctx, "a", 0, strings.NewReader(""))
	for i, err := range []error{err, err2, err3, err4, err5, answer(200, "other").Echo(ctx, "x")} {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%d: %v", i, err)
		}
	}
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, &endless{} }))
	if _, _, err := c.ReadFile(ctx, "a"); !errors.Is(err, ErrProtocol) {
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

func TestPullChecksOrder(t *testing.T) {
	t.Parallel()
	out := func(offset int64, text string) Frame {
		return Frame{Type: StdoutFrame, Offset: offset, Payload: []byte(text)}
	}
	exit := func(text string) Frame { return Frame{Type: ExitFrame, Payload: []byte(text)} }
	for name, c := range map[string]struct {
		wire string
		want error
		exit bool
	}{
		"nothing":           {"", nil, false},
		"in order":          {frames(out(5, "ab"), out(7, "c")), nil, false},
		"with a gap":        {frames(out(9, "ab")), nil, false},
		"to the end":        {frames(out(5, "ab"), exit(`{"exit_code":0,"stdout_bytes":7}`)), nil, true},
		"goes back":         {frames(out(4, "ab")), ErrProtocol, false},
		"overlaps":          {frames(out(5, "ab"), out(6, "b")), ErrProtocol, false},
		"is empty":          {frames(out(5, "")), ErrProtocol, false},
		"overflows":         {frames(out(1<<63-1, "a")), ErrProtocol, false},
		"ends too early":    {frames(out(5, "ab"), exit(`{"exit_code":0,"stdout_bytes":8}`)), ErrProtocol, false},
		"is cut":            {frames(out(5, "ab"))[:14], ErrProtocol, false},
		"has no known type": {"\x07" + strings.Repeat("\x00", 12), ErrProtocol, false},
		"impossible exit":   {frames(exit(`{"exit_code":300,"stdout_bytes":5}`)), ErrProtocol, false},
	} {
		got, err := answer(200, c.wire).Pull(t.Context(), "a", Pull{Stdout: 5}, func(Frame) error { return nil })
		if !errors.Is(err, c.want) || (got != nil) != c.exit {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	full := errors.New("ring is full")
	if _, err := answer(200, frames(out(5, "ab"))).Pull(t.Context(), "a", Pull{Stdout: 5}, func(Frame) error { return full }); !errors.Is(err, full) {
		t.Errorf("sink: %v", err)
	}
}

// A million frames of one byte end at the bound of one reply.
func TestPullIsBounded(t *testing.T) {
	t.Parallel()
	offset := int64(0)
	one := func() []byte {
		offset++
		return []byte(frames(Frame{Type: StdoutFrame, Offset: offset - 1, Payload: []byte("x")}))
	}
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, &generator{next: one} }))
	_, err := c.Pull(t.Context(), "a", Pull{}, func(Frame) error { return nil })
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
	f.Add(200, `{"pid":7}`)
	f.Add(422, `{"code":"command_not_found"}`)
	f.Add(200, frames(Frame{Type: StdoutFrame, Payload: []byte("x")}, Frame{Type: ExitFrame, Payload: []byte(`{"exit_code":0,"stdout_bytes":1}`)}))
	f.Fuzz(func(t *testing.T, status int, body string) {
		for name, err := range calls(answer(status, body)) {
			var refusal *Error
			if err != nil && !errors.Is(err, ErrProtocol) && !errors.As(err, &refusal) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestManySmallFramesCostLittle: a reply of frames of one byte each is cheap for
// the guest, and must not cost the host a write to disk for each.
func TestManySmallFramesCostLittle(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	const frames = 35_000
	for i := range int64(frames) {
		for _, kind := range []FrameType{StdoutFrame, StderrFrame} {
			if err := WriteFrame(&body, Frame{Type: kind, Offset: 5 + i, Payload: []byte{byte(i)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls, sums := 0, map[FrameType]int{}
	_, err := answer(200, body.String()).Pull(t.Context(), "a", Pull{Stdout: 5, Stderr: 5}, func(f Frame) error {
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
	})
	if err != nil || calls > 10 || sums[StdoutFrame] != frames || sums[StderrFrame] != frames {
		t.Fatalf("%d calls, %v bytes: %v", calls, sums, err)
	}
	body.Reset()
	for i := range int64(frames) {
		if err := WriteFrame(&body, Frame{Type: StdoutFrame, Offset: 2*i + 1, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := answer(200, body.String()).Pull(t.Context(), "a", Pull{}, func(Frame) error { return nil }); !errors.Is(err, ErrProtocol) {
		t.Fatalf("%d gaps: %v", frames, err)
	}
}
