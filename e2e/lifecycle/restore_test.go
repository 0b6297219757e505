package lifecycle

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// identity is what tells one guest from another, and its clock.
const identity = `cat /etc/machine-id /etc/hostname /proc/sys/kernel/random/boot_id
head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '
python3 -c 'import secrets; print(secrets.token_hex(8))'
date +%s; df -k / | tail -1 | awk '{print $3 < 200000}'; ls -A /workspace | wc -l`

// TestRestoredSandboxes: after the first sandbox of a shape has booted, later ones
// are restored from a template. Two of them share nothing that a program could
// take for its own, have the right clock and an empty disk, and do not disturb
// each other.
func TestRestoredSandboxes(t *testing.T) {
	d := harness.Start(t, "restore", "--templates", "1", "--reconcile-every", "1s")
	first := d.Create(t, microvm.SandboxCreate{})
	if first.Boot == nil || *first.Boot != "cold" {
		t.Fatalf("the first sandbox: %+v", first)
	}
	d.Exec(t, first.ID, "sh", "-c", "echo mine > /workspace/mine")

	d.AwaitTemplate(t)
	restored := func() *microvm.Sandbox {
		for range 2 { // it is there a moment before the daemon uses it
			if sb := d.Create(t, microvm.SandboxCreate{}); *sb.Boot == "snapshot" {
				return sb
			}
		}
		t.Fatal("not restored")
		return nil
	}
	seen := map[string]bool{}
	for _, sb := range []*microvm.Sandbox{first, restored(), restored()} {
		asked := time.Now()
		exe := d.Exec(t, sb.ID, "sh", "-c", identity)
		lines := strings.Split(strings.TrimSpace(exe.Stdout), "\n")
		if exe.Status != "exited" || *exe.ExitCode != 0 || len(lines) != 8 {
			t.Fatalf("%+v", exe)
		}
		for _, own := range lines[:5] {
			if len(own) < 16 || seen[own] {
				t.Errorf("%s has %q, as another has", sb.ID, own)
			}
			seen[own] = true
		}
		now, err := strconv.ParseInt(lines[5], 10, 64)
		if off := time.Unix(now, 0).Sub(asked); err != nil || off < -2*time.Second || off > time.Since(asked)+2*time.Second {
			t.Errorf("its clock is off by %s: %v", off, err)
		}
		want := "0"
		if sb == first {
			want = "1"
		}
		if lines[6] != "1" || lines[7] != want {
			t.Errorf("its disk has files of another: %q", lines[6:])
		}
	}
	cold := d.Create(t, microvm.SandboxCreate{Boot: harness.Ptr(microvm.SandboxCreateBootCold)})
	if *cold.Boot != "cold" {
		t.Errorf("a cold one on demand: %+v", cold)
	}
}
