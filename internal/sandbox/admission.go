package sandbox

import (
	"errors"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// VMOverheadMiB is what admission counts for a VMM beyond its guest's RAM: the
// process itself, its vsock and block buffers, and page tables. The cgroup
// adapter leaves the same room in memory.max.
const VMOverheadMiB = 32

// makerSlot is the slot of the one microVM at a time that becomes a template.
// It is beyond all that callers can get, whatever the limits were or will be:
// two microVMs with one uid could reach each other.
const makerSlot = 1<<20 - 1

// admission is the node's account of slots, vCPUs, memory and disk. A
// reservation is taken before the first step of a create and given back after
// the last step of its teardown, so what it counts as free truly is.
type admission struct {
	mu     sync.Mutex
	limits Limits      // guarded by mu
	slots  map[int]int // guarded by mu; how many hold each; more than one only of what an earlier daemon left
	used   amount      // guarded by mu
	maker  amount      // guarded by mu; what of it a microVM that becomes a template has
}

// amount is what a microVM takes of the node.
type amount struct{ vcpus, memMiB, diskMiB int }

type reservation struct {
	from *admission
	slot int
	amount
	once sync.Once
}

func newAdmission(limits Limits) *admission {
	return &admission{limits: limits, slots: map[int]int{}}
}

// reload puts other limits in force; what is held stays held.
func (a *admission) reload(limits Limits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits = limits
}

// amountOf is what a microVM of a shape takes.
func amountOf(plan Plan) amount {
	return amount{vcpus: plan.VCPUs, memMiB: plan.MemMiB + VMOverheadMiB, diskMiB: plan.ScratchMiB}
}

// errYield says that there is room once the making of a template has ended.
var errYield = errors.New("a template is in the way")

// reserve takes the lowest free slot, or says that the node is full now. It is
// not full for a template: errYield.
func (a *admission) reserve(more amount) (*reservation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slot := 0
	for a.slots[slot] > 0 {
		slot++
	}
	if slot >= a.limits.Slots {
		return nil, full("all %d slots of this node are taken", a.limits.Slots)
	}
	held, err := a.takeIfFits(slot, more, a.used)
	if err != nil {
		rest := amount{a.used.vcpus - a.maker.vcpus, a.used.memMiB - a.maker.memMiB, a.used.diskMiB - a.maker.diskMiB}
		if a.fits(more, rest) == nil {
			return nil, errYield
		}
	}
	return held, err
}

// reserveMaker takes what a microVM that becomes a template needs.
func (a *admission) reserveMaker(more amount) (*reservation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held, err := a.takeIfFits(makerSlot, more, a.used)
	if err == nil {
		a.maker = held.amount
	}
	return held, err
}

func (a *admission) takeIfFits(slot int, more, used amount) (*reservation, error) {
	if a.slots[slot] > 0 {
		return nil, full("slot %d of this node is taken", slot)
	}
	if err := a.fits(more, used); err != nil {
		return nil, err
	}
	return a.take(slot, more), nil
}

func (a *admission) fits(more, used amount) error {
	switch {
	case used.vcpus+more.vcpus > a.limits.VCPUs:
		return full("%d of this node's %d vCPUs are in use", used.vcpus, a.limits.VCPUs)
	case used.memMiB+more.memMiB > a.limits.MemMiB:
		return full("%d of this node's %d MiB of memory are in use", used.memMiB, a.limits.MemMiB)
	case used.diskMiB+more.diskMiB > a.limits.DiskMiB:
		return full("%d of this node's %d MiB of disk are in use", used.diskMiB, a.limits.DiskMiB)
	}
	return nil
}

// hold counts what is on the host already, whether the limits allow it or not:
// they may have been lowered since. A slot below 0 is none.
func (a *admission) hold(slot int, what amount) *reservation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.take(slot, what)
}

// take is called with mu held.
func (a *admission) take(slot int, what amount) *reservation {
	if slot >= 0 {
		a.slots[slot]++
	}
	a.used.vcpus += what.vcpus
	a.used.memMiB += what.memMiB
	a.used.diskMiB += what.diskMiB
	return &reservation{from: a, slot: slot, amount: what}
}

// release gives the reservation back; a second call does nothing.
func (r *reservation) release() {
	r.once.Do(func() {
		a := r.from
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.slot >= 0 {
			a.slots[r.slot]--
		}
		if r.slot == makerSlot {
			a.maker = amount{}
		}
		a.used.vcpus -= r.vcpus
		a.used.memMiB -= r.memMiB
		a.used.diskMiB -= r.diskMiB
	})
}

func full(format string, args ...any) error {
	e := fault.New(fault.NodeAtCapacity, format+"; delete a sandbox or try again later", args...)
	e.RetryAfter = time.Second
	return e
}
