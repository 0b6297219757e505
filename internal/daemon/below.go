package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/microvmd/microvm/internal/sandbox"
)

// host is what a daemon needs below its sandboxes: the real one, or the fake
// of the contract tests' build.
type host struct {
	cgroups sandbox.Cgroups
	vmm     sandbox.VMM
	agents  sandbox.Agents
	close   func(empty bool) error // empty: nothing of any sandbox is on the host
}

// left names what is on the host, each sandbox once.
func (h *host) left(ctx context.Context) ([]string, error) {
	cgroups, err := h.cgroups.List(ctx)
	jails, jailErr := h.vmm.List(ctx)
	if err := errors.Join(err, jailErr); err != nil {
		return nil, fmt.Errorf("list what is left: %w", err)
	}
	all := slices.Concat(cgroups, jails)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// leave lets go of the host. What sandboxes that go on need stays on it.
func (h *host) leave(ctx context.Context) error {
	left, err := h.left(context.WithoutCancel(ctx))
	return errors.Join(err, h.close(err == nil && len(left) == 0))
}
