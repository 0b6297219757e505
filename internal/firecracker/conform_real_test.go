//go:build kvm && linux

package firecracker_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/testkit/hosttest"
)

func TestRealHostKeepsWhatTheFakeKeeps(t *testing.T) { hosttest.Run(t, realPorts) }

func realPorts(t *testing.T) hosttest.Ports {
	h := newHost(t, nil)
	img := h.image
	img.User, img.Workdir = "user", "/workspace"
	img.Env = map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}
	return hosttest.Ports{
		Cgroups: h.cgroups, VMM: h.VMM, Agents: h.VMM, Image: img, OwnKernel: true,
		Die: func(t *testing.T, host string) {
			if err := unix.Kill(h.pid(t, host), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Reopen: realPorts,
		Damage: func(t *testing.T, template string) {
			if err := os.Truncate(filepath.Join(need(t, "MICROVM_TEST_STATE"), "templates", template, "state"), 1000); err != nil {
				t.Fatal(err)
			}
		},
	}
}
