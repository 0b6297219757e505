//go:build !guestd

package guestwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client is the host's side. It is safe for concurrent use. Every call is
// bounded by its context, which must carry a deadline, and by the sizes in
// this package.
type Client struct {
	http *http.Client
}

// NewClient makes a client over a transport that reaches one guest's agent.
// The transport must bound reply headers (see MaxReplyHeader).
func NewClient(transport http.RoundTripper) *Client {
	return &Client{http: &http.Client{
		Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return fmt.Errorf("redirect: %w", ErrProtocol)
		},
	}}
}

// MaxReplyHeader is the bound on a reply's header, in bytes, that a transport
// under a Client sets (http.Transport.MaxResponseHeaderBytes).
const MaxReplyHeader = 8 << 10

// Echo proves that the transport works in both directions.
func (c *Client) Echo(ctx context.Context, text string) error {
	reply, err := c.do(ctx, RouteEcho, "", url.Values{"text": {text}}, nil)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	got, err := readAll(reply, 64)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	if string(got) != text {
		return fmt.Errorf("echo: another text came back: %w", ErrProtocol)
	}
	return nil
}

// Configure gives the guest its identity.
func (c *Client) Configure(ctx context.Context, conf Configure) (Configured, error) {
	var out Configured
	err := c.call(ctx, RouteConfigure, "", conf, &out)
	if err == nil && out.Generation < conf.Generation {
		err = fmt.Errorf("generation went back: %w", ErrProtocol)
	}
	return out, wrap("configure", err)
}

// Sink takes what a reply to Start or Pull says, in the order in which it comes.
type Sink struct {
	Started func(Started)     // once, first; nil is not called
	Output  func(Frame) error // an error of it ends the reading and is returned
}

// Start starts execution id, once, and goes on as Pull: a repeat answers for the
// program that the first one started.
func (c *Client) Start(ctx context.Context, id string, start Start, sink Sink) (*Exit, error) {
	exit, err := c.frames(ctx, RouteStart, id, start, start.Pull, sink)
	return exit, wrap("start execution", err)
}

// Pull hands what the agent has to sink, in order within each stream, and
// returns the exit once the execution is over and all its output was sent.
// Frames that join on are handed over as one: a reply may hold a hundred
// thousand of a byte each.
func (c *Client) Pull(ctx context.Context, id string, pull Pull, sink Sink) (*Exit, error) {
	exit, err := c.frames(ctx, RoutePull, id, pull, pull, sink)
	return exit, wrap("pull output", err)
}

func (c *Client) frames(ctx context.Context, route, id string, request any, pull Pull, sink Sink) (exit *Exit, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	reply, err := c.do(ctx, route, id, nil, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { drop(reply, err) }()
	in := io.LimitReader(replyBody{reply.Body}, MaxPullBytes+MaxReplyBody)
	started, err := readStarted(in)
	if err != nil {
		return nil, err
	}
	if sink.Started != nil {
		sink.Started(started)
	}
	out := joiner{sink: sink.Output, next: [2]int64{pull.Stdout, pull.Stderr}}
	exit, err = out.read(in)
	if flushed := out.flush(); flushed != nil && (err == nil || !errors.Is(err, ErrProtocol)) {
		exit, err = nil, flushed
	}
	return exit, err
}

// replyBody tells a body that broke off (a repeat may mend that) from one that
// ended, as its length or last chunk said, where no frame ends.
type replyBody struct{ io.Reader }

func (b replyBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errBroken
	}
	return n, err
}

var errBroken = errors.New("connection broke in the middle of a reply")

func readStarted(r io.Reader) (Started, error) {
	frame, err := ReadFrame(r)
	if err != nil {
		return Started{}, cut(err)
	}
	if frame.Type != StartedFrame {
		return Started{}, fmt.Errorf("reply begins with another frame: %w", ErrProtocol)
	}
	return DecodeStarted(frame.Payload)
}

// maxGaps is how often one reply may skip bytes. An agent that keeps least (4
// KiB of a stream) skips 256 times in MaxPullBytes.
const maxGaps = 1024

// joinMost is the length up to which frames are joined, in bytes: what is long
// enough as it came is handed on without a copy.
const joinMost = 64 << 10

// joiner makes long frames of short ones.
type joiner struct {
	sink func(Frame) error
	next [2]int64 // offset that follows, by stream
	held [2]Frame // not handed over yet, by stream
	gaps int
}

func (j *joiner) read(r io.Reader) (*Exit, error) {
	for {
		frame, err := ReadFrame(r)
		if errors.Is(err, io.EOF) {
			return nil, nil //nolint:nilnil // no exit yet is no error
		}
		if err != nil {
			return nil, err
		}
		if frame.Type == ExitFrame {
			exit, err := DecodeExit(frame.Payload)
			if err == nil && [2]int64{exit.StdoutBytes, exit.StderrBytes} != j.next {
				err = fmt.Errorf("exit before the end of output: %w", ErrProtocol)
			}
			if err != nil {
				return nil, err
			}
			return &exit, nil
		}
		if frame.Type == StartedFrame {
			return nil, fmt.Errorf("started twice: %w", ErrProtocol)
		}
		if err := j.add(frame); err != nil {
			return nil, err
		}
	}
}

func (j *joiner) add(frame Frame) error {
	stream := frame.Type - StdoutFrame
	next, held := &j.next[stream], &j.held[stream]
	if frame.Offset < *next || len(frame.Payload) == 0 {
		return fmt.Errorf("offset goes back or frame is empty: %w", ErrProtocol)
	}
	if frame.Offset > *next {
		if j.gaps++; j.gaps > maxGaps {
			return fmt.Errorf("over %d gaps in one reply: %w", maxGaps, ErrProtocol)
		}
	}
	joins := frame.Offset == *next && len(held.Payload) > 0 && len(held.Payload)+len(frame.Payload) <= joinMost
	*next = frame.Offset + int64(len(frame.Payload))
	if *next < 0 {
		return fmt.Errorf("offset overflows: %w", ErrProtocol)
	}
	if joins {
		held.Payload = append(held.Payload, frame.Payload...)
		return nil
	}
	before := *held
	*held = frame
	if len(before.Payload) == 0 {
		return nil
	}
	return j.sink(before)
}

func (j *joiner) flush() error {
	for i := range j.held {
		if held := j.held[i]; len(held.Payload) > 0 {
			j.held[i] = Frame{}
			if err := j.sink(held); err != nil {
				return err
			}
		}
	}
	return nil
}

// Signal signals an execution.
func (c *Client) Signal(ctx context.Context, id, signal string) error {
	return wrap("signal execution", c.call(ctx, RouteSignal, id, Signal{Signal: signal}, nil))
}

// Stdin hands p, which begins at offset of all that was ever sent, to the
// program's stdin, and waits until all is taken, at most wait. end closes stdin
// once all of p is taken.
func (c *Client) Stdin(ctx context.Context, id string, offset int64, p []byte, end bool, wait time.Duration) (StdinTaken, error) {
	var out StdinTaken
	query := url.Values{
		"offset": {strconv.FormatInt(offset, 10)}, "close": {strconv.FormatBool(end)},
		"wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)},
	}
	reply, err := c.do(ctx, RouteStdin, id, query, bytes.NewReader(p))
	if err == nil {
		err = decode(reply, &out)
	}
	if err == nil && out.Offset < offset {
		err = fmt.Errorf("offset went back: %w", ErrProtocol)
	}
	return out, wrap("send stdin", err)
}

// Resize sets the size of an execution's terminal.
func (c *Client) Resize(ctx context.Context, id string, size Size) error {
	return wrap("resize terminal", c.call(ctx, RouteResize, id, size, nil))
}

// Forget frees what the agent keeps of an execution; one that still runs is
// killed. Forgetting what is not known is no error.
func (c *Client) Forget(ctx context.Context, id string) error {
	err := c.call(ctx, RouteForget, id, nil, nil)
	if Refused(err, NoExecution) {
		err = nil
	}
	return wrap("forget execution", err)
}

// Refused reports whether err is the agent's refusal with this code.
func Refused(err error, code Code) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Code == code
}

func (c *Client) call(ctx context.Context, route, id string, in, out any) error {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(encoded)
	}
	reply, err := c.do(ctx, route, id, nil, body)
	if err != nil {
		return err
	}
	return decode(reply, out)
}

// do sends one request and turns a refusal into *Error. The caller closes the
// reply's body.
func (c *Client) do(ctx context.Context, route, id string, query url.Values, body io.Reader) (*http.Response, error) {
	method, path, _ := strings.Cut(route, " ")
	path = strings.ReplaceAll(path, "{id}", url.PathEscape(id))
	target := url.URL{Scheme: "http", Host: "guest", Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	reply, err := c.http.Do(request)
	if err != nil {
		return nil, notHTTP(err)
	}
	if reply.StatusCode == http.StatusOK || reply.StatusCode == http.StatusNoContent {
		return reply, nil
	}
	var refusal Error
	if err := decode(reply, &refusal); err != nil {
		return nil, err
	}
	if refusal.Code.Status() != reply.StatusCode {
		return nil, fmt.Errorf("unknown refusal: %w", ErrProtocol)
	}
	return nil, refusal.kept()
}

// notHTTP marks an answer that is none in HTTP, or one whose header has no end,
// as what it is. net/http has no names for these errors; one that it words
// otherwise some day is repeated like a broken connection, until the agent's time
// is over.
func notHTTP(err error) error {
	if brokeInStatusLine(err.Error()) {
		return err
	}
	for _, text := range []string{"malformed HTTP", "response headers exceeded", "too many 1xx"} {
		if strings.Contains(err.Error(), text) {
			return fmt.Errorf("no HTTP in bounds: %w", ErrProtocol)
		}
	}
	return err
}

// brokeInStatusLine says whether what net/http takes for a malformed status line
// is the beginning of a good one: then the connection broke off in it.
func brokeInStatusLine(text string) bool {
	if _, line, ok := strings.Cut(text, `malformed HTTP response "`); ok {
		return strings.HasPrefix("HTTP/1.1 ", strings.TrimSuffix(line, `"`))
	}
	_, code, ok := strings.Cut(text, `malformed HTTP status code "`)
	return ok && len(code) < len(`200"`) && strings.Trim(code, "0123456789") == `"`
}

func decode(reply *http.Response, out any) error {
	data, err := readAll(reply, MaxReplyBody)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reply is not what was asked for: %w", ErrProtocol)
	}
	return nil
}

func readAll(reply *http.Response, limit int64) (data []byte, err error) {
	defer func() { drop(reply, err) }()
	data, err = io.ReadAll(io.LimitReader(reply.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("reply is over %d bytes: %w", limit, ErrProtocol)
	}
	return data, nil
}

// drop closes a body. What little is left of a good one is read, so that the
// connection can serve again; the rest of another one may never come.
func drop(reply *http.Response, err error) {
	if err == nil {
		_, _ = io.CopyN(io.Discard, reply.Body, 4<<10)
	}
	_ = reply.Body.Close()
}

func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, err)
}
