// Package sandbox owns the Sandbox noun: what a caller asked for, the status
// table, the goroutine that owns each sandbox, the steps that make its microVM
// and undo them, and admission to the node.
//
// It knows no wire types, no HTTP, no SQL and no kernel interface: what it
// needs of the host it declares in ports.go, and adapters provide it.
//
// States: starting -> running -> stopped, starting -> stopped. A stopped
// sandbox stays readable and never comes back.
package sandbox

import (
	"maps"
	"time"
)

// Sandbox is an immutable copy of what is known of one sandbox.
type Sandbox struct {
	ID         string
	Image      string // the image's id
	Name       string // unique among sandboxes that are not stopped; "" is none
	Tags       map[string]string
	VCPUs      int
	MemMiB     int
	Expires    time.Time     // when the TTL ends, in the wall clock
	Deadline   time.Duration // the same in the host's uptime, which no step of the wall clock moves
	HostBoot   string        // the boot of the host that Deadline counts from
	Idle       time.Duration // without use for so long, it is reclaimed; 0 is never
	State      State
	StopReason StopReason // set when stopped
	Reason     Reason     // says more than StopReason where there is more
	Boot       Boot       // how the microVM came up; "" until it did
	Slot       int        // the node's slot it holds; meaningless when stopped
	Created    time.Time
	Stopped    time.Time // zero until stopped
	Env        string    // the environment of its executions, sealed; "" is none. A stopped one has none, and a Page shows none
}

func (s Sandbox) clone() Sandbox {
	s.Tags = maps.Clone(s.Tags)
	return s
}

// Boot says how a microVM came up.
type Boot string

// The ways to come up. The warm pool adds its own.
const (
	BootCold     Boot = "cold"     // the guest's kernel booted
	BootSnapshot Boot = "snapshot" // restored from a template
)

// Query selects sandboxes for a list, newest first.
type Query struct {
	State         State  // "" is any
	Name          string // "" is any
	TagKey        string // "" is any; else TagValue must match
	TagValue      string
	StartingAfter string // ids older than this one
	EndingBefore  string // ids newer than this one
	Limit         int    // 1..100
}

// Page is one page of a list.
type Page struct {
	Data    []Sandbox
	HasMore bool
}
