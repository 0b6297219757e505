package sandbox

import (
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// VMOverheadMiB is what admission counts for a VMM beyond its guest's RAM: the
// process itself, its vsock and block buffers, and page tables. The cgroup
// adapter leaves the same room in memory.max.
const VMOverheadMiB = 32

// admission is the node's account of slots, vCPUs and memory. A reservation is
// taken before the first step of a create and given back after the last step
// of its teardown, so what it counts as free truly is.
type admission struct {
	limits Limits

	mu    sync.Mutex
	slots []bool // guarded by mu; true is taken
	vcpus int    // guarded by mu; in use
	mem   int    // guarded by mu; MiB in use
}

type reservation struct {
	from  *admission
	slot  int
	vcpus int
	mem   int
	once  sync.Once
}

func newAdmission(limits Limits) *admission {
	return &admission{limits: limits, slots: make([]bool, limits.Slots)}
}

// reserve takes the lowest free slot, or says that the node is full now.
func (a *admission) reserve(vcpus, memMiB int) (*reservation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mem := memMiB + VMOverheadMiB
	slot := -1
	for i, taken := range a.slots {
		if !taken {
			slot = i
			break
		}
	}
	switch {
	case slot < 0:
		return nil, full("all %d slots of this node are taken", a.limits.Slots)
	case a.vcpus+vcpus > a.limits.VCPUs:
		return nil, full("%d of this node's %d vCPUs are in use", a.vcpus, a.limits.VCPUs)
	case a.mem+mem > a.limits.MemMiB:
		return nil, full("%d of this node's %d MiB of memory are in use", a.mem, a.limits.MemMiB)
	}
	a.slots[slot] = true
	a.vcpus += vcpus
	a.mem += mem
	return &reservation{from: a, slot: slot, vcpus: vcpus, mem: mem}, nil
}

// release gives the reservation back; a second call does nothing.
func (r *reservation) release() {
	r.once.Do(func() {
		r.from.mu.Lock()
		defer r.from.mu.Unlock()
		r.from.slots[r.slot] = false
		r.from.vcpus -= r.vcpus
		r.from.mem -= r.mem
	})
}

func full(format string, args ...any) error {
	e := fault.New(fault.NodeAtCapacity, format+"; delete a sandbox or try again later", args...)
	e.RetryAfter = time.Second
	return e
}
