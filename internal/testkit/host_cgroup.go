package testkit

import (
	"context"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
)

// fakeCgroup is guarded by Host.mu.
type fakeCgroup struct {
	populated bool
	over      bool          // emptied is closed
	emptied   chan struct{} // closed when a populated one became empty, or any was removed

	oom bool // the host's OOM killer ended a process in it

	used   time.Duration // of a processor, until then
	ticked time.Time     // when used was brought up to date
	stuck  bool          // its clock stands
}

// end wakes those who watch the cgroup, once.
func (c *fakeCgroup) end() {
	if !c.over {
		c.over = true
		close(c.emptied)
	}
}

// tick brings the used time up to date.
func (c *fakeCgroup) tick(now time.Time) {
	if c.populated && !c.stuck {
		c.used += now.Sub(c.ticked)
	}
	c.ticked = now
}

// populate puts the first process into it.
func (c *fakeCgroup) populate() {
	c.populated, c.ticked = true, time.Now()
}

type cgroups View

func (c *cgroups) Create(ctx context.Context, plan sandbox.Plan) error {
	v := (*View)(c)
	if err := checkName(plan.Host); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	if plan.VCPUs < 1 || plan.MemMiB < 1 {
		return fmt.Errorf("create cgroup: %d vCPUs and %d MiB are no limits", plan.VCPUs, plan.MemMiB)
	}
	return v.act(ctx, operation, "cgroup.create", func() error {
		h := v.host
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
	}, nil)
}

func (c *cgroups) Emptied(ctx context.Context, host string) error {
	v := (*View)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	if v.life.Err() != nil {
		return fmt.Errorf("watch cgroup: %w", ErrKilled)
	}
	v.host.mu.Lock()
	g := v.host.cgroups[host]
	v.host.mu.Unlock()
	if g == nil {
		return nil
	}
	if err := v.wait(ctx, g.emptied); err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	return nil
}

func (c *cgroups) Kill(ctx context.Context, host string) error {
	v := (*View)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return v.act(ctx, operation, "cgroup.kill", func() error {
		v.host.empty(host)
		return nil
	}, nil)
}

func (c *cgroups) Remove(ctx context.Context, host string) error {
	v := (*View)(c)
	if err := checkName(host); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return v.act(ctx, operation, "cgroup.remove", func() error {
		h := v.host
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
	}, nil)
}

func (c *cgroups) List(ctx context.Context) ([]string, error) {
	v := (*View)(c)
	return v.names(ctx, "cgroup.list", func() []string { return keys(v.host.cgroups) })
}

func (c *cgroups) CPUTime(ctx context.Context, host string) (used time.Duration, err error) {
	v := (*View)(c)
	if err := checkName(host); err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	err = v.act(ctx, look, "cgroup.cpu", func() error {
		v.host.mu.Lock()
		defer v.host.mu.Unlock()
		g := v.host.cgroups[host]
		if g == nil {
			return fmt.Errorf("read processor time: no cgroup %s", host)
		}
		g.tick(time.Now())
		used = g.used
		return nil
	}, nil)
	return used, err
}

func (c *cgroups) OOMKilled(ctx context.Context, host string) (killed bool, err error) {
	v := (*View)(c)
	if err := checkName(host); err != nil {
		return false, fmt.Errorf("read OOM kills: %w", err)
	}
	err = v.act(ctx, look, "cgroup.oom", func() error {
		v.host.mu.Lock()
		defer v.host.mu.Unlock()
		g := v.host.cgroups[host]
		if g == nil {
			return fmt.Errorf("read OOM kills: no cgroup %s", host)
		}
		killed = g.oom
		return nil
	}, nil)
	return killed, err
}

// names looks at the host's names of one kind, sorted.
func (v *View) names(ctx context.Context, name string, of func() []string) (names []string, err error) {
	err = v.act(ctx, look, name, func() error {
		v.host.mu.Lock()
		defer v.host.mu.Unlock()
		names = of()
		return nil
	}, nil)
	return names, err
}
