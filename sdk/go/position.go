package microvm

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Position is a place in the output of an execution: how many bytes of each
// stream lie before it. The zero Position is the start.
type Position struct{ Stdout, Stderr int64 }

// String is the position as the API writes it, such as "1024.0".
func (p Position) String() string { return fmt.Sprintf("%d.%d", p.Stdout, p.Stderr) }

// ParsePosition reads what String writes.
func ParsePosition(text string) (Position, error) {
	first, second, ok := strings.Cut(text, ".")
	stdout, errOut := strconv.ParseUint(first, 10, 63)
	stderr, errErr := strconv.ParseUint(second, 10, 63)
	if !ok || errOut != nil || errErr != nil {
		return Position{}, fmt.Errorf("%q is no position; it must look like 1024.0: bytes of standard output and of standard error", text)
	}
	return Position{int64(stdout), int64(stderr)}, nil //nolint:gosec // both have 63 bits
}

// of is the offset of one stream.
func (p *Position) of(stream OutputStream) *int64 {
	if stream == OutputStreamStderr {
		return &p.Stderr
	}
	return &p.Stdout
}

// behind is the offset behind n bytes at offset, where that is one.
func behind(offset int64, n int) (int64, bool) {
	return offset + int64(n), offset >= 0 && offset <= math.MaxInt64-int64(n)
}
