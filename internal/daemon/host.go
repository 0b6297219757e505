//go:build !fakevmm

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/microvmd/microvm/internal/artifact"
	"github.com/microvmd/microvm/internal/cgroup"
	"github.com/microvmd/microvm/internal/firecracker"
	"github.com/microvmd/microvm/internal/hostnet"
	"github.com/microvmd/microvm/internal/sandbox"
)

// newHost builds the real adapters: cgroup v2, Firecracker under its jailer,
// and a network namespace without a NIC.
func newHost(ctx context.Context, c Config) (*host, error) {
	if err := errors.Join(firecracker.Subreaper(), firecracker.NoCores()); err != nil {
		return nil, err
	}
	cgroups, err := cgroup.New(cgroup.Config{Root: c.CgroupRoot, Instance: c.Instance})
	if err != nil {
		return nil, err
	}
	network, err := hostnet.New(hostnet.Config{Dir: c.NetnsDir, Instance: c.Instance})
	if err != nil {
		return nil, err
	}
	if _, err := network.Empty(ctx); err != nil {
		return nil, err
	}
	vmm, err := firecracker.New(ctx, vmmConfig(c, cgroups.Dir(), network.Empty))
	if err != nil {
		return nil, fmt.Errorf("%w; \"microvm setup\" puts what is missing into %s", err, c.StateDir)
	}
	supported, err := artifact.CheckFirecracker(vmm.Version())
	if err != nil {
		return nil, err
	}
	if !supported {
		if !c.AllowUnsupportedFirecracker {
			return nil, fmt.Errorf("firecracker %s gets no security fixes any more; install a supported release (microvm setup), or start with --allow-unsupported-firecracker", vmm.Version())
		}
		c.Logger.Warn("this Firecracker release gets no security fixes any more", "version", vmm.Version())
	}
	return &host{
		cgroups: cgroups, vmm: vmm, agents: vmm,
		close: func(empty bool) error {
			err := vmm.Close()
			if empty { // else the namespace has VMMs in it, and the next start wants the same one
				err = errors.Join(err, network.Remove(context.WithoutCancel(ctx)))
			}
			return err
		},
	}, nil
}

// vmmConfig says where the state directory has what VMMs are made of.
func vmmConfig(c Config, cgroups string, netns func(context.Context) (string, error)) firecracker.Config {
	in := func(elements ...string) string { return filepath.Join(append([]string{c.StateDir}, elements...)...) }
	return firecracker.Config{
		StateDir:        c.StateDir,
		FirecrackerPath: in("bin", "firecracker"),
		JailerPath:      in("bin", "jailer"),
		KernelPath:      in("kernel", "vmlinux"),
		GuestdPath:      in("guest", "guestd"),
		CgroupDir:       cgroups,
		UIDBase:         c.UIDBase,
		Netns:           func(ctx context.Context, _ sandbox.Plan) (string, error) { return netns(ctx) },
		Debug:           c.DebugVMM,
		Log:             c.Logger,
	}
}
