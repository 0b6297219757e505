package microvm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// eventLimit bounds one line and the data of one event, in bytes: the API's own
// have at most 32 KiB of output, in base64.
const eventLimit = 256 << 10

// eventReader reads server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html): names and
// data. It has no use for ids, as each event tells its own offsets.
type eventReader struct {
	lines *bufio.Reader
	data  []byte // of the last event, used again
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{lines: bufio.NewReaderSize(r, eventLimit)}
}

// next returns the next whole event, whose data is good until the next call. One that the end of the stream cuts off is
// none: the error is then io.ErrUnexpectedEOF, as it is at any end.
func (e *eventReader) next() (name string, data []byte, err error) {
	defer func() { e.data = data[:0] }()
	some := false
	for data = e.data[:0]; ; {
		line, err := e.line()
		if err != nil {
			return "", nil, err
		}
		if len(line) == 0 {
			if name != "" {
				return name, data, nil
			}
			data, some = data[:0], false // without a name it is no event of this API
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) { // a comment's is empty
		case "event":
			name = string(value)
		case "data":
			if len(data)+len(value) > eventLimit {
				return "", nil, errEventTooLong
			}
			if some {
				data = append(data, '\n')
			}
			data, some = append(data, value...), true
		}
	}
}

var errEventTooLong = fmt.Errorf("the stream is not what the API promises: an event is over %d bytes", eventLimit)

// line returns one line without its end; it is good until the next call.
func (e *eventReader) line() ([]byte, error) {
	line, err := e.lines.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, errEventTooLong
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}
