package posture

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary play the probe's child: a real one, one that
// hangs, one that dies, and one that prints what it is told.
func TestMain(m *testing.M) {
	switch os.Getenv("POSTURE_TEST_CHILD") {
	case "":
		os.Exit(m.Run())
	case "probe":
		if err := KVMChild(os.Stdout, os.Args[1]); err != nil {
			os.Exit(1)
		}
	case "hang":
		<-time.After(time.Hour) // killed long before
	case "die":
		fmt.Fprintln(os.Stderr, "killed by the kernel")
		os.Exit(3)
	}
}

func childProbe(t *testing.T, kind, device string, deadline time.Duration) KVMProbe {
	t.Helper()
	t.Setenv("POSTURE_TEST_CHILD", kind)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return KVMProbe{Command: []string{self, device}, Device: device, Deadline: deadline}
}

func fileDevice(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestJudge(t *testing.T) {
	// The figures are measured ones: see hardwareMIPS.
	cases := []struct {
		name    string
		figures kvmFigures
		verdict Verdict
		status  Status
	}{
		{"Xeon", kvmFigures{API: 12, Instructions: 1_146_880_000, LoopNanos: 179_000_000, Exits: 2000, ExitNanos: 3_000_000}, Hardware, OK},
		{"slow core", kvmFigures{API: 12, Instructions: 143_360_000, LoopNanos: 119_000_000, Exits: 2000, ExitNanos: 100_000_000}, Hardware, OK},
		{"QEMU", kvmFigures{API: 12, Instructions: 143_360_000, LoopNanos: 758_766_150, Exits: 2000, ExitNanos: 148_794_300}, Emulated, Warn},
		{"interpreter", kvmFigures{API: 12, Interpreted: true, Instructions: 280_000, LoopNanos: 100_005_578, Exits: 2000, ExitNanos: 19_029_375}, Emulated, Fail},
		{"interpreter that is fast", kvmFigures{API: 12, Interpreted: true, Instructions: 1 << 30, LoopNanos: 1e8, Exits: 1, ExitNanos: 1}, Emulated, Fail},
		{"fault", kvmFigures{API: 12, Fault: "create vCPU: no such device"}, Unusable, Fail},
		{"old API", kvmFigures{API: 11, Instructions: 1 << 30, LoopNanos: 1e8, Exits: 1, ExitNanos: 1}, Unusable, Fail},
		{"no figures", kvmFigures{API: 12}, Unusable, Fail},
		{"negative time", kvmFigures{API: 12, Instructions: 1, LoopNanos: -1, Exits: 1, ExitNanos: 1}, Unusable, Fail},
		{"no probe", kvmFigures{Unsupported: true}, Unproven, Unknown},
	}
	for _, c := range cases {
		report := judge(c.figures)
		finding := report.Finding()
		if report.Verdict != c.verdict || finding.Status != c.status {
			t.Errorf("%s: %s and %s, want %s and %s (%s)", c.name, report.Verdict, finding.Status, c.verdict, c.status, report.Detail)
		}
		if (finding.Fix == "") != (finding.Status == OK) || report.Detail == "" {
			t.Errorf("%s: fix %q, detail %q", c.name, finding.Fix, report.Detail)
		}
	}
}

func TestHangingProbeIsGivenUp(t *testing.T) {
	start := time.Now()
	report := KVM(t.Context(), childProbe(t, "hang", fileDevice(t), 200*time.Millisecond))
	if report.Verdict != Unusable || !strings.Contains(report.Detail, "did not end within 200ms") {
		t.Errorf("report %+v", report)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestCanceledProbeReturns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if report := KVM(ctx, childProbe(t, "hang", fileDevice(t), time.Hour)); report.Verdict != Unproven {
		t.Errorf("report %+v", report)
	}
}

func TestDyingProbeIsUnusable(t *testing.T) {
	report := KVM(t.Context(), childProbe(t, "die", fileDevice(t), 0))
	if report.Verdict != Unusable || !strings.Contains(report.Detail, "killed by the kernel") {
		t.Errorf("report %+v", report)
	}
}

func TestNoDeviceIsAbsent(t *testing.T) {
	report := KVM(t.Context(), KVMProbe{Command: []string{"/does/not/run"}, Device: filepath.Join(t.TempDir(), "kvm")})
	if report.Verdict != Absent || report.Finding().Status != Fail {
		t.Errorf("report %+v", report)
	}
}

// TestFileThatIsNoKVM goes through the real probe: it must refuse, not crash.
func TestFileThatIsNoKVM(t *testing.T) {
	report := KVM(t.Context(), childProbe(t, "probe", fileDevice(t), 0))
	if report.Verdict != Unusable && report.Verdict != Unproven {
		t.Errorf("report %+v", report)
	}
}

// TestThisMachine runs the real probe on whatever this machine has. Which
// verdict is right depends on the machine; that there is one, and that figures
// and verdict agree, does not.
func TestThisMachine(t *testing.T) {
	report := KVM(t.Context(), childProbe(t, "probe", "/dev/kvm", 0))
	t.Logf("%s: %s", report.Verdict, report.Detail)
	_, err := os.Stat("/dev/kvm")
	if (report.Verdict == Absent) != (err != nil) {
		t.Errorf("verdict %s, but /dev/kvm: %v", report.Verdict, err)
	}
	if measured := report.Verdict == Hardware || report.Verdict == Emulated; measured != (report.MIPS > 0 && report.ExitMicros > 0) {
		t.Errorf("verdict %s with %f MIPS and %f us", report.Verdict, report.MIPS, report.ExitMicros)
	}
}
