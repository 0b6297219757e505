//go:build kvm && linux

package firecracker_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/testkit/hosttest"
)

func TestRealHostKeepsWhatTheFakeKeeps(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Ports {
		h := newHost(t, nil)
		img := h.image
		img.User, img.Workdir = "user", "/workspace"
		img.Env = map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}
		return hosttest.Ports{
			Cgroups: h.cgroups, VMM: h.VMM, Agents: h.VMM, Image: img,
			Die: func(t *testing.T, host string) {
				if err := unix.Kill(h.pid(t, host), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
