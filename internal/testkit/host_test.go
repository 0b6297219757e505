package testkit_test

import (
	"testing"

	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/testkit"
	"github.com/microvmd/microvm/internal/testkit/hosttest"
)

// TestFakeKeepsWhatTheRealHostKeeps: what passes on the fake is worth something
// only as far as the fake behaves as the real one does.
func TestFakeKeepsWhatTheRealHostKeeps(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Ports {
		host := testkit.NewHost(testkit.GuestAgent(t.TempDir()))
		t.Cleanup(func() {
			if left := host.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
		return hosttest.Ports{
			Cgroups: host.Cgroups(), VMM: host.VMM(), Agents: host.Agents(),
			Image: image.Image{ID: "fake", Path: "/fake", User: "user", Workdir: "/workspace"},
			Die:   func(_ *testing.T, name string) { host.Die(name) },
		}
	})
}
