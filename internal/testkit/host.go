// Package testkit holds what tests of several packages share: a fake host that
// stands in for cgroups, VMM and agents, a recorder of the operations on it,
// and a fault injector. Only tests and the test build of the daemon import it.
package testkit

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

// AgentFactory starts the agent of one fake microVM and returns the way to
// reach it and how to end it with all that runs under it. A microVM that is
// restored from a template gets a fresh agent: its plan names the template.
type AgentFactory func(plan sandbox.Plan) (transport http.RoundTripper, stop func(), err error)

// Host is a fake of everything below a sandbox, and outlives the daemons that
// use it: each of them has a View, through which it reaches sandbox.Cgroups,
// sandbox.VMM and sandbox.Agents. The host records each operation, and fails or
// hangs those it is told to. It passes the suite of hosttest, and so is as
// strict as the real adapters.
//
// The operations are cgroup.create, cgroup.kill, cgroup.remove, jail.prepare,
// vmm.launch, vmm.start, vmm.adopt, vmm.freeze, jail.remove, agent.hello,
// template.keep and template.drop. Looks (cgroup.list, cgroup.cpu, cgroup.oom,
// jail.list, template.list) and calls to an agent (agent. and the first word of the
// route: agent.echo, agent.configure, agent.executions, agent.files) fail and
// hang when told to as well, but are not in the trace.
type Host struct {
	agent AgentFactory
	first *View // of those who need one life only

	mu        sync.Mutex
	trace     []string                 // guarded by mu; "cgroup.create", in order
	faults    map[string]error         // guarded by mu; by operation
	hangs     map[string]bool          // guarded by mu; by operation
	cgroups   map[string]*fakeCgroup   // guarded by mu; by host name
	jails     map[string]*fakeJail     // guarded by mu; by host name
	templates map[string]*fakeTemplate // guarded by mu; by name
}

// NewHost makes an empty host.
func NewHost(agent AgentFactory) *Host {
	h := &Host{
		agent: agent, faults: map[string]error{}, hangs: map[string]bool{},
		cgroups: map[string]*fakeCgroup{}, jails: map[string]*fakeJail{}, templates: map[string]*fakeTemplate{},
	}
	h.first = h.View()
	return h
}

// Cgroups is sandbox.Cgroups for a test with one daemon.
func (h *Host) Cgroups() sandbox.Cgroups { return h.first.Cgroups() }

// VMM is sandbox.VMM for a test with one daemon.
func (h *Host) VMM() sandbox.VMM { return h.first.VMM() }

// Agents is sandbox.Agents for a test with one daemon.
func (h *Host) Agents() sandbox.Agents { return h.first.Agents() }

// Fail makes an operation fail from now on; nil mends it.
func (h *Host) Fail(operation string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.faults, operation)
		return
	}
	h.faults[operation] = err
}

// Hang makes an operation wait for its context from now on, or not.
func (h *Host) Hang(operation string, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hangs[operation] = on
}

// Trace returns the operations so far and starts a new trace.
func (h *Host) Trace() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	trace := h.trace
	h.trace = nil
	return trace
}

// Left names every cgroup and jail on the host: its census. Templates are no
// sandbox's, and stay.
func (h *Host) Left() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []string
	for name := range h.cgroups {
		left = append(left, "cgroup "+name)
	}
	for name := range h.jails {
		left = append(left, "jail "+name)
	}
	slices.Sort(left)
	return left
}

// Die ends the VMM of a sandbox as if it had crashed.
func (h *Host) Die(host string) { h.empty(host) }

// Reboot ends the VMM of a sandbox as its guest would, whose agent is gone.
func (h *Host) Reboot(host string) {
	h.mu.Lock()
	if j := h.jails[host]; j.runs() {
		j.rebooted = true
	}
	h.mu.Unlock()
	h.empty(host)
}

// OOMKill ends the VMM of a sandbox as the host's OOM killer would: it counts
// before it kills.
func (h *Host) OOMKill(host string) {
	h.mu.Lock()
	if c := h.cgroups[host]; c != nil && c.populated {
		c.oom = true
	}
	h.mu.Unlock()
	h.empty(host)
}

// Stick stops the processor clock of a sandbox, as when its VMM hangs, or lets
// it go on. The clock of any other runs with the time while it has a process.
func (h *Host) Stick(host string, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.cgroups[host]; c != nil {
		c.tick(time.Now())
		c.stuck = on
	}
}

// Damage makes a template one that does not load.
func (h *Host) Damage(template string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.templates[template]; t != nil {
		t.damaged = true
	}
}

// empty ends whatever runs in a cgroup: first the agent with its programs, then
// those who watch are told.
func (h *Host) empty(host string) {
	h.mu.Lock()
	c, j := h.cgroups[host], h.jails[host]
	if c == nil || !c.populated {
		h.mu.Unlock()
		return
	}
	stop := func() {}
	if j != nil {
		if j.stop != nil {
			stop = j.stop
		}
		j.stop, j.transport = nil, nil
		if !j.dead && !j.started {
			close(j.changed)
		}
		j.dead = true
	}
	h.mu.Unlock()
	stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	c.tick(time.Now())
	c.populated = false
	c.end()
}

// checkName takes only names that ident.Host made.
func checkName(host string) error {
	if _, ok := ident.FromHost(ident.Sandbox, host); !ok {
		return fmt.Errorf("%q is no name of a sandbox", host)
	}
	return nil
}

func checkPlan(plan sandbox.Plan) error {
	if err := checkName(plan.Host); err != nil {
		return err
	}
	if plan.Slot < 0 || plan.VCPUs < 1 || plan.VCPUs > 32 || plan.MemMiB < 1 || plan.ScratchMiB < 1 {
		return fmt.Errorf("slot %d, %d vCPUs, %d MiB of memory, %d MiB of scratch are no microVM", plan.Slot, plan.VCPUs, plan.MemMiB, plan.ScratchMiB)
	}
	if !filepath.IsAbs(plan.Image.Path) {
		return fmt.Errorf("image path %q is not absolute", plan.Image.Path)
	}
	return nil
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
