package hosttest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
)

// reopen is the same host for the next daemon.
func (f *fixture) reopen() *fixture {
	return &fixture{Ports: f.Reopen(f.t), ctx: f.ctx, t: f.t}
}

func testAdopt(t *testing.T, f *fixture) {
	plan := f.plan()
	f.launch(plan)
	f.must("boot", f.boot(plan))
	pid := strings.TrimSpace(f.run(f.Agents.Client(plan.Host), "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"))

	next := f.reopen()
	f.listed(f.ctx, plan.Host, true, true)
	f.must("adopt by what the name tells", next.VMM.Adopt(f.ctx, sandbox.Plan{ID: plan.ID, Host: plan.Host}))
	f.must("adopt again", next.VMM.Adopt(f.ctx, plan))
	client := next.Agents.Client(plan.Host)
	f.ok("echo", client.Echo(f.ctx, "some text"))
	if got := next.run(client, "sh", "-c", "kill -0 "+pid+" && echo there"); got != "there\n" {
		t.Errorf("what ran before says %q", got)
	}
	used, err := next.Cgroups.CPUTime(f.ctx, plan.Host)
	f.ok("processor time", err)
	if used <= 0 {
		t.Errorf("it used %v", used)
	}

	// An adopted one has had its hello, and is not fresh.
	_, err = next.Agents.Hello(f.ctx, plan.Host)
	f.refused("a hello of an adopted VM", err)
	f.refused("freezing an adopted VM", next.VMM.Freeze(f.ctx, plan))
	f.refused("a second launch", next.VMM.Launch(f.ctx, plan))
	f.refused("a second start", next.VMM.Start(f.ctx, plan))
	f.refused("removing a jail with its VMM", next.VMM.Remove(f.ctx, plan.Host))

	emptied := next.watch(plan.Host)
	f.Die(t, plan.Host)
	f.ok("emptied", <-emptied)
	f.refused("adopting a dead VM", next.VMM.Adopt(f.ctx, plan))
	next.remove(f.ctx, plan.Host)
}

func testNotAdopted(t *testing.T, f *fixture) {
	plan := f.plan()
	next := f.reopen()
	adopt := func() error {
		ctx, cancel := context.WithTimeout(f.ctx, hurry)
		defer cancel()
		return next.VMM.Adopt(ctx, plan)
	}
	f.refused("adopting what is not there", adopt())
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	f.refused("adopting a cgroup", adopt())
	f.must("prepare", f.VMM.Prepare(f.ctx, plan))
	f.refused("adopting a jail", adopt())
	f.refused("launching another daemon's jail", next.VMM.Launch(f.ctx, plan))
	f.must("launch", f.VMM.Launch(f.ctx, plan))
	f.refused("adopting a VMM without a VM", adopt())
	f.Die(t, plan.Host)
	f.must("emptied", f.Cgroups.Emptied(f.ctx, plan.Host))
	f.refused("adopting what died", adopt())
	next.remove(f.ctx, plan.Host)
}

func testCPUTime(t *testing.T, f *fixture) {
	plan := f.plan()
	_, err := f.Cgroups.CPUTime(f.ctx, plan.Host)
	f.refused("processor time of nothing", err)
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	if used := f.cpuTime(plan); used != 0 {
		t.Errorf("an unused cgroup used %v", used)
	}
	f.must("prepare", f.VMM.Prepare(f.ctx, plan))
	f.must("launch", f.VMM.Launch(f.ctx, plan))
	launched := f.cpuTime(plan)
	f.must("boot", f.boot(plan))
	booted := f.cpuTime(plan)
	if launched <= 0 || booted <= launched {
		t.Errorf("it used %v to launch and %v to boot", launched, booted)
	}
	f.ok("kill", f.Cgroups.Kill(f.ctx, plan.Host))
	if dead := f.cpuTime(plan); dead < booted {
		t.Errorf("processor time went back from %v to %v", booted, dead)
	}
}

func (f *fixture) cpuTime(plan sandbox.Plan) time.Duration {
	f.t.Helper()
	used, err := f.Cgroups.CPUTime(f.ctx, plan.Host)
	f.ok("processor time", err)
	return used
}
