//go:build fakevmm

package daemon

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit"
)

// newHost builds the fake host of the contract tests: programs run on this
// machine as the daemon's user, without any isolation. What an earlier daemon
// left of it died with that daemon, except for directories and programs.
func newHost(_ context.Context, c Config) (*host, error) {
	c.Logger.Warn("THIS IS A TEST BUILD: nothing is isolated, programs run on this machine as this user")
	dir := filepath.Join(c.StateDir, "fake")
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("make fake host: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make fake host: %w", err)
	}
	fake := testkit.NewHost(held(filepath.Join(c.StateDir, "hold"), testkit.GuestAgent(dir)))
	return &host{
		cgroups: fake.Cgroups(), vmm: fake.VMM(), agents: fake.Agents(),
		close: func(bool) error { return nil },
	}, nil
}

// held boots nothing while there is a file of this name: tests look at what has
// begun.
func held(name string, boot testkit.AgentFactory) testkit.AgentFactory {
	return func(plan sandbox.Plan) (http.RoundTripper, func(), error) {
		for {
			if _, err := os.Stat(name); err != nil {
				return boot(plan)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
