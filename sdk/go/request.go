package microvm

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// replyLimit bounds one JSON reply: an execution's two streams of 1 MiB may
	// take six bytes for one when every byte is escaped.
	replyLimit = 32 << 20
	// errorLimit bounds the body of an error reply.
	errorLimit = 1 << 20
	// readTimeout bounds one try of a read, and of a request that waits, beyond
	// what it asks the server to wait: a server that is silent for longer counts
	// as a lost connection.
	readTimeout = time.Minute
	// maxPause is the longest Retry-After that is waited for.
	maxPause = 30 * time.Second
	// silenceLimit bounds how long a stream may be silent: the node gives a sign of
	// life every 15 s.
	silenceLimit = 45 * time.Second
	// firstPause and lastPause bound the pauses after a lost connection.
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// request is one call, which may become several tries.
type request struct {
	verb    string // "get sandbox", for errors
	method  string
	path    string
	query   url.Values
	json    any           // body as JSON, or nil
	bytes   []byte        // body as bytes, or nil
	stream  io.Reader     // body that can be read once, or nil
	size    int64         // of stream in bytes; -1 is unknown
	wait    time.Duration // that the server may take before it answers whole
	long    bool          // takes as long as it takes: a file
	again   bool          // a repeat does nothing twice although it is no read
	once    bool          // a repeat meets something else, although it is a delete
	retries int           // beyond the client's own
	header  map[string]string
}

// safe reports whether a repeat cannot do anything twice. Deleting is: the
// specification promises that deleting again changes nothing.
func (r request) safe() bool {
	return !r.once && (r.method == http.MethodGet || r.method == http.MethodDelete || r.again)
}

// call makes the request and decodes its reply into out.
func (c *Client) call(ctx context.Context, r request, out any) error {
	return c.try(ctx, r, func(reply *http.Response) error { return decode(reply, out) })
}

// decode reads a reply's body into out.
func decode(reply *http.Response, out any) error {
	text, err := io.ReadAll(io.LimitReader(reply.Body, replyLimit+1))
	if err != nil {
		return &ConnectionError{Sent: true, Err: err}
	}
	if len(text) > replyLimit {
		return fmt.Errorf("the reply is over %d bytes", replyLimit)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("the reply is not what the API promises: %w", err)
	}
	if got, want := objectOf(out); got != want {
		return fmt.Errorf("the reply is not what the API promises: object is %q, not %q", got, want)
	}
	return nil
}

// try makes the request until read has taken a successful reply, or a repeat is
// no use or not safe.
func (c *Client) try(ctx context.Context, r request, read func(*http.Response) error) error {
	if c.invalid != nil {
		return c.invalid
	}
	if r.json != nil {
		var err error
		if r.bytes, err = json.Marshal(r.json); err != nil {
			return fmt.Errorf("%s: encode body: %w", r.verb, err)
		}
	}
	for n := 0; ; n++ {
		err := c.once(ctx, r, read)
		if err == nil {
			return nil
		}
		pause, again := r.pause(err, n)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", r.verb, contextError(ctx, err))
		}
		if !again || n >= c.retries+r.retries {
			return fmt.Errorf("%s: %w", r.verb, err)
		}
		if c.sleep(ctx, pause) != nil {
			return fmt.Errorf("%s: %w", r.verb, contextError(ctx, err))
		}
	}
}

// once makes one try.
func (c *Client) once(ctx context.Context, r request, read func(*http.Response) error) error {
	if (r.method == http.MethodGet && !r.long) || r.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readTimeout+r.wait)
		defer cancel()
	}
	var handshake atomic.Bool // failed: nothing of the request was sent
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { handshake.Store(err != nil) },
	})
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, nil)
	if err != nil {
		return err
	}
	req.URL.RawQuery = r.query.Encode()
	req.Header = c.header()
	req.Header.Set("Accept", "application/json, application/octet-stream")
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	body := r.attach(req)
	reply, err := c.http.Do(req)
	if err != nil {
		if cause := body.failure(); cause != nil {
			return fmt.Errorf("read body: %w", cause)
		}
		return connectionError(err, handshake.Load())
	}
	defer func() { _ = reply.Body.Close() }() // what mattered of it was read
	if reply.StatusCode/100 != 2 {
		return ReadError(reply)
	}
	return read(reply)
}

// attach gives the request its body. The result is nil where that is no stream.
func (r request) attach(req *http.Request) *sourceReader {
	switch {
	case r.stream != nil:
		source := &sourceReader{r: r.stream}
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Body, req.ContentLength = io.NopCloser(source), r.size
		if r.size == 0 {
			req.Body = http.NoBody
		}
		// A refusal then comes before the body is sent, and is not lost in a
		// connection that breaks under it.
		req.Header.Set("Expect", "100-continue")
		return source
	case r.bytes != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
		if r.json != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		// With GetBody the transport itself replaces a kept connection that the
		// server had closed before a byte was written.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.bytes)), nil }
		req.Body, _ = req.GetBody()
		req.ContentLength = int64(len(r.bytes))
		if len(r.bytes) == 0 {
			req.Body = http.NoBody
		}
		if len(r.bytes) > 64<<10 {
			req.Header.Set("Expect", "100-continue")
		}
	}
	return nil
}

// pause says whether a repeat is safe and useful after err, and after how long.
func (r request) pause(err error, n int) (time.Duration, bool) {
	var refused *Error
	if errors.As(err, &refused) {
		if !r.safe() || (refused.Status != http.StatusTooManyRequests && refused.Status != http.StatusServiceUnavailable) {
			return 0, false
		}
		if refused.RetryAfter > 0 {
			return refused.RetryAfter, refused.RetryAfter <= maxPause
		}
		return backoff(n), true
	}
	var lost *ConnectionError
	if errors.As(err, &lost) && !lost.final {
		return backoff(n), r.safe() || !lost.Sent
	}
	return 0, false
}

// backoff doubles with each try and is spread, so that many clients do not come
// back together.
func backoff(n int) time.Duration {
	d := firstPause << min(n, 10)
	d = min(d, lastPause)
	return d/2 + rand.N(d/2+1) //nolint:gosec // spreads load, guards nothing
}

// contextError names the context's end as the cause and keeps whether the
// request was sent.
func contextError(ctx context.Context, err error) error {
	var lost *ConnectionError
	if errors.As(err, &lost) {
		return &ConnectionError{Sent: lost.Sent, Err: context.Cause(ctx)}
	}
	return fmt.Errorf("%w (before that: %w)", context.Cause(ctx), err)
}

// ReadError makes an *Error of a reply that is none of success. One that is not
// the API's own has no code. It does not close the body.
func ReadError(reply *http.Response) error {
	e := &Error{
		Status:     reply.StatusCode,
		RequestID:  reply.Header.Get("Request-Id"),
		RetryAfter: retryAfter(reply.Header.Get("Retry-After")),
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, errorLimit))
	var body ErrorReply
	if err == nil && json.Unmarshal(text, &body) == nil && body.Error.Code != "" {
		d := body.Error
		e.Type, e.Code, e.Message, e.DocURL = d.Type, d.Code, d.Message, d.DocURL
		if d.Param != nil {
			e.Param = *d.Param
		}
		if d.RequestID != "" {
			e.RequestID = d.RequestID
		}
		return e
	}
	kind, _, _ := mime.ParseMediaType(reply.Header.Get("Content-Type"))
	if kind == "" {
		kind = "no content type"
	}
	e.Message = fmt.Sprintf("the reply is HTTP %d with %s and not one of Microvm's; check that the address is a Microvm node and what stands before it", reply.StatusCode, kind)
	return e
}

// retryAfter reads seconds; the API sends no dates (RFC 9110, 10.2.3 allows both).
func retryAfter(text string) time.Duration {
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 || seconds > 1<<30 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// objectOf returns the reply's object field and what it must be.
func objectOf(out any) (got, want string) {
	switch v := out.(type) {
	case *Sandbox:
		return string(v.Object), string(SandboxObjectSandbox)
	case *Execution:
		return string(v.Object), string(ExecutionObjectExecution)
	case *ExecutionStdin:
		return string(v.Object), string(ExecutionStdinObjectExecutionStdin)
	case *Ticket:
		return string(v.Object), string(TicketObjectTicket)
	case *File:
		return string(v.Object), string(FileObjectFile)
	case *FileList:
		return string(v.Object), string(ListObjectList)
	case *FileBatchWritten:
		return string(v.Object), string(FileBatchWrittenObjectFileBatch)
	case *FileRemoved:
		return string(v.Object), string(FileRemovedObjectFileRemoved)
	case *ArchiveUnpacked:
		return string(v.Object), string(ArchiveUnpackedObjectArchiveUnpacked)
	case *Health:
		return string(v.Object), string(HealthObjectHealth)
	case *SandboxList:
		return string(v.Object), string(ListObjectList)
	case *ExecutionList:
		return string(v.Object), string(ListObjectList)
	case *Image:
		return string(v.Object), string(ImageObjectImage)
	case *ImageList:
		return string(v.Object), string(ListObjectList)
	default:
		return "", "a known type"
	}
}

// sourceReader keeps the error of a caller's reader, so that it is not taken
// for one of the connection.
type sourceReader struct {
	r   io.Reader
	mu  sync.Mutex
	err error // guarded by mu: the transport reads in a goroutine of its own
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *sourceReader) failure() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// escape makes one segment of a path of an id. An id that would become another
// path is refused before it is sent.
func escape(noun, id string) (string, error) {
	if id == "" || id == "." || id == ".." {
		return "", fmt.Errorf("%q is no id of %s", id, noun)
	}
	return url.PathEscape(id), nil
}
