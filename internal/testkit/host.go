// Package testkit holds what tests of several packages share: a fake host that
// stands in for cgroups, VMM and agents, a recorder of the operations on it,
// and a fault injector. Only tests and the test build of the daemon import it.
package testkit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// AgentFactory starts the agent of one fake microVM and returns the way to
// reach it and how to end it with all that runs under it.
type AgentFactory func(plan sandbox.Plan) (transport http.RoundTripper, stop func(), err error)

// Host is a fake of everything below a sandbox. It implements sandbox.Cgroups,
// sandbox.VMM and sandbox.Agents through its three views, records each
// operation, and fails or hangs those it is told to.
type Host struct {
	agent AgentFactory

	mu      sync.Mutex
	trace   []string                // guarded by mu; "cgroup.create", in order
	faults  map[string]error        // guarded by mu; by operation
	hangs   map[string]bool         // guarded by mu; by operation
	cgroups map[string]*fakeCgroup  // guarded by mu; by host name
	jails   map[string]sandbox.Plan // guarded by mu
}

type fakeCgroup struct {
	populated bool
	emptied   chan struct{} // closed when a populated one became empty
	transport http.RoundTripper
	stop      func()
}

// NewHost makes an empty host.
func NewHost(agent AgentFactory) *Host {
	return &Host{
		agent: agent, faults: map[string]error{}, hangs: map[string]bool{},
		cgroups: map[string]*fakeCgroup{}, jails: map[string]sandbox.Plan{},
	}
}

// Operations are the names of all operations that Host records.
func Operations() []string {
	return []string{
		"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello",
		"cgroup.kill", "jail.remove", "cgroup.remove",
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

func (h *Host) empty(host string) {
	h.mu.Lock()
	c := h.cgroups[host]
	if c == nil || !c.populated {
		h.mu.Unlock()
		return
	}
	c.populated = false
	stop := c.stop
	c.stop, c.transport = nil, nil
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
	close(c.emptied)
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
	if err := h.op(ctx, "cgroup.create"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.cgroups[plan.Host]; old != nil && old.populated {
		return fmt.Errorf("create cgroup: %s has processes", plan.Host)
	}
	h.cgroups[plan.Host] = &fakeCgroup{emptied: make(chan struct{})}
	return nil
}

func (c *cgroups) Emptied(ctx context.Context, host string) error {
	h := (*Host)(c)
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
		return ctx.Err()
	}
}

func (c *cgroups) Kill(ctx context.Context, host string) error {
	h := (*Host)(c)
	if err := h.op(ctx, "cgroup.kill"); err != nil {
		return err
	}
	h.empty(host)
	return nil
}

func (c *cgroups) Remove(ctx context.Context, host string) error {
	h := (*Host)(c)
	if err := h.op(ctx, "cgroup.remove"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.cgroups[host]; g != nil && g.populated {
		return fmt.Errorf("remove cgroup: %s has processes", host)
	}
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
	if err := h.op(ctx, "jail.prepare"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jails[plan.Host] = plan
	return nil
}

func (v *vmm) Launch(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(v)
	if err := h.op(ctx, "vmm.launch"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.cgroups[plan.Host]
	if g == nil {
		return fmt.Errorf("launch: no cgroup %s", plan.Host)
	}
	g.populated = true
	return nil
}

func (v *vmm) Start(ctx context.Context, plan sandbox.Plan) error {
	h := (*Host)(v)
	if err := h.op(ctx, "vmm.start"); err != nil {
		return err
	}
	transport, stop, err := h.agent(plan)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.cgroups[plan.Host]
	if g == nil || !g.populated {
		defer stop()
		return fmt.Errorf("start: no VMM %s", plan.Host)
	}
	g.transport, g.stop = transport, stop
	return nil
}

func (v *vmm) Remove(ctx context.Context, host string) error {
	h := (*Host)(v)
	if err := h.op(ctx, "jail.remove"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.jails, host)
	return nil
}

func (v *vmm) List(context.Context) ([]string, error) {
	h := (*Host)(v)
	return h.names(func() []string { return keys(h.jails) }), nil
}

type agents Host

func (a *agents) Hello(ctx context.Context, host string) (guestwire.Hello, error) {
	h := (*Host)(a)
	if err := h.op(ctx, "agent.hello"); err != nil {
		return guestwire.Hello{}, err
	}
	return guestwire.Hello{Protocol: guestwire.Protocol, Version: "fake"}, nil
}

func (a *agents) Client(host string) *guestwire.Client {
	h := (*Host)(a)
	return guestwire.NewClient(roundTripper(func(r *http.Request) (*http.Response, error) {
		h.mu.Lock()
		var transport http.RoundTripper
		if g := h.cgroups[host]; g != nil {
			transport = g.transport
		}
		h.mu.Unlock()
		if transport == nil {
			return nil, fmt.Errorf("dial agent: no microVM %s", host)
		}
		return transport.RoundTrip(r)
	}))
}

func (a *agents) Release(string) {}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func keys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for name := range m {
		all = append(all, name)
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
