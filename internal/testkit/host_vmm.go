package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/microvmd/microvm/internal/sandbox"
)

// fakeJail is a jail and the VMM in it, guarded by Host.mu.
type fakeJail struct {
	maker     *View         // who prepared it; no other life launches it or takes its hello
	plan      sandbox.Plan  // as it was prepared
	template  *fakeTemplate // that it is restored from; nil for a cold boot
	launched  bool
	started   bool
	dead      bool
	rebooted  bool              // the guest ended it
	greeted   bool              // the hello was taken
	talked    bool              // a call reached the agent
	paused    bool              // calls to the agent get no answer
	frozen    bool              // memory and devices are written
	changed   chan struct{}     // closed when the VM is up, or dead
	transport http.RoundTripper // of the agent, while it runs
	stop      func()
}

// runs reports whether its vCPUs were started and its VMM is there.
func (j *fakeJail) runs() bool { return j != nil && j.started && !j.dead }

// fakeTemplate is guarded by Host.mu.
type fakeTemplate struct {
	damaged bool
}

type vmm View

func (m *vmm) Prepare(ctx context.Context, plan sandbox.Plan) error {
	v, h := (*View)(m), m.host
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	if plan.Template != "" && plan.Template != m.TemplateOf(plan) {
		return fmt.Errorf("prepare jail: template %s is none of this plan", plan.Template)
	}
	return v.act(ctx, operation, "jail.prepare", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		t := h.templates[plan.Template]
		if plan.Template != "" && t == nil {
			return fmt.Errorf("prepare jail: no template %s", plan.Template)
		}
		if h.jails[plan.Host] != nil {
			return fmt.Errorf("prepare jail: %s is there already", plan.Host)
		}
		h.jails[plan.Host] = &fakeJail{maker: v, plan: plan, template: t, changed: make(chan struct{})}
		return nil
	}, nil)
}

func (m *vmm) Launch(ctx context.Context, plan sandbox.Plan) error {
	v, h := (*View)(m), m.host
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("launch VMM: %w", err)
	}
	launch := func(answers bool) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		j, g := h.jails[plan.Host], h.cgroups[plan.Host]
		switch {
		case j == nil || j.maker != v:
			return fmt.Errorf("launch VMM: %s was not prepared by this daemon", plan.Host)
		case j.launched:
			return fmt.Errorf("launch VMM: %s was launched already", plan.Host)
		case g == nil:
			return fmt.Errorf("launch VMM: no cgroup %s", plan.Host)
		}
		g.populate()
		j.launched = answers
		return nil
	}
	return v.act(ctx, operation, "vmm.launch", func() error { return launch(true) }, func() error { return launch(false) })
}

func (m *vmm) Start(ctx context.Context, plan sandbox.Plan) error {
	v, h := (*View)(m), m.host
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("start microVM: %w", err)
	}
	half := func() error { return nil } // configured, and not started
	return v.act(ctx, operation, "vmm.start", func() error {
		if err := h.mayStart(plan); err != nil {
			return err
		}
		transport, stop, err := h.agent(plan)
		if err != nil {
			return err
		}
		h.mu.Lock()
		j := h.jails[plan.Host]
		if j == nil || j.dead || j.started { // killed meanwhile
			h.mu.Unlock()
			stop()
			return fmt.Errorf("start microVM: the VMM of %s ended", plan.Host)
		}
		defer h.mu.Unlock()
		j.started, j.transport, j.stop = true, transport, stop
		close(j.changed)
		return nil
	}, half)
}

func (h *Host) mayStart(plan sandbox.Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jails[plan.Host]
	switch {
	case j == nil || !j.launched || j.dead:
		return fmt.Errorf("start microVM: no VMM of %s", plan.Host)
	case j.started:
		return fmt.Errorf("start microVM: %s was started already", plan.Host)
	case j.plan.Template != plan.Template:
		return fmt.Errorf("start microVM: %s was prepared for template %q, not %q", plan.Host, j.plan.Template, plan.Template)
	case j.template != nil && j.template.damaged:
		return fmt.Errorf("start microVM: template %s does not load", plan.Template)
	}
	return nil
}

func (m *vmm) Adopt(ctx context.Context, plan sandbox.Plan) error {
	v, h := (*View)(m), m.host
	if err := checkName(plan.Host); err != nil {
		return fmt.Errorf("adopt microVM: %w", err)
	}
	return v.act(ctx, operation, "vmm.adopt", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		j := h.jails[plan.Host]
		if !j.runs() {
			return fmt.Errorf("adopt microVM: %s: %w", plan.Host, sandbox.ErrEnded)
		}
		j.paused, j.frozen = false, false
		return nil
	}, nil)
}

func (m *vmm) GuestEnded(ctx context.Context, host string) (ended bool, err error) {
	v, h := (*View)(m), m.host
	err = v.act(ctx, look, "vmm.ended", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		j := h.jails[host]
		ended = j != nil && j.maker == v && j.rebooted
		return nil
	}, nil)
	return ended, err
}

func (m *vmm) Remove(ctx context.Context, host string) error {
	v, h := (*View)(m), m.host
	if err := checkName(host); err != nil {
		return fmt.Errorf("remove jail: %w", err)
	}
	remove := func(whole bool) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if g := h.cgroups[host]; g != nil && g.populated {
			return fmt.Errorf("remove jail: processes of %s still run", host)
		}
		if whole {
			delete(h.jails, host)
		}
		return nil
	}
	return v.act(ctx, operation, "jail.remove", func() error { return remove(true) }, func() error { return remove(false) })
}

func (m *vmm) List(ctx context.Context) ([]string, error) {
	return (*View)(m).names(ctx, "jail.list", func() []string { return keys(m.host.jails) })
}

func (m *vmm) SlotOf(ctx context.Context, host string) (slot int, err error) {
	v, h := (*View)(m), m.host
	err = v.act(ctx, look, "jail.slot", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		slot = -1
		if j := h.jails[host]; j != nil && j.launched {
			slot = j.plan.Slot
		}
		return nil
	}, nil)
	return slot, err
}

func (m *vmm) TemplateOf(plan sandbox.Plan) string {
	img := sha256.Sum256(fmt.Appendf(nil, "%q %q", plan.Image.ID, plan.Image.Digest))
	all := sha256.Sum256(fmt.Appendf(img[:], "%d %d %d", plan.VCPUs, plan.MemMiB, plan.ScratchMiB))
	return hex.EncodeToString(img[:])[:sandbox.TemplateImage] + hex.EncodeToString(all[:])[:32-sandbox.TemplateImage]
}

func (m *vmm) Freeze(ctx context.Context, plan sandbox.Plan) error {
	v, h := (*View)(m), m.host
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("freeze microVM: %w", err)
	}
	freeze := func(whole bool) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		j := h.jails[plan.Host]
		switch {
		case !j.runs() || j.maker != v:
			return fmt.Errorf("freeze microVM: %s was not started by this daemon", plan.Host)
		case j.template != nil || !j.greeted || j.talked:
			return fmt.Errorf("freeze microVM: %s is not fresh from a cold boot and its hello", plan.Host)
		case j.paused:
			return fmt.Errorf("freeze microVM: %s is frozen already", plan.Host)
		}
		j.paused, j.frozen = true, whole
		return nil
	}
	return v.act(ctx, operation, "vmm.freeze", func() error { return freeze(true) }, func() error { return freeze(false) })
}

func (m *vmm) Keep(ctx context.Context, host, template string) error {
	v, h := (*View)(m), m.host
	if err := checkName(host); err != nil {
		return fmt.Errorf("keep template: %w", err)
	}
	return v.act(ctx, operation, "template.keep", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		j := h.jails[host]
		switch {
		case j == nil || !j.frozen || j.maker != v:
			return fmt.Errorf("keep template: %s was not frozen by this daemon", host)
		case template != m.TemplateOf(j.plan):
			return fmt.Errorf("keep template: %s is another template than %q", host, template)
		case h.cgroups[host] != nil && h.cgroups[host].populated:
			return fmt.Errorf("keep template: processes of %s still run", host)
		}
		h.templates[template] = &fakeTemplate{}
		j.frozen = false
		return nil
	}, nil)
}

func (m *vmm) Templates(ctx context.Context) ([]string, error) {
	return (*View)(m).names(ctx, "template.list", func() []string { return keys(m.host.templates) })
}

func (m *vmm) DropTemplate(ctx context.Context, template string) error {
	v, h := (*View)(m), m.host
	if err := checkTemplate(template); err != nil {
		return fmt.Errorf("drop template: %w", err)
	}
	return v.act(ctx, operation, "template.drop", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.templates, template)
		return nil
	}, nil)
}

// checkTemplate takes only names that TemplateOf could have made.
func checkTemplate(name string) error {
	if raw, err := hex.DecodeString(name); err != nil || len(raw) != 16 || hex.EncodeToString(raw) != name {
		return fmt.Errorf("%q is no name of a template", name)
	}
	return nil
}
