//go:build !fakevmm

package daemon

import (
	"context"
	"testing"

	"github.com/microvmd/microvm/internal/sandbox"
)

// TestSettingsReachTheVMM: a setting that ends in the daemon's configuration
// does nothing.
func TestSettingsReachTheVMM(t *testing.T) {
	c := Defaults(2, 4096)
	c.DebugVMM, c.UIDBase, c.StateDir = true, 5000, "/s"
	got := vmmConfig(c, "/c/i", func(context.Context) (string, error) { return "/n", nil })
	if !got.Debug || got.UIDBase != 5000 || got.StateDir != "/s" || got.KernelPath != "/s/kernel/vmlinux" || got.CgroupDir != "/c/i" {
		t.Errorf("got %+v", got)
	}
	if netns, err := got.Netns(t.Context(), sandbox.Plan{}); netns != "/n" || err != nil {
		t.Errorf("namespace %q, %v", netns, err)
	}
	c.DebugVMM = false
	if vmmConfig(c, "/c/i", nil).Debug {
		t.Error("debugging is on by itself")
	}
}
