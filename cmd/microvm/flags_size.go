package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag for an amount of bytes: "1048576", "64m" or "2g", or "none",
// which is 0.
type byteSize int64

const noSize = "none"

func (b *byteSize) String() string {
	switch n := int64(*b); {
	case n == 0:
		return noSize
	case n%(1<<30) == 0:
		return fmt.Sprintf("%dg", n>>30)
	case n%(1<<20) == 0:
		return fmt.Sprintf("%dm", n>>20)
	default:
		return strconv.FormatInt(n, 10)
	}
}

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) Set(text string) error {
	if text == noSize {
		*b = 0
		return nil
	}
	unit := int64(1)
	number := strings.ToLower(text)
	for suffix, bytes := range map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40} {
		if cut, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = cut, bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return fmt.Errorf("must be bytes, an amount such as 64m or 2g, or %s", noSize)
	}
	*b = byteSize(n * unit)
	return nil
}
