// Package stamp is the wire form of a time: RFC 3339 in UTC with exactly three
// digits of a second. The generated types use it; it knows nothing else.
package stamp

import (
	"fmt"
	"time"
)

const form = "2006-01-02T15:04:05.000Z07:00"

// Time is a time that is written with milliseconds, in UTC. What is finer is
// cut off, so that a time never moves into the future.
type Time time.Time

// MarshalJSON writes it as a JSON string.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + time.Time(t).UTC().Format(form) + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 time.
func (t *Time) UnmarshalJSON(data []byte) error {
	var parsed time.Time
	if err := parsed.UnmarshalJSON(data); err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	*t = Time(parsed)
	return nil
}
