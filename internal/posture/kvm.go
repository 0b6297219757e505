package posture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Verdict says what /dev/kvm is worth.
type Verdict string

// The verdicts on KVM.
const (
	Hardware Verdict = "hardware" // guest code runs at the processor's own speed
	Emulated Verdict = "emulated" // it works, and guest code is interpreted or translated
	Unusable Verdict = "unusable" // the device is there and a guest does not run
	Absent   Verdict = "absent"   // no /dev/kvm
	Unproven Verdict = "unknown"  // not judged: no probe for this machine, or interrupted
)

// KVMReport is the outcome of one probe boot.
type KVMReport struct {
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"` // one line: what was read, or why there is no result
	// MIPS is millions of guest instructions per second over the probe's loop;
	// 0 when it did not run to its end.
	MIPS float64 `json:"mips"`
	// ExitMicros is the time of one exit to the host and back, in microseconds.
	ExitMicros float64 `json:"exit_us"`
	// Interpreted says that KVM named an instruction that it cannot interpret:
	// such a KVM does not boot a Linux guest.
	Interpreted bool `json:"interpreted"`
}

// KVMProbe says how to run the probe.
type KVMProbe struct {
	// Command is a program that calls KVMChild and ends: the probe runs in a
	// process of its own, because a broken KVM can hold its caller for ever.
	// Empty is this program with ChildArgs, which cmd/microvm answers to.
	Command []string
	// Device is the path of the device; empty is /dev/kvm.
	Device string
	// Deadline bounds the whole probe; 0 is 20 s.
	Deadline time.Duration
}

// ChildArgs are the arguments with which cmd/microvm calls KVMChild.
func ChildArgs() []string { return []string{"doctor", "--kvm-child"} }

const probeDeadline = 20 * time.Second

// KVM boots a tiny program through the KVM device and judges the device by the
// speed of it. It returns within the deadline plus a second, whatever the
// kernel does. It does not trust the processor's flags: a KVM can be there
// without vmx or svm, and vmx or svm can themselves be emulated.
func KVM(ctx context.Context, probe KVMProbe) KVMReport {
	if probe.Device == "" {
		probe.Device = "/dev/kvm"
	}
	if probe.Deadline <= 0 {
		probe.Deadline = probeDeadline
	}
	if _, err := os.Stat(probe.Device); errors.Is(err, fs.ErrNotExist) {
		return KVMReport{Verdict: Absent, Detail: probe.Device + " is not there"}
	}
	if len(probe.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return KVMReport{Verdict: Unproven, Detail: fmt.Sprintf("the program cannot find itself: %v", err)}
		}
		probe.Command = append([]string{self}, ChildArgs()...)
	}
	bounded, cancel := context.WithTimeout(ctx, probe.Deadline)
	defer cancel()
	text, err := runChild(bounded, probe.Command)
	if ctx.Err() != nil {
		return KVMReport{Verdict: Unproven, Detail: "the probe was interrupted"}
	}
	if bounded.Err() != nil {
		return KVMReport{Verdict: Unusable, Detail: fmt.Sprintf("the probe did not end within %s", probe.Deadline)}
	}
	var figures kvmFigures
	if jsonErr := json.Unmarshal(text, &figures); jsonErr != nil {
		return KVMReport{Verdict: Unusable, Detail: fmt.Sprintf("the probe ended without a result: %v", err)}
	}
	return judge(figures)
}

// runChild runs the probe and returns its standard output. It does not wait
// for a child that stays in the kernel after a kill: that one goroutine and
// process are left behind, since nothing can end them.
func runChild(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil && errs.Len() > 0 {
			line, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n")
			err = fmt.Errorf("%w: %.200s", err, line)
		}
		return out.Bytes(), err
	case <-ctx.Done():
		_ = cmd.Process.Kill()
	}
	select {
	case err := <-ended:
		_ = err // it was killed
	case <-time.After(time.Second):
	}
	return nil, ctx.Err()
}

// kvmFigures is what the child found; it crosses the pipe as JSON.
type kvmFigures struct {
	Unsupported  bool   `json:"unsupported"` // no probe for this architecture
	Fault        string `json:"fault"`       // why there are no figures
	API          int    `json:"api"`
	Interpreted  bool   `json:"interpreted"` // KVM said so itself
	Instructions int64  `json:"instructions"`
	LoopNanos    int64  `json:"loop_ns"`
	Exits        int64  `json:"exits"`
	ExitNanos    int64  `json:"exit_ns"`
}

// kvmAPI is the only version that KVM ever had since it became stable
// (Linux, Documentation/virt/kvm/api.rst, 4.1); anything else is to be refused.
const kvmAPI = 12

// hardwareMIPS divides hardware from software, in millions of instructions of
// the probe's loop per second. Measured on a 2.6 GHz Xeon of 2023: 6,400 by the
// processor itself; 175 to 190 as a guest of KVM in a machine that QEMU 10.0
// emulates (TCG, SVM in software); 2 by a KVM that interprets. The fastest
// desktop has three times that Xeon's speed in one thread, which puts its QEMU
// at 600; a 1.3 GHz low-power core needs 10 to 15 cycles for the loop's 14
// instructions, which is 1,200 or more. The time of an exit does not divide
// them: 10 us under the interpreting KVM, 75 to 150 us under QEMU, and anything
// from 1 to 60 us on hardware, nested or not.
const hardwareMIPS = 800

func judge(f kvmFigures) KVMReport {
	switch {
	case f.Unsupported:
		return KVMReport{Verdict: Unproven, Detail: "there is no probe for this architecture"}
	case f.Fault != "":
		return KVMReport{Verdict: Unusable, Detail: f.Fault}
	case f.API != kvmAPI:
		return KVMReport{Verdict: Unusable, Detail: fmt.Sprintf("KVM API version is %d, wanted %d", f.API, kvmAPI)}
	case f.LoopNanos <= 0 || f.Instructions <= 0 || f.ExitNanos <= 0 || f.Exits <= 0:
		return KVMReport{Verdict: Unusable, Detail: "the probe brought no figures"}
	}
	report := KVMReport{
		Interpreted: f.Interpreted,
		MIPS:        float64(f.Instructions) * 1000 / float64(f.LoopNanos),
		ExitMicros:  float64(f.ExitNanos) / float64(f.Exits) / 1000,
	}
	report.Verdict = Hardware
	if f.Interpreted || report.MIPS < hardwareMIPS {
		report.Verdict = Emulated
	}
	report.Detail = fmt.Sprintf("a probe guest ran at %.0f million instructions a second (hardware: over %d), an exit took %.1f us",
		report.MIPS, hardwareMIPS, report.ExitMicros)
	if f.Interpreted {
		report.Detail += "; KVM could not interpret a vector instruction"
	}
	return report
}

// Finding makes the report into a finding.
func (r KVMReport) Finding() Finding {
	f := Finding{
		ID: "kvm", Read: fmt.Sprintf("%s: %s", r.Verdict, r.Detail),
		Wanted: "a /dev/kvm with hardware virtualisation, shown by a timed probe boot",
	}
	const elsewhere = "; or run the emulated host: microvm machine start"
	switch {
	case r.Verdict == Hardware:
		f.Status = OK
	case r.Verdict == Unproven:
		f.Status, f.Fix = Unknown, "boot a sandbox and see"
	case r.Verdict == Absent:
		f.Status, f.Fix = Fail, "turn on virtualisation in the firmware (or nested virtualisation in the cloud's settings) and load kvm_intel or kvm_amd"+elsewhere
	case r.Verdict == Emulated && !r.Interpreted:
		f.Status, f.Fix = Warn, "good for trying and testing, never for measuring; for more take a machine with virtualisation"
	default:
		f.Status, f.Fix = Fail, "take a machine with virtualisation"+elsewhere
	}
	return f
}
