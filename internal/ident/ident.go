// Package ident makes and checks identifiers: a prefix that names the noun, an
// underscore, and a ULID. They sort by time of creation, so an id whose object
// is gone still works as a cursor. An id is a name and never a capability.
package ident

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// Prefix names a noun in an id.
type Prefix string

// The nouns that have ids.
const (
	Sandbox   Prefix = "sb"
	Execution Prefix = "exe"
	Request   Prefix = "req"
)

var (
	mu      sync.Mutex
	entropy = ulid.Monotonic(rand.Reader, 0) // guarded by mu: ids of one millisecond still ascend
)

// New makes an id that is greater than every id this process made before it in
// the same or an earlier millisecond.
func New(prefix Prefix) string {
	mu.Lock()
	defer mu.Unlock()
	return string(prefix) + "_" + ulid.MustNew(ulid.Timestamp(time.Now()), entropy).String()
}

// Valid reports whether id is well formed for prefix.
func Valid(prefix Prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, string(prefix)+"_")
	if !ok {
		return false
	}
	parsed, err := ulid.ParseStrict(rest)
	return err == nil && parsed.String() == rest
}

// Host is the form of an id in names on the host (jail, cgroup), where only
// letters, digits and '-' are allowed: sb_01HX.. becomes sb-01hx...
func Host(id string) string {
	return strings.ReplaceAll(strings.ToLower(id), "_", "-")
}

// FromHost is the inverse of Host; ok is false for a name that Host did not
// make for this prefix.
func FromHost(prefix Prefix, name string) (id string, ok bool) {
	rest, found := strings.CutPrefix(name, string(prefix)+"-")
	if !found || rest != strings.ToLower(rest) {
		return "", false
	}
	id = string(prefix) + "_" + strings.ToUpper(rest)
	return id, Valid(prefix, id)
}
