package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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
// chunks when it is negative. A 204 has none.
func (w *reply) header(status int, kind string, length int64) {
	w.begun = true
	w.printf("HTTP/1.1 %d %s\r\n", status, map[bool]string{true: "OK", false: "Refused"}[status < 300])
	if status != 204 {
		w.printf("Content-Type: %s\r\n", kind)
		if w.chunked = length < 0; w.chunked {
			w.printf("Transfer-Encoding: chunked\r\n")
		} else {
			w.printf("Content-Length: %d\r\n", length)
		}
	}
	w.printf("\r\n")
}

func (w *reply) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

// Write adds to the body.
func (w *reply) Write(p []byte) (int, error) {
	if w.err != nil || len(p) == 0 {
		return 0, w.err
	}
	if w.chunked {
		w.printf("%x\r\n", len(p))
	}
	n := 0
	if w.err == nil {
		n, w.err = w.out.Write(p)
	}
	if w.chunked {
		w.printf("\r\n")
	}
	return n, w.err
}

// finish ends the body and sends what is buffered.
func (w *reply) finish() error {
	if w.err == nil && !w.begun {
		w.err = errors.New("no answer was given")
	}
	if w.chunked {
		w.printf("0\r\n\r\n")
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
