package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
)

// Recover settles what an earlier daemon left. Every microVM that the store
// wants and the host still has is adopted; everything else on the host is
// reaped, and every row that has no microVM is stopped. Nothing of it waits for
// a guest: an adoption goes on after Recover has returned. From then on the
// host is compared with what should be there every ReconcileEvery.
func (m *Manager) Recover(ctx context.Context) error {
	if err := m.templates.load(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	hosts, err := m.onHost(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	live, err := m.cfg.Store.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for _, sb := range live {
		if place := hosts[ident.Host(sb.ID)]; sb.State == Running && sb.HostBoot == m.cfg.HostBoot && place.whole() {
			m.adopt(ctx, sb)
		} else if err := m.settle(ctx, sb, ReasonHostRestarted); err != nil {
			return fmt.Errorf("recover: %w", err)
		}
	}
	m.reapUnowned(ctx, hosts)
	m.running.Go(m.reconcile)
	return nil
}

// place says where on the host a name was found.
type place struct{ cgroup, jail bool }

func (p place) whole() bool { return p.cgroup && p.jail }

// onHost lists every name that this node's sandboxes have on the host.
func (m *Manager) onHost(ctx context.Context) (map[string]place, error) {
	ctx, cancel := context.WithTimeout(ctx, m.limits().StepTimeout)
	defer cancel()
	cgroups, err := m.cfg.Cgroups.List(ctx)
	if err != nil {
		return nil, err
	}
	jails, err := m.cfg.VMM.List(ctx)
	if err != nil {
		return nil, err
	}
	hosts := map[string]place{}
	for _, name := range cgroups {
		hosts[name] = place{cgroup: true}
	}
	for _, name := range jails {
		hosts[name] = place{cgroup: hosts[name].cgroup, jail: true}
	}
	return hosts, nil
}

// adopt makes a sandbox that an earlier daemon left running one of ours.
func (m *Manager) adopt(ctx context.Context, sb Sandbox) {
	img, err := m.cfg.Images.Use(ctx, sb.Image, image.BySandbox)
	if err != nil { // it may be gone from the catalogue: what runs has it open
		img = m.cfg.Images.Hold(sb.Image)
	}
	plan := m.plan(sb, img.Image)
	o := newOwner(m, sb, plan, m.admission.hold(sb.Slot, amountOf(plan)), img)
	o.adopted = true
	if _, err := m.opened(sb); err != nil { // what runs goes on; new executions will be told
		o.log.Error("a sandbox lost its environment", "error", err)
	}
	if m.own(o) { // nobody closes a manager that recovers
		m.start(o) //nolint:contextcheck // it has its own: the sandbox outlives the call
	}
}

// settle stops a row that has no microVM.
func (m *Manager) settle(ctx context.Context, sb Sandbox, reason Reason) error {
	sb.State, sb.StopReason, sb.Reason, sb.Stopped, sb.Env = Stopped, stopReasons[reason], reason, time.Now(), ""
	err := m.store(ctx, sb)
	if fault.Is(err, fault.SandboxNotRunning) || fault.Is(err, fault.SandboxNotFound) {
		return nil // it ended by itself meanwhile
	}
	if err == nil {
		m.cfg.Logger.Warn("sandbox had no microVM", "sandbox", sb.ID, "reason", reason)
	}
	return err
}

// reconcile compares host and store with what should be there, again and again.
func (m *Manager) reconcile() {
	ticker := time.NewTicker(m.limits().ReconcileEvery)
	defer ticker.Stop()
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	for {
		select {
		case <-ticker.C:
			if err := m.compare(ctx); err != nil {
				m.cfg.Logger.Error("cannot compare the host with the store", "error", err)
			}
		case <-m.ending:
			return
		}
	}
}

// compare reaps what nobody owns, stops rows that have no owner, and lets
// owners follow the wall clock.
func (m *Manager) compare(ctx context.Context) error {
	hosts, err := m.onHost(ctx)
	if err != nil {
		return err
	}
	for host := range hosts { // an owner that just ended has left nothing: look twice
		if m.owned(host) {
			delete(hosts, host)
		}
	}
	if len(hosts) > 0 {
		again, err := m.onHost(ctx)
		if err != nil {
			return err
		}
		for host := range hosts {
			if again[host] == (place{}) {
				delete(hosts, host)
			}
		}
		m.reapUnowned(ctx, hosts)
	}
	ctx, cancel := context.WithTimeout(ctx, m.limits().StepTimeout)
	defer cancel()
	live, err := m.cfg.Store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, sb := range live {
		o := m.owner(sb.ID)
		if o == nil {
			all = append(all, m.settle(ctx, sb, ReasonHostRestarted))
			continue
		}
		select {
		case o.asks <- o.followClock:
		default: // it is busy: the next time will do
		}
	}
	return errors.Join(all...)
}

// owned reports whether somebody answers for a name on the host.
func (m *Manager) owned(host string) bool {
	id, ok := ident.FromHost(ident.Sandbox, host)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.others[host] || ok && m.owners[id] != nil
}

// claim makes the caller answer for a name that is no owner's. It ends with
// disclaim.
func (m *Manager) claim(host string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.others[host] || m.closing {
		return false
	}
	m.others[host] = true
	m.running.Add(1)
	return true
}

func (m *Manager) disclaim(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.others, host)
	m.running.Done()
}

// reapUnowned removes from the host what nobody answers for, each on its own, so
// that one that cannot be removed holds up nothing but its slot.
func (m *Manager) reapUnowned(ctx context.Context, hosts map[string]place) {
	for host := range hosts {
		log := m.cfg.Logger.With("host", host)
		if m.owned(host) || !m.claim(host) {
			continue
		}
		slot, err := m.cfg.VMM.SlotOf(ctx, host)
		if err != nil {
			m.disclaim(host)
			log.Error("cannot tell the slot of what nobody owns, trying again later", "error", err)
			continue
		}
		held := m.admission.hold(slot, amount{})
		vm := newMicroVM(m.ctx, m, Plan{Host: host}, log) //nolint:contextcheck // it outlives the call
		go func() {
			defer m.disclaim(host)
			if vm.remove(context.WithoutCancel(ctx)) {
				held.release()
				log.Warn("reaped what nobody owned")
			}
		}()
	}
}
