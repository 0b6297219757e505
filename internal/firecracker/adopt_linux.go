package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// Adopt takes over a microVM that an earlier daemon started: it follows the
// VMM's log again, lets a paused microVM go on, and removes what a Freeze that
// was cut short wrote. The API may be silent for as long as a snapshot is being
// written or the host is busy, so its answer is waited for until the context
// ends. Of the plan only the host's name counts: the image may be gone from the
// catalogue. It may be called again.
func (v *VMM) Adopt(ctx context.Context, plan sandbox.Plan) error {
	if err := validHost(plan.Host); err != nil {
		return fmt.Errorf("adopt microVM: %w", err)
	}
	// Beside the VMM there may be a thread that KVM made for its microVM.
	if pids, err := v.processes(plan.Host); err != nil || len(pids) == 0 {
		if err == nil {
			err = sandbox.ErrEnded
		}
		return fmt.Errorf("adopt microVM: %s: %w", plan.Host, err)
	}
	root, err := v.openRoot(plan.Host)
	if err != nil {
		return fmt.Errorf("adopt microVM: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := v.do("follow log", func() error { return v.refollow(plan.Host, int(root.Fd())) }); err != nil {
		return err
	}
	if err := v.awake(ctx, plan.Host); err != nil {
		return v.explain(plan.Host, fmt.Errorf("adopt microVM: %w", err))
	}
	return v.do("remove half-made snapshot", func() error {
		for _, name := range []string{frozenMemory, frozenState} {
			if err := unix.Unlinkat(int(root.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return &os.PathError{Op: "unlink", Path: name, Err: err}
			}
		}
		return nil
	})
}

// refollow reads the log of a VMM whose reader is gone, unless this process does
// already.
func (v *VMM) refollow(host string, root int) error {
	if v.instance(host) != nil {
		return nil
	}
	log, err := reopenFIFO(root, logName)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running[host] = &instance{log: log, adopted: true}
	return nil
}

// awake asks the VMM for its state and lets a paused microVM go on.
func (v *VMM) awake(ctx context.Context, host string) error {
	vmm := v.api(host)
	defer vmm.close()
	info, err := vmm.info(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("ask the API: %w", err)
	case info.ID != host:
		return fmt.Errorf("the API answers for %.70q", info.ID)
	case info.State == "Running":
		return nil
	case info.State == paused:
		return v.do("resume microVM", func() error { return vmm.patch(ctx, "/vm", vmState{resumed}) })
	}
	return fmt.Errorf("the microVM is in state %.20q", info.State)
}
