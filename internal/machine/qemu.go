package machine

import (
	"fmt"
	"strings"
)

// emulatedCPU is an AMD processor with SVM and nested paging, less what QEMU's emulation or the kernel under it cannot do:
// without these switches kvm-amd does not load, or guests fault. Found by trial; change it only with a run of the e2e suites.
const emulatedCPU = "EPYC,+svm,-rdseed,-sha-ni,-fxsr-opt,-misalignsse,-3dnowprefetch,-osvw,-topoext,-nrip-save,-xsavec"

// kernelLine is the host kernel's command line. panic=-1 restarts at once, which -no-reboot turns into QEMU's end.
// no_timer_check: on a busy outer machine the kernel's test of its timer interrupt counts too few ticks and panics.
const kernelLine = "console=ttyS0 nokaslr no_timer_check panic=-1 oops=panic quiet mitigations=off net.ifnames=0 systemd.show_status=false"

// Descriptors of the keeper's that QEMU inherits, in the order of exec.Cmd.ExtraFiles.
const (
	fdRoot = 3 + iota
	fdData
	fdDataRead // QEMU opens a disk to read before a device writes to it, and wants a descriptor of that kind
	fdMailbox
	fdQMP
)

// launch is everything that the keeper needs to know to start QEMU.
type launch struct {
	Name     string   `json:"name"`
	QEMURoot string   `json:"qemu_root"` // directory to chroot into
	Boot     string   `json:"boot"`      // directory of vmlinuz and initrd, as seen from inside it
	HostRoot string   `json:"host_root"` // directory of host.img
	Release  string   `json:"qemu_release"`
	Settings Settings `json:"settings"`
}

const launchFile = "launch.json"

// spareCores is the first processor, on which the host's init lets no service and
// no microVM run. When any emulated processor loads FPU state, QEMU
// (7.2 to 11.1 at least) clears a flag of the *first* one without a lock
// (cpu_clear_ignne, target/i386/tcg: hflags2). The same word says whether that
// processor runs a guest with nested paging and takes interrupts. When the two
// writes met, the state of the host was saved as a guest's (a guest that hangs
// or dies) or an interrupt came in the midst of #VMEXIT (a host that panics).
// An idle processor costs nothing, and one that runs no guest has nothing to lose.
const spareCores = 1

// qemuArgs is QEMU's command line. Disks are descriptors: QEMU can open none by name. The network lets in two forwarded
// loopback ports, and nothing out.
func qemuArgs(l launch) []string {
	forward := func(from, to int) string { return fmt.Sprintf("hostfwd=tcp:127.0.0.1:%d-:%d", from, to) }
	return []string{
		"qemu-system-x86_64",
		"-name", "microvm-" + l.Name,
		"-M", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", emulatedCPU,
		"-smp", fmt.Sprint(l.Settings.Cores + spareCores), "-m", fmt.Sprint(l.Settings.MemoryMiB),
		"-display", "none", "-no-reboot", "-nodefaults", "-no-user-config",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-chardev", "stdio,id=serial,signal=off", "-serial", "chardev:serial",
		"-kernel", l.Boot + "/vmlinuz", "-initrd", l.Boot + "/initrd", "-append", kernelLine + " systemd.hostname=" + l.Name,
		"-add-fd", fmt.Sprintf("fd=%d,set=1", fdRoot), "-drive", "file=/dev/fdset/1,format=raw,if=virtio,snapshot=on",
		"-add-fd", fmt.Sprintf("fd=%d,set=2", fdData), "-add-fd", fmt.Sprintf("fd=%d,set=2", fdDataRead), "-drive", "file=/dev/fdset/2,format=raw,if=virtio,discard=unmap",
		"-add-fd", fmt.Sprintf("fd=%d,set=3", fdMailbox), "-drive", "file=/dev/fdset/3,format=raw,if=virtio,readonly=on",
		"-netdev", strings.Join([]string{"user,id=net", "restrict=on", "ipv6=off", forward(l.Settings.SSHPort, 22), forward(l.Settings.APIPort, 7080)}, ","),
		"-device", "virtio-net-pci,netdev=net",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control",
	}
}
