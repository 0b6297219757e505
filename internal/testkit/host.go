// Package testkit holds what tests of several packages share: a fake host that
// stands in for cgroups, VMM and agents, a recorder of the operations on it,
// and a fault injector. Only tests and the test build of the daemon import it.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

// AgentFactory starts the agent of one fake microVM and returns the way to
// reach it and how to end it with all that runs under it.
type AgentFactory func(plan sandbox.Plan) (transport http.RoundTripper, stop func(), err error)

// Host is a fake of everything below a sandbox. It implements sandbox.Cgroups,
// sandbox.VMM and sandbox.Agents through its three views, records each
// operation, and fails or hangs those it is told to. It passes the suite of
// hosttest, and so is as strict as the real adapters.
type Host struct {
	agent AgentFactory

	mu      sync.Mutex
	trace   []string               // guarded by mu; "cgroup.create", in order
	faults  map[string]error       // guarded by mu; by operation
	hangs   map[string]bool        // guarded by mu; by operation
	cgroups map[string]*fakeCgroup // guarded by mu; by host name
	jails   map[string]*fakeJail   // guarded by mu; by host name
}

// fakeCgroup is guarded by Host.mu.
type fakeCgroup struct {
	populated bool
	over      bool          // emptied is closed
	emptied   chan struct{} // closed when a populated one became empty, or any was removed
}

// end wakes those who watch the cgroup, once.
func (c *fakeCgroup) end() {
	if !c.over {
		c.over = true
		close(c.emptied)
	}
}

// fakeJail is a jail and the VMM in it, guarded by Host.mu.
type fakeJail struct {
	launched  bool
	started   bool
	dead      bool
	greeted   bool              // the hello was taken
	changed   chan struct{}     // closed when the VM is up, or dead
	transport http.RoundTripper // of the agent, while it runs
	stop      func()
}

// NewHost makes an empty host.
func NewHost(agent AgentFactory) *Host {
	return &Host{
		agent: agent, faults: map[string]error{}, hangs: map[string]bool{},
		cgroups: map[string]*fakeCgroup{}, jails: map[string]*fakeJail{},
	}
}

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

// Left names everything that is on the host: its census.
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

// op records an operation and applies what was injected.
func (h *Host) op(ctx context.Context, operation string) error {
	h.mu.Lock()
	h.trace = append(h.trace, operation)
	err, hang := h.faults[operation], h.hangs[operation]
	h.mu.Unlock()
	if hang {
		<-ctx.Done()
		return fmt.Errorf("%s: %w", operation, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return nil
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
	c.populated = false
	c.end()
}

func (h *Host) names(of func() []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return of()
}

// Cgroups is the host's view as sandbox.Cgroups.
func (h *Host) Cgroups() sandbox.Cgroups { return (*cgroups)(h) }

// VMM is the host's view as sandbox.VMM.
func (h *Host) VMM() sandbox.VMM { return (*vmm)(h) }

// Agents is the host's view as sandbox.Agents.
func (h *Host) Agents() sandbox.Agents { return (*agents)(h) }

type cgroups Host

func (c *cgroups) Create(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(c)
	if err := checkName(plan.Host); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	if plan.VCPUs < 1 || plan.MemMiB < 1 {
		return fmt.Errorf("create cgroup: %d vCPUs and %d MiB are no limits", plan.VCPUs, plan.MemMiB)
	}
	if err := h.op(ctx, "cgroup.create"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.cgroups[plan.Host]; old != nil {
		if old.populated {
			return fmt.Errorf("create cgroup: %s has processes", plan.Host)
		}
		old.end() // it is made anew
	}
	h.cgroups[plan.Host] = &fakeCgroup{emptied: make(chan struct{})}
	return nil
}

func (c *cgroups) Emptied(ctx context.Context, host string) error {
	h := (*Host)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	h.mu.Lock()
	g := h.cgroups[host]
	h.mu.Unlock()
	if g == nil {
		return nil
	}
	select {
	case <-g.emptied:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("watch cgroup: %w", context.Cause(ctx))
	}
}

func (c *cgroups) Kill(ctx context.Context, host string) error {
	h := (*Host)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	if err := h.op(ctx, "cgroup.kill"); err != nil {
		return err
	}
	h.empty(host)
	return nil
}

func (c *cgroups) Remove(ctx context.Context, host string) error {
	h := (*Host)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	if err := h.op(ctx, "cgroup.remove"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.cgroups[host]
	if g == nil {
		return nil
	}
	if g.populated {
		return fmt.Errorf("remove cgroup: %s has processes", host)
	}
	g.end()
	delete(h.cgroups, host)
	return nil
}

func (c *cgroups) List(context.Context) ([]string, error) {
	h := (*Host)(c)
	return h.names(func() []string { return keys(h.cgroups) }), nil
}

type vmm Host

func (v *vmm) Prepare(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(v)
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	if err := h.op(ctx, "jail.prepare"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jails[plan.Host] != nil {
		return fmt.Errorf("prepare jail: %s is there already", plan.Host)
	}
	h.jails[plan.Host] = &fakeJail{changed: make(chan struct{})}
	return nil
}

func (v *vmm) Launch(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(v)
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("launch VMM: %w", err)
	}
	if err := h.op(ctx, "vmm.launch"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	j, g := h.jails[plan.Host], h.cgroups[plan.Host]
	switch {
	case j == nil:
		return fmt.Errorf("launch VMM: %s was not prepared", plan.Host)
	case j.launched:
		return fmt.Errorf("launch VMM: %s was launched already", plan.Host)
	case g == nil:
		return fmt.Errorf("launch VMM: no cgroup %s", plan.Host)
	}
	j.launched, g.populated = true, true
	return nil
}

func (v *vmm) Start(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(v)
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("start microVM: %w", err)
	}
	if err := h.op(ctx, "vmm.start"); err != nil {
		return err
	}
	if err := h.mayStart(plan.Host); err != nil {
		return err
	}
	transport, stop, err := h.agent(plan)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jails[plan.Host]
	if j == nil || j.dead || j.started { // killed meanwhile
		defer stop()
		return fmt.Errorf("start microVM: the VMM of %s ended", plan.Host)
	}
	j.started, j.transport, j.stop = true, transport, stop
	close(j.changed)
	return nil
}

func (h *Host) mayStart(host string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jails[host]
	if j == nil || !j.launched || j.dead {
		return fmt.Errorf("start microVM: no VMM of %s", host)
	}
	if j.started {
		return fmt.Errorf("start microVM: %s was started already", host)
	}
	return nil
}

func (v *vmm) Remove(ctx context.Context, host string) error {
	h := (*Host)(v)
	if err := checkName(host); err != nil {
		return fmt.Errorf("remove jail: %w", err)
	}
	if err := h.op(ctx, "jail.remove"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.cgroups[host]; g != nil && g.populated {
		return fmt.Errorf("remove jail: processes of %s still run", host)
	}
	delete(h.jails, host)
	return nil
}

func (v *vmm) List(context.Context) ([]string, error) {
	h := (*Host)(v)
	return h.names(func() []string { return keys(h.jails) }), nil
}

type agents Host

// bootID is what every fake guest says: they share this host's kernel.
const bootID = "00000000-0000-4000-8000-000000000000"

func (a *agents) Hello(ctx context.Context, host string) (guestwire.Hello, error) {
	h := (*Host)(a)
	if err := h.op(ctx, "agent.hello"); err != nil {
		return guestwire.Hello{}, err
	}
	h.mu.Lock()
	j := h.jails[host]
	first := j != nil && !j.greeted
	if j != nil {
		j.greeted = true
	}
	h.mu.Unlock()
	if !first {
		return guestwire.Hello{}, fmt.Errorf("wait for hello: %q is not prepared, or its hello was taken", host)
	}
	select {
	case <-j.changed:
	case <-ctx.Done():
		return guestwire.Hello{}, fmt.Errorf("wait for hello: %w", context.Cause(ctx))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if j.dead {
		return guestwire.Hello{}, errors.New("wait for hello: the VMM ended first")
	}
	return guestwire.Hello{Protocol: guestwire.Protocol, Version: "fake", BootID: bootID}, nil
}

func (a *agents) Client(host string) *guestwire.Client {
	h := (*Host)(a)
	return guestwire.NewClient(roundTripper(func(r *http.Request) (*http.Response, error) {
		h.mu.Lock()
		var transport http.RoundTripper
		if j := h.jails[host]; j != nil {
			transport = j.transport
		}
		h.mu.Unlock()
		if transport == nil {
			return nil, fmt.Errorf("dial agent: no microVM %s", host)
		}
		return transport.RoundTrip(r)
	}))
}

func (a *agents) Release(string) {}

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

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
