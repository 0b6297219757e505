package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// Bounds on a request's body as it arrives. A caller must send something every
// readStall, and after readGrace of waiting on it, minReadRate on average; time
// in which we are the slow side does not count.
const (
	readStall   = 30 * time.Second
	readGrace   = 60 * time.Second
	minReadRate = 1 << 10 // bytes/s

	lingerBytes = 64 << 20 // of a refused body that are read and dropped
	lingerTime  = 5 * time.Second
	serverSkips = 256 << 10 // bytes that net/http itself skips to keep a connection
)

var errBodyClosed = errors.New("read body: the request has ended")

// body is a request's body with bounds on its sender. An HTTP transport that
// passes it on may still be in Read when its call has returned, so everything
// but Read must work without waiting for a Read that is under way.
type body struct {
	source  io.ReadCloser
	control *http.ResponseController
	length  int64 // as announced; -1 unknown
	expects bool  // the caller waits for "100 Continue"

	read   atomic.Int64 // bytes
	ended  atomic.Bool  // at its end, or broken
	closed atomic.Bool  // no more reads through Read

	mu     sync.Mutex    // held during a read of source
	waited time.Duration // in reads; guarded by mu
}

func newBody(r *http.Request, control *http.ResponseController) *body {
	b := &body{
		source:  r.Body,
		control: control,
		length:  r.ContentLength,
		expects: strings.EqualFold(r.Header.Get("Expect"), "100-continue"),
	}
	b.ended.Store(r.ContentLength == 0 || r.Body == http.NoBody)
	return b
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return 0, errBodyClosed
	}
	if b.ended.Load() {
		return 0, io.EOF
	}
	began := time.Now()
	left := readGrace + time.Duration(b.read.Load()/minReadRate)*time.Second - b.waited
	_ = b.control.SetReadDeadline(began.Add(min(readStall, left)))
	n, err := b.source.Read(p)
	b.waited += time.Since(began)
	b.read.Add(int64(n))
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.ended.Store(true)
		_ = b.control.SetReadDeadline(time.Time{}) // else net/http takes it for a caller who left
		return n, io.EOF
	case b.closed.Load():
		return n, errBodyClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, fault.Wrap(err, fault.BodyInvalid, "the body came too slowly; send it again over a better connection")
	default:
		b.ended.Store(true)
		return n, fault.Wrap(fmt.Errorf("read body: %w", err), fault.BodyInvalid, "the body broke off or is not framed as HTTP wants; send it again")
	}
}

func (b *body) Close() error { return nil } // net/http closes the source

// finish ends all reads, also those of others who still hold the body.
func (b *body) finish() {
	b.closed.Store(true)
	if b.mu.TryLock() {
		b.mu.Unlock()
		return
	}
	_ = b.control.SetReadDeadline(time.Now())
}

// rest reports whether more of the body is to come than net/http would skip.
func (b *body) rest() bool {
	if b.ended.Load() {
		return false
	}
	return b.length < 0 || b.length-b.read.Load() > serverSkips
}

// prepareLinger is called before the header of an error. When much of the body
// is still to come, the connection cannot be used again; it says so, and
// arranges that the rest can be read after the reply.
func (x *exchange) prepareLinger() bool {
	if !x.body.rest() {
		return false
	}
	x.Header().Set("Connection", "close")
	return x.control.EnableFullDuplex() == nil
}

// linger sends the reply and then reads and drops a bounded amount of the body.
// A connection that is closed while the caller still sends is reset, and the
// reset may destroy the reply before the caller reads it (RFC 9112, 9.6).
func (x *exchange) linger() {
	if x.control.Flush() != nil {
		return
	}
	b := x.body
	b.finish()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expects && b.read.Load() == 0 {
		return // it sends nothing until we ask
	}
	if x.control.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, b.source, lingerBytes); errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
}
