package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/microvmd/microvm/internal/guestwire"
)

// reply is the answer to one request. Once its header is out, what fails
// breaks the connection: the client sees a body that ends too early.
type reply struct {
	out     *bufio.Writer
	begun   bool
	chunked bool
	err     error
}

// header writes the status line and how the body's end is told: length, or
// chunks when it is negative. A 204 has none. fields are lines of their own.
func (w *reply) header(status int, kind string, length int64, fields ...string) {
	w.begun = true
	w.line("HTTP/1.1 ", strconv.Itoa(status), map[bool]string{true: " OK", false: " Refused"}[status < 300])
	if status != 204 {
		w.line("Content-Type: ", kind)
		if w.chunked = length < 0; w.chunked {
			w.line("Transfer-Encoding: chunked")
		} else {
			w.line("Content-Length: ", strconv.FormatInt(length, 10))
		}
	}
	for _, field := range fields {
		w.line(field)
	}
	w.line()
}

// line writes a line of the header, or around a chunk.
func (w *reply) line(parts ...string) {
	for _, part := range parts {
		w.write(part)
	}
	w.write("\r\n")
}

func (w *reply) write(text string) {
	if w.err == nil {
		_, w.err = w.out.WriteString(text)
	}
}

// Write adds to the body.
func (w *reply) Write(p []byte) (int, error) {
	if w.err != nil || len(p) == 0 {
		return 0, w.err
	}
	if w.chunked {
		w.line(strconv.FormatInt(int64(len(p)), 16))
	}
	n := 0
	if w.err == nil {
		n, w.err = w.out.Write(p)
	}
	if w.chunked {
		w.line()
	}
	return n, w.err
}

// flush sends what is buffered of a body that goes on.
func (w *reply) flush() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// finish ends the body and sends what is buffered.
func (w *reply) finish() error {
	if w.err == nil && !w.begun {
		w.err = errors.New("no answer was given")
	}
	if w.chunked {
		w.write("0\r\n\r\n")
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

// json answers 200 with a value, or 204 without one.
func (w *reply) json(value any) {
	if value == nil {
		w.header(204, "", 0)
		return
	}
	w.encoded(200, value)
}

func (w *reply) encoded(status int, value any) {
	data, err := encode(value)
	if err != nil {
		w.err = err
		return
	}
	w.header(status, "application/json", int64(len(data)))
	_, _ = w.Write(data) // kept in w.err
}

// refuse answers with a refusal, or breaks the connection when the answer has
// begun.
func (w *reply) refuse(err error) {
	if w.begun {
		w.err = errors.Join(w.err, err)
		return
	}
	var refusal *guestwire.Error
	if !errors.As(err, &refusal) {
		refusal = refuse(guestwire.Failed, err.Error())
	}
	w.encoded(refusal.Code.Status(), refusal)
}

func encode(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	return data, nil
}

// decode reads a JSON request strictly: within its bound, known fields only,
// nothing after it.
func decode(body io.Reader, value any) error {
	limited := &io.LimitedReader{R: body, N: guestwire.MaxRequestBody + 1}
	decoder := json.NewDecoder(limited)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return refuse(guestwire.BadRequest, "decode request: "+err.Error())
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) || limited.N == 0 {
		return refuse(guestwire.BadRequest, "decode request: too large, or more than one value")
	}
	return nil
}
