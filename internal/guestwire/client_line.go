//go:build !guestd

package guestwire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// lineReader reads the lines of a reply, each within its bound.
type lineReader struct{ in *bufio.Reader }

func newLines(in io.Reader, most int) lineReader {
	return lineReader{bufio.NewReaderSize(in, most)}
}

// next gives a line without its end, until the next call; io.EOF after the last.
// A line that is too long or has no end is a lie, unless the connection broke.
func (l lineReader) next() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil
	case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF) && len(line) > 0:
		return nil, fmt.Errorf("line over its bound, or without its end: %w", ErrProtocol)
	}
	return nil, err
}
