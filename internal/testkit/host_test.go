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
		return fakePorts(host, host.View())
	})
}

func fakePorts(host *testkit.Host, view *testkit.View) hosttest.Ports {
	return hosttest.Ports{
		Cgroups: view.Cgroups(), VMM: view.VMM(), Agents: view.Agents(),
		Image:  image.Image{ID: "fake", Path: "/fake", User: "user", Workdir: "/workspace"},
		Die:    func(_ *testing.T, name string) { host.Die(name) },
		Reopen: func(*testing.T) hosttest.Ports { return fakePorts(host, host.View()) },
		Damage: func(_ *testing.T, template string) { host.Damage(template) },
	}
}
