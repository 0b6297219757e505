package sandbox

import (
	"regexp"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/secret"
)

// Spec is what a caller asks for. A zero value means the default.
type Spec struct {
	Image  string            // required
	Name   string            // 0..64 characters of a-z 0-9 '-' '_' '.', starts with a letter or digit
	Tags   map[string]string // at most 10; keys 1..64 and values 0..256 bytes
	VCPUs  int               // default 1
	MemMiB int               // default 256
	TTL    time.Duration     // default 15 min, whole seconds
	Idle   time.Duration     // without use for so long, it is reclaimed; default 2 min, whole seconds; negative is never
	Env    secret.Env        // for each of its executions, whose own wins
	Boot   Boot              // "" is the fastest way that there is; BootCold boots although it could be restored
}

// The defaults of a Spec.
const (
	DefaultVCPUs  = 1
	DefaultMemMiB = 256
	DefaultTTL    = 15 * time.Minute
	DefaultIdle   = 2 * time.Minute

	// MinMemMiB is the least memory with which a guest of ours boots.
	MinMemMiB = 128

	maxTags     = 10
	maxTagKey   = 64
	maxTagValue = 256
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// fill puts the defaults in and checks every field against the node's limits.
// The first field that is wrong is named.
func (s Spec) fill(limits Limits) (Spec, error) {
	if s.Image == "" {
		return s, &fault.Error{Code: fault.ParameterMissing, Param: "image", Message: "image is required; GET /v1/images lists what this node has"}
	}
	if s.Name != "" && !nameForm.MatchString(s.Name) {
		return s, fault.Param("name", "name must be 1 to 64 characters of a-z, 0-9, '-', '_' and '.', and start with a letter or digit")
	}
	if s.VCPUs == 0 {
		s.VCPUs = DefaultVCPUs
	}
	if s.MemMiB == 0 {
		s.MemMiB = DefaultMemMiB
	}
	if s.TTL == 0 {
		s.TTL = DefaultTTL
	}
	switch {
	case s.Idle == 0:
		s.Idle = DefaultIdle
	case s.Idle < 0:
		s.Idle = 0 // as a Sandbox has it
	case s.Idle < time.Second || s.Idle > limits.MaxTTL:
		return s, fault.Param("idle_seconds", "idle_seconds must be 1 to %d on this node, or negative for never", int(limits.MaxTTL.Seconds()))
	}
	if s.VCPUs < 1 || s.VCPUs > limits.MaxVCPUs {
		return s, fault.Param("vcpus", "vcpus must be 1 to %d on this node", limits.MaxVCPUs)
	}
	if s.MemMiB < MinMemMiB || s.MemMiB > limits.MaxMemMiB {
		return s, fault.Param("mem_mib", "mem_mib must be %d to %d on this node", MinMemMiB, limits.MaxMemMiB)
	}
	if s.TTL < time.Second || s.TTL > limits.MaxTTL {
		return s, fault.Param("ttl_seconds", "ttl_seconds must be 1 to %d on this node", int(limits.MaxTTL.Seconds()))
	}
	if s.Boot != "" && s.Boot != BootCold {
		return s, fault.Param("boot", "boot must be %q, or be left out for the fastest way that there is", BootCold)
	}
	if err := s.checkTags(); err != nil {
		return s, err
	}
	return s, s.Env.Check("env")
}

func (s Spec) checkTags() error {
	if len(s.Tags) > maxTags {
		return fault.Param("tags", "tags must be at most %d", maxTags)
	}
	for key, value := range s.Tags {
		if key == "" || len(key) > maxTagKey || len(value) > maxTagValue {
			return fault.Param("tags", "a tag's key must be 1 to %d bytes and its value at most %d", maxTagKey, maxTagValue)
		}
	}
	return nil
}
