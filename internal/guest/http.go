package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// The agent's own HTTP/1.1 server: it has one client (guestwire.Client), and
// net/http would double the agent's size and bring TLS and HTTP/2 beside
// hostile code. It keeps RFC 9112 as far as it goes, and refuses the rest.
const (
	maxHeader    = 16 << 10         // bytes of a request's line and header fields
	maxFields    = 64               // header fields
	maxChunkLine = 256              // bytes of a chunk's size line, or of a trailer
	drainWait    = 5 * time.Second  // for a body nobody wants
	idleWait     = 5 * time.Minute  // between two requests
	moveWait     = 30 * time.Second // for the other side to take or give the next bytes
)

var errRequest = errors.New("request is malformed or too large")

// request is one parsed request; body is valid until its handler returns.
type request struct {
	method string
	path   string // as sent, still escaped
	query  url.Values
	id     string // of the route's {id}
	body   io.Reader
	length int64 // of the body; negative when it comes in chunks
	close  bool  // no more is wanted on this connection
	conn   *bufio.Reader
}

// leave waits until the client leaves, or says something that nobody waits for.
// The request must have been read, and the connection serves no other.
func (r *request) leave() {
	for {
		_, err := r.conn.Peek(1)
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return
		}
	}
}

// timedConn gives the other side a time for each read and write.
type timedConn struct {
	net.Conn
	wait time.Duration // for a read; owner: who reads
}

func (c *timedConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.wait)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *timedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(moveWait)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// serve answers the requests of one connection until it, or the client, wants
// no more.
func (a *Agent) serve(conn net.Conn) {
	timed := &timedConn{Conn: conn}
	reader, writer := bufio.NewReaderSize(timed, 4<<10), bufio.NewWriterSize(timed, 4<<10)
	for {
		timed.wait = idleWait
		if _, err := reader.Peek(1); err != nil {
			return
		}
		timed.wait = moveWait
		r, err := readRequest(reader)
		w := &reply{out: writer}
		if err != nil {
			if errors.Is(err, errRequest) {
				w.refuse(refuse(guestwire.BadRequest, err.Error()))
				_ = writer.Flush()
			}
			return
		}
		a.handle(w, r)
		if w.finish() != nil || r.close {
			return
		}
		if !drain(r.body) {
			return
		}
	}
}

// drain reads what a handler left of a body, for at most drainWait, so that a
// client which still sends gets to read the refusal before the connection
// ends; it says whether the connection can go on.
func drain(body io.Reader) bool {
	until := time.Now().Add(drainWait)
	for time.Now().Before(until) {
		_, err := io.CopyN(io.Discard, body, 64<<10)
		if err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}

// readRequest reads the line and the header of a request.
func readRequest(reader *bufio.Reader) (*request, error) {
	left := maxHeader
	line, err := readLine(reader, &left)
	if err != nil {
		return nil, err
	}
	part := strings.Split(line, " ")
	if len(part) != 3 || part[2] != "HTTP/1.1" || !strings.HasPrefix(part[1], "/") {
		return nil, fmt.Errorf("request line: %w", errRequest)
	}
	path, rawQuery, _ := strings.Cut(part[1], "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, fmt.Errorf("query: %w", errRequest)
	}
	r := &request{method: part[0], path: path, query: query, conn: reader}
	return r, r.readHeader(reader, &left)
}

// readHeader reads the header fields and decides what the body is.
func (r *request) readHeader(reader *bufio.Reader, left *int) error {
	length, chunked, seen := int64(0), false, false
	for range maxFields {
		line, err := readLine(reader, left)
		if err != nil {
			return err
		}
		if line == "" {
			r.length, r.body = length, &exactReader{in: reader, left: length}
			if chunked {
				r.length, r.body = -1, &chunkReader{in: reader}
			}
			return nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return fmt.Errorf("header field: %w", errRequest)
		}
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			length, err = strconv.ParseInt(value, 10, 64)
			if err != nil || length < 0 || value[0] == '+' || seen {
				return fmt.Errorf("content length: %w", errRequest)
			}
			seen = true
		case "transfer-encoding":
			if seen || !strings.EqualFold(value, "chunked") {
				return fmt.Errorf("transfer encoding: %w", errRequest)
			}
			chunked, seen = true, true
		case "connection":
			r.close = r.close || strings.EqualFold(value, "close")
		case "expect":
			return fmt.Errorf("expectation: %w", errRequest)
		}
	}
	return fmt.Errorf("over %d header fields: %w", maxFields, errRequest)
}

// readLine reads one line of at most *left bytes, without its end, and takes
// its length from *left.
func readLine(reader *bufio.Reader, left *int) (string, error) {
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		*left -= len(part)
		if *left < 0 {
			return "", fmt.Errorf("header over its bound: %w", errRequest)
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return "", err
		}
		break
	}
	text, ok := strings.CutSuffix(string(line), "\r\n")
	if !ok || strings.ContainsAny(text, "\r\x00") {
		return "", fmt.Errorf("line: %w", errRequest)
	}
	return text, nil
}

// exactReader reads a body of a known length; one that is cut short is
// io.ErrUnexpectedEOF.
type exactReader struct {
	in   io.Reader
	left int64
}

func (b *exactReader) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.in.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if errors.Is(err, io.EOF) && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// chunkReader reads a chunked body (RFC 9112, 7.1).
type chunkReader struct {
	in    *bufio.Reader
	chunk exactReader
	begun bool
	done  error
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for c.done == nil && c.chunk.left == 0 {
		c.done = c.next()
	}
	if c.done != nil {
		return 0, c.done
	}
	n, err := c.chunk.Read(p)
	if err != nil {
		c.done = unexpected(err)
	}
	return n, c.done
}

// next goes to the next chunk; io.EOF follows the last one and its trailers.
func (c *chunkReader) next() error {
	left := maxChunkLine
	if c.begun {
		if line, err := readLine(c.in, &left); err != nil || line != "" {
			return fmt.Errorf("end of chunk: %w", cmpErr(unexpected(err), errRequest))
		}
	}
	c.begun = true
	line, err := readLine(c.in, &left)
	if err != nil {
		return unexpected(err)
	}
	digits, _, _ := strings.Cut(line, ";")
	size, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 62)
	if err != nil {
		return fmt.Errorf("size of chunk: %w", errRequest)
	}
	if size > 0 {
		c.chunk = exactReader{in: c.in, left: int64(size)} //nolint:gosec // 62 bits
		return nil
	}
	for left = maxHeader; ; {
		if line, err := readLine(c.in, &left); err != nil {
			return unexpected(err)
		} else if line == "" {
			return io.EOF
		}
	}
}

// unexpected says that an end in the middle of a body is no clean end.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
