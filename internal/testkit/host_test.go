package testkit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/testkit"
	"github.com/microvmd/microvm/internal/testkit/hosttest"
)

// TestFakeKeepsWhatTheRealHostKeeps: what passes on the fake is worth something
// only as far as the fake behaves as the real one does.
func TestFakeKeepsWhatTheRealHostKeeps(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Ports {
		guests := t.TempDir()
		host := testkit.NewHost(testkit.GuestAgent(guests))
		t.Cleanup(func() { endPrograms(t, guests) }) // a fake microVM that is killed leaves its own
		t.Cleanup(func() {
			if left := host.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
		return fakePorts(host, host.View())
	})
}

// endPrograms kills what works beneath a folder.
func endPrograms(t *testing.T, folder string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Error(err)
	}
	for _, link := range links {
		if dir, err := os.Readlink(link); err != nil || !strings.HasPrefix(dir, folder+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
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
