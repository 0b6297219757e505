package daemon

import (
	"context"
	"errors"
	"testing"

	"github.com/microvmd/microvm/internal/sandbox"
)

type (
	listedCgroups struct {
		sandbox.Cgroups
		names []string
	}
	listedVMM struct {
		sandbox.VMM
		names []string
		err   error
	}
)

func (l listedCgroups) List(context.Context) ([]string, error) { return l.names, nil }
func (l listedVMM) List(context.Context) ([]string, error)     { return l.names, l.err }

// TestWhatSandboxesNeedStays: the host is cleared only when it is known that
// nothing of any sandbox is there.
func TestWhatSandboxesNeedStays(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		cgroups, jails []string
		fault          error
		left           int
		empty          bool
	}{
		{empty: true},
		{cgroups: []string{"sb-b", "sb-a"}, jails: []string{"sb-a"}, left: 2},
		{jails: []string{"sb-a"}, left: 1},
		{fault: broken},
	} {
		closed := false
		h := &host{cgroups: listedCgroups{names: c.cgroups}, vmm: listedVMM{names: c.jails, err: c.fault}, close: func(empty bool) error {
			closed = true
			if empty != c.empty {
				t.Errorf("%+v: empty is %t", c, empty)
			}
			return nil
		}}
		if left, err := h.left(t.Context()); len(left) != c.left || !errors.Is(err, c.fault) {
			t.Errorf("%+v: left %v, %v", c, left, err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel() // as it is when a daemon has been stopped
		if err := h.leave(over); !errors.Is(err, c.fault) || !closed {
			t.Errorf("%+v: closed %t, %v", c, closed, err)
		}
	}
}
