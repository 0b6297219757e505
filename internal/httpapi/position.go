package httpapi

import (
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
)

// formatPosition is the id of an event: how far a reader is in both streams
// behind it.
func formatPosition(p execution.Position) string {
	return strconv.FormatInt(p.Stdout, 10) + "." + strconv.FormatInt(p.Stderr, 10)
}

// parsePosition reads such an id. It takes exactly what formatPosition makes, so
// that one position has one id.
func parsePosition(id string) (execution.Position, bool) {
	out, err, ok := strings.Cut(id, ".")
	if !ok {
		return execution.Position{}, false
	}
	var p execution.Position
	for _, part := range []struct {
		text string
		to   *int64
	}{{out, &p.Stdout}, {err, &p.Stderr}} {
		n, err := strconv.ParseInt(part.text, 10, 64)
		if err != nil || n < 0 || strconv.FormatInt(n, 10) != part.text {
			return execution.Position{}, false
		}
		*part.to = n
	}
	return p, true
}

// resumeAt is where a stream begins. A client that began with after and connects
// again by itself sends the same URL and, as Last-Event-ID, what it saw last,
// which is further: that wins. Any other two contradict each other.
func resumeAt(after, lastEventID *string) (execution.Position, error) {
	var asked, seen execution.Position
	var ok bool
	if after != nil {
		if asked, ok = parsePosition(*after); !ok {
			return asked, fault.Param("after", "after is not the id of an event, such as 1024.0; send one as it came, or leave it out for all output")
		}
	}
	if lastEventID == nil {
		return asked, nil
	}
	if seen, ok = parsePosition(*lastEventID); !ok {
		return seen, fault.Param("after", "Last-Event-ID is not the id of an event, such as 1024.0; send one as it came, or leave it out for all output")
	}
	if seen.Stdout < asked.Stdout || seen.Stderr < asked.Stderr {
		return seen, fault.Param("after", "after is beyond Last-Event-ID, and only one of them can be meant; leave one out")
	}
	return seen, nil
}
