// Package secret owns what must not be seen: the environments that callers hand
// over, and the key under which they lie in the store. It knows no sandbox and
// no execution.
//
// An Env shows nothing of itself to fmt, slog and the encoders that ask it; it is
// read on purpose, as the map that it is. What reads by reflection asks nobody:
// fmt prints the unexported fields of a struct as they are, so what is ever
// formatted must not keep an Env in one.
package secret

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// The bounds of one environment. A guest's kernel takes more than both.
const (
	MaxEntries = 100
	MaxBytes   = 64 << 10 // of names and values together
)

// Env is an environment that a caller handed over. nil is an empty one.
type Env map[string]string

// redacted is all that is shown of a secret.
const redacted = "[redacted]"

// Merge returns a new environment with what base and over hold. Where both have a
// name, over wins. It can be over the bounds that each of them keeps.
func Merge(base, over Env) Env {
	if len(base)+len(over) == 0 {
		return nil
	}
	merged := make(Env, len(base)+len(over))
	maps.Copy(merged, base)
	maps.Copy(merged, over)
	return merged
}

// Check refuses what is no environment, or is over the bounds, as a fault of the
// parameter. Values never enter the message, nor do names that may be one.
func (e Env) Check(param string) error {
	if len(e) > MaxEntries {
		return fault.Param(param, "%s must have at most %d entries; put the rest into a file of the sandbox", param, MaxEntries)
	}
	for name, value := range e {
		switch {
		case name == "":
			return fault.Param(param, "%s has an entry without a name; name it, or leave it out", param)
		case strings.ContainsAny(name, "=\x00"):
			return fault.Param(param, "%s has a name with '=' or NUL in it; give the name as key and what follows '=' as its value", param)
		case strings.ContainsRune(value, 0):
			return fault.Param(param, "%s: the value of %s holds NUL, which no environment can; encode it, or put it into a file of the sandbox", param, shown(name))
		}
	}
	if size := e.size(); size > MaxBytes {
		return fault.Param(param, "%s has %d bytes of names and values and may have %d; put the rest into a file of the sandbox", param, size, MaxBytes)
	}
	return nil
}

func (e Env) size() int {
	size := 0
	for name, value := range e {
		size += len(name) + len(value)
	}
	return size
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// shown is a name for a message: only one that looks like one, a caller may have
// taken the value for it.
func shown(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return "one entry"
}

// String implements fmt.Stringer.
func (Env) String() string { return redacted }

// Format implements fmt.Formatter: whatever the verb is.
func (Env) Format(to fmt.State, _ rune) { _, _ = io.WriteString(to, redacted) }

// LogValue implements slog.LogValuer.
func (Env) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON implements json.Marshaler.
func (Env) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler, for the encoders that are not
// encoding/json.
func (Env) MarshalText() ([]byte, error) { return []byte(redacted), nil }
