package httpapi

import (
	"math"
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// noBytes is the range of the last 0 bytes, which no file has (RFC 9110, 14.1.2).
var noBytes = guestwire.Range{Offset: -1, Length: 0}

// parseRange reads a header Range, as RFC 9110, 14.2, has it. It is nil where the
// whole file is to come: without one, for another unit, and for several ranges,
// which a server may leave aside. What is no range at all is refused, as that RFC
// allows: a caller that made a mistake would take the whole file for a part.
func parseRange(header string) (*guestwire.Range, error) {
	unit, text, ok := strings.Cut(header, "=")
	if header == "" || ok && !strings.EqualFold(strings.TrimSpace(unit), "bytes") || strings.Contains(text, ",") {
		return nil, nil
	}
	first, last, dash := strings.Cut(strings.TrimSpace(text), "-")
	if !ok || !dash || first == "" && last == "" || !digits(first) || !digits(last) {
		return nil, badRange()
	}
	switch {
	case first == "":
		length := position(last)
		if length == 0 {
			return &noBytes, nil
		}
		return &guestwire.Range{Offset: -length, Length: -1}, nil
	case last == "":
		return &guestwire.Range{Offset: position(first), Length: -1}, nil
	}
	from, to := position(first), position(last)
	if from > to {
		return nil, badRange()
	}
	if length := to - from; length < math.MaxInt64 {
		return &guestwire.Range{Offset: from, Length: length + 1}, nil
	}
	return &guestwire.Range{Offset: from, Length: -1}, nil
}

func badRange() error {
	return fault.Param("Range", "Range must be bytes=FIRST-LAST, bytes=FIRST- or bytes=-LENGTH, with FIRST not behind LAST")
}

func digits(text string) bool { return strings.Trim(text, "0123456789") == "" }

// position is a number in a range. One over what fits is behind every file's end.
func position(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}
