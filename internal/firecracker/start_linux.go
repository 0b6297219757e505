package firecracker

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/microvmd/microvm/internal/sandbox"
)

// guestCID is every guest's own: each is alone behind its Unix socket.
const guestCID = 3

// bootArgs is the kernel's command line. Firecracker adds the devices.
//
//   - reboot=k panic=1: a reboot or panic ends the VMM at once.
//   - nomodule: nothing is ever loaded.
//   - quiet loglevel=1 8250.nr_uarts=0: serial output costs a large part of a boot.
//   - i8042...: no probing for a keyboard that is not there, but for reset.
//   - swiotlb=noforce: no bounce buffers, virtio reaches all memory.
//   - random.trust_cpu=on: the CPU's random numbers are enough for the boot.
//
// There is no entropy device: configure mixes the host's random numbers in and
// reseeds before anything of the caller's runs, so a device would add boot time
// and attack surface and no safety.
func bootArgs(arch string, debug bool) string {
	args := []string{"reboot=k", "panic=1", "nomodule"}
	if debug {
		args = append(args, "console=ttyS0", "loglevel=7")
	} else {
		args = append(args, "quiet", "loglevel=1", "8250.nr_uarts=0")
	}
	if arch == "amd64" {
		args = append(args, "i8042.noaux", "i8042.nomux", "i8042.dumbkbd", "swiotlb=noforce")
	}
	return strings.Join(append(args, "random.trust_cpu=on"), " ")
}

type request struct {
	path string
	body any
}

// requests configure a microVM and start it, in order. The drives' order is
// guestwire's: ImageDevice, then ScratchDevice. Neither is the root device: the
// root comes from the initrd.
func requests(plan sandbox.Plan, args string) []request {
	return []request{
		{"/machine-config", machineConfig{VCPUs: plan.VCPUs, MemMiB: plan.MemMiB}},
		{"/boot-source", bootSource{Kernel: kernelName, Initrd: initrdName, Args: args}},
		{"/drives/image", drive{ID: "image", Path: imageName, ReadOnly: true}},
		{"/drives/scratch", drive{ID: "scratch", Path: scratchName}},
		{"/vsock", vsockDevice{CID: guestCID, Path: vsockName}},
		{"/actions", action{Type: "InstanceStart"}},
	}
}

// restore loads a template and lets it go on. What it is made of is in the
// template's state; the devices find their files by their names in the jail.
func restore() []request {
	return []request{
		{"/snapshot/load", snapshotLoad{State: stateName, Memory: memBackend{Type: "File", Path: memoryName}, Resume: true}},
	}
}

// Start configures the microVM and starts its vCPUs; or loads the template that
// the jail was prepared with. After an error the VMM is of no use any more.
func (v *VMM) Start(ctx context.Context, plan sandbox.Plan) error {
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("start microVM: %w", err)
	}
	vmm := v.api(plan.Host)
	defer vmm.close()
	all := requests(plan, bootArgs(runtime.GOARCH, v.conf.Debug))
	if plan.Template != "" {
		all = restore()
	}
	for _, r := range all {
		if err := v.do("put "+r.path, func() error { return vmm.put(ctx, r.path, r.body) }); err != nil {
			if plan.Template != "" {
				err = fmt.Errorf("template %s did not load: %w", plan.Template, err)
			}
			return v.explain(plan.Host, err)
		}
	}
	return nil
}
