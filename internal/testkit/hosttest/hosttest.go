// Package hosttest holds what every host below a sandbox has to keep: the
// conformance suite of sandbox.Cgroups, sandbox.VMM and sandbox.Agents. It runs
// on the fake of testkit, and on cgroup v2 with the released Firecracker. It
// knows nothing of either.
package hosttest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	patience = 5 * time.Minute        // for anything that ends by itself; an emulated host is slow
	glance   = 100 * time.Millisecond // for what must not come: a call that goes on this long waits
	hurry    = 30 * time.Second       // for a call whose context ended at a glance
)

// Ports is one host under test.
type Ports struct {
	Cgroups sandbox.Cgroups
	VMM     sandbox.VMM
	Agents  sandbox.Agents
	Image   image.Image // with sh and echo in its PATH
	// Die ends the VMM of a sandbox as a crash would.
	Die func(t *testing.T, host string)
	// Reopen opens the same host once more, as the next daemon would.
	Reopen func(t *testing.T) Ports
	// Damage makes a template one that does not load.
	Damage func(t *testing.T, template string)
	// OwnKernel says that each guest has a kernel of its own.
	OwnKernel bool
}

// Run runs the suite. open returns the same or another host at each call.
func Run(t *testing.T, open func(t *testing.T) Ports) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"a whole life", testLife},
		{"what is not there is gone", testAbsent},
		{"names and plans are checked", testNames},
		{"no step before its time", testOrder},
		{"a cgroup never used is not emptied", testUnused},
		{"a VMM that dies is seen", testDeath},
		{"a hello is bounded by its context", testHelloBounded},
		{"two do not disturb each other", testTwo},
		{"processor time grows", testCPUTime},
		{"the next daemon adopts", testAdopt},
		{"only what runs is adopted", testNotAdopted},
		{"a template is made of what is fresh, kept as a whole, and no loss", testMake},
		{"two restored from one template are two", testRestore},
		{"a program is fed, resized and signalled", testExecutions},
		{"limits of a guest are the guest's", testBombs},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the host did not do it in time"))
			defer cancel()
			c.test(t, &fixture{Ports: open(t), ctx: ctx, t: t})
		})
	}
}

type fixture struct {
	Ports
	ctx  context.Context //nolint:containedctx // of one test
	t    *testing.T
	used int
}

// plan is that of a sandbox that does not exist yet, which is taken down, and
// looked for, when the test ends.
func (f *fixture) plan() sandbox.Plan {
	id := ident.New(ident.Sandbox)
	plan := sandbox.Plan{ID: id, Host: ident.Host(id), Slot: f.used, VCPUs: 1, MemMiB: 256, Image: f.Image, ScratchMiB: 256}
	f.used++
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		f.remove(ctx, plan.Host)
		f.remove(ctx, plan.Host)
		f.listed(ctx, plan.Host, false, false)
	})
	return plan
}

func (f *fixture) remove(ctx context.Context, host string) {
	f.t.Helper()
	f.Agents.Release(host)
	f.ok("kill", f.Cgroups.Kill(ctx, host))
	f.ok("remove jail", f.VMM.Remove(ctx, host))
	f.ok("remove cgroup", f.Cgroups.Remove(ctx, host))
}

func (f *fixture) ok(step string, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Errorf("%s: %v", step, err)
	}
}

func (f *fixture) must(step string, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%s: %v", step, err)
	}
}

func (f *fixture) refused(step string, err error) {
	f.t.Helper()
	if err == nil {
		f.t.Errorf("%s was not refused", step)
	}
}

func (f *fixture) listed(ctx context.Context, host string, cgroup, jail bool) {
	f.t.Helper()
	cgroups, err := f.Cgroups.List(ctx)
	f.ok("list cgroups", err)
	jails, err := f.VMM.List(ctx)
	f.ok("list jails", err)
	if slices.Contains(cgroups, host) != cgroup || slices.Contains(jails, host) != jail {
		f.t.Errorf("cgroups %v and jails %v: want %s in them: %v and %v", cgroups, jails, host, cgroup, jail)
	}
}

// launch brings a sandbox up to its VMM, in which nothing runs yet.
func (f *fixture) launch(plan sandbox.Plan) {
	f.t.Helper()
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	f.must("prepare", f.VMM.Prepare(f.ctx, plan))
	f.must("launch", f.VMM.Launch(f.ctx, plan))
}

// boot brings a sandbox up to its configured agent. It may run beside others.
func (f *fixture) boot(plan sandbox.Plan) error {
	if err := f.VMM.Start(f.ctx, plan); err != nil {
		return err
	}
	hello, err := f.Agents.Hello(f.ctx, plan.Host)
	if err != nil {
		return err
	}
	if hello.Protocol != guestwire.Protocol || hello.Version == "" {
		f.t.Errorf("hello %+v", hello)
	}
	client := f.Agents.Client(plan.Host)
	if err := client.Echo(f.ctx, "some text"); err != nil {
		return err
	}
	return f.configure(client, plan)
}

func (f *fixture) configure(client *guestwire.Client, plan sandbox.Plan) error {
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy)
	configured, err := client.Configure(f.ctx, guestwire.Configure{
		Generation: 1, Hostname: plan.Host, TimeNS: time.Now().UnixNano(), Entropy: entropy,
		User: plan.Image.User, Workdir: plan.Image.Workdir, Env: plan.Image.Env,
	})
	if err == nil && configured.Generation != 1 {
		f.t.Errorf("configured %+v", configured)
	}
	return err
}

// watch waits for a cgroup's end beside the test.
func (f *fixture) watch(host string) <-chan error {
	emptied := make(chan error, 1)
	go func() { emptied <- f.Cgroups.Emptied(f.ctx, host) }()
	return emptied
}

var errGlance = errors.New("a glance was all")

// waits expects a call to go on until its context ends, and then to say so.
func (f *fixture) waits(what string, call func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeoutCause(f.ctx, glance, errGlance)
	defer cancel()
	began := time.Now()
	if err := call(ctx); !errors.Is(err, errGlance) {
		f.t.Errorf("%s: got %v, want the context's cause", what, err)
	}
	if took := time.Since(began); took > hurry {
		f.t.Errorf("%s: went on for %s after its context", what, took)
	}
}

// slot checks for which slot a VMM was launched.
func (f *fixture) slot(host string, want int) {
	f.t.Helper()
	if slot, err := f.VMM.SlotOf(f.ctx, host); err != nil || slot != want {
		f.t.Errorf("slot %d, want %d: %v", slot, want, err)
	}
}

func testLife(t *testing.T, f *fixture) {
	plan := f.plan()
	f.listed(f.ctx, plan.Host, false, false)
	f.slot(plan.Host, -1)
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	emptied := f.watch(plan.Host) // from before its first process
	f.listed(f.ctx, plan.Host, true, false)
	f.must("prepare", f.VMM.Prepare(f.ctx, plan))
	f.listed(f.ctx, plan.Host, true, true)
	f.slot(plan.Host, -1)
	f.must("launch", f.VMM.Launch(f.ctx, plan))
	f.slot(plan.Host, plan.Slot)
	f.must("boot", f.boot(plan))
	client := f.Agents.Client(plan.Host)
	if got := f.run(client, "echo", "hello"); got != "hello\n" {
		t.Errorf("echo said %q", got)
	}

	// What is alive is not made twice, and not removed.
	f.refused("a second create", f.Cgroups.Create(f.ctx, plan))
	f.refused("a second prepare", f.VMM.Prepare(f.ctx, plan))
	f.refused("a second start", f.VMM.Start(f.ctx, plan))
	_, err := f.Agents.Hello(f.ctx, plan.Host)
	f.refused("a second hello", err)
	f.refused("removing a jail with its VMM", f.VMM.Remove(f.ctx, plan.Host))
	short, cancel := context.WithTimeout(f.ctx, glance)
	defer cancel()
	f.refused("removing a cgroup with its VMM", f.Cgroups.Remove(short, plan.Host))
	f.ok("echo after all that", client.Echo(f.ctx, "x"))
	select {
	case err := <-emptied:
		t.Fatalf("emptied while its VMM runs: %v", err)
	default:
	}

	f.ok("kill", f.Cgroups.Kill(f.ctx, plan.Host))
	f.ok("emptied", <-emptied)
	f.ok("emptied, asked later", f.Cgroups.Emptied(f.ctx, plan.Host))
	f.refused("a call to a dead agent", client.Echo(f.ctx, "x"))
	f.refused("a call by a new client to a dead agent", f.Agents.Client(plan.Host).Echo(f.ctx, "x"))
	f.remove(f.ctx, plan.Host)
	f.listed(f.ctx, plan.Host, false, false)
	f.refused("a call to an agent that is removed", f.Agents.Client(plan.Host).Echo(f.ctx, "x"))
}

func testAbsent(_ *testing.T, f *fixture) {
	plan := f.plan()
	f.remove(f.ctx, plan.Host)
	f.remove(f.ctx, plan.Host)
	f.ok("emptied", f.Cgroups.Emptied(f.ctx, plan.Host))
	f.refused("a call", f.Agents.Client(plan.Host).Echo(f.ctx, "x"))
	_, err := f.Agents.Hello(f.ctx, plan.Host)
	f.refused("a hello", err)
	_, err = f.Cgroups.OOMKilled(f.ctx, plan.Host)
	f.refused("OOM kills of nothing", err)
}

func testNames(_ *testing.T, f *fixture) {
	good := f.plan()
	for _, name := range []string{"", ".", "..", "../" + good.Host, good.Host + "/x", "/" + good.Host, "sb-x"} {
		bad := good
		bad.Host = name
		f.refused("create of "+name, f.Cgroups.Create(f.ctx, bad))
		f.refused("watch of "+name, f.Cgroups.Emptied(f.ctx, name))
		f.refused("kill of "+name, f.Cgroups.Kill(f.ctx, name))
		f.refused("removal of cgroup "+name, f.Cgroups.Remove(f.ctx, name))
		f.refused("prepare of "+name, f.VMM.Prepare(f.ctx, bad))
		f.refused("launch of "+name, f.VMM.Launch(f.ctx, bad))
		f.refused("start of "+name, f.VMM.Start(f.ctx, bad))
		f.refused("removal of jail "+name, f.VMM.Remove(f.ctx, name))
		f.refused("adoption of "+name, f.VMM.Adopt(f.ctx, bad))
		f.refused("freeze of "+name, f.VMM.Freeze(f.ctx, bad))
		f.refused("keep of "+name, f.VMM.Keep(f.ctx, name, f.VMM.TemplateOf(good)))
		_, err := f.Cgroups.CPUTime(f.ctx, name)
		f.refused("processor time of "+name, err)
		_, err = f.Cgroups.OOMKilled(f.ctx, name)
		f.refused("OOM kills of "+name, err)
		_, err = f.Agents.Hello(f.ctx, name)
		f.refused("hello of "+name, err)
		f.refused("call of "+name, f.Agents.Client(name).Echo(f.ctx, "x"))
		f.Agents.Release(name)
	}
	for _, name := range []string{"", ".", "..", "../jails", "/", "new-" + f.VMM.TemplateOf(good), strings.ToUpper("a" + f.VMM.TemplateOf(good)[1:])} {
		f.refused("drop of template "+name, f.VMM.DropTemplate(f.ctx, name))
		bad := good
		if bad.Template = name; name != "" {
			f.refused("prepare from template "+name, f.VMM.Prepare(f.ctx, bad))
		}
	}
	for what, change := range map[string]func(*sandbox.Plan){
		"no vCPU":   func(p *sandbox.Plan) { p.VCPUs = 0 },
		"no memory": func(p *sandbox.Plan) { p.MemMiB = 0 },
	} {
		bad := good
		change(&bad)
		f.refused("a cgroup of "+what, f.Cgroups.Create(f.ctx, bad))
		f.refused("a jail of "+what, f.VMM.Prepare(f.ctx, bad))
	}
	for what, change := range map[string]func(*sandbox.Plan){
		"33 vCPUs":    func(p *sandbox.Plan) { p.VCPUs = 33 },
		"slot -1":     func(p *sandbox.Plan) { p.Slot = -1 },
		"no scratch":  func(p *sandbox.Plan) { p.ScratchMiB = 0 },
		"no image":    func(p *sandbox.Plan) { p.Image.Path = "" },
		"a near path": func(p *sandbox.Plan) { p.Image.Path = "rootfs" },
	} {
		bad := good
		change(&bad)
		f.refused("a jail of "+what, f.VMM.Prepare(f.ctx, bad))
	}
	f.listed(f.ctx, good.Host, false, false)
}

func testOrder(_ *testing.T, f *fixture) {
	plan := f.plan()
	f.refused("a launch without a jail", f.VMM.Launch(f.ctx, plan))
	f.refused("a start without a jail", f.VMM.Start(f.ctx, plan))
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	f.refused("a launch without a jail", f.VMM.Launch(f.ctx, plan))
	f.must("create over an empty one", f.Cgroups.Create(f.ctx, plan))
	f.must("remove cgroup", f.Cgroups.Remove(f.ctx, plan.Host))

	f.must("prepare", f.VMM.Prepare(f.ctx, plan))
	f.refused("a launch without a cgroup", f.VMM.Launch(f.ctx, plan))
	f.refused("a start without a VMM", f.VMM.Start(f.ctx, plan))
	f.refused("a call without a VMM", f.Agents.Client(plan.Host).Echo(f.ctx, "x"))
	f.remove(f.ctx, plan.Host)
	f.refused("a launch of what was removed", f.VMM.Launch(f.ctx, plan))

	f.launch(plan) // the name is free again
	f.refused("a second launch", f.VMM.Launch(f.ctx, plan))
}

func testUnused(_ *testing.T, f *fixture) {
	plan := f.plan()
	f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
	emptied := func(ctx context.Context) error { return f.Cgroups.Emptied(ctx, plan.Host) }
	f.waits("a watch of an unused cgroup", emptied)
	f.ok("kill", f.Cgroups.Kill(f.ctx, plan.Host))
	f.waits("a watch of a killed and unused cgroup", emptied)

	// Whoever watches one that is made anew, or removed, is not left behind.
	for step, do := range map[string]func() error{
		"create anew": func() error { return f.Cgroups.Create(f.ctx, plan) },
		"remove":      func() error { return f.Cgroups.Remove(f.ctx, plan.Host) },
	} {
		f.must("create cgroup", f.Cgroups.Create(f.ctx, plan))
		watch := f.watch(plan.Host)
		f.ok(step, do())
		f.must("remove cgroup", f.Cgroups.Remove(f.ctx, plan.Host))
		f.ok("emptied after "+step, <-watch)
	}
}

func testDeath(t *testing.T, f *fixture) {
	plan := f.plan()
	f.launch(plan)
	f.waits("a watch of a VMM that runs", func(ctx context.Context) error { return f.Cgroups.Emptied(ctx, plan.Host) })
	emptied := f.watch(plan.Host)
	hello := make(chan error, 1)
	go func() { _, err := f.Agents.Hello(f.ctx, plan.Host); hello <- err }()
	f.Die(t, plan.Host)
	f.ok("emptied", <-emptied)
	killed, err := f.Cgroups.OOMKilled(f.ctx, plan.Host)
	f.ok("read OOM kills", err)
	if killed {
		t.Error("a crash was taken for the host's OOM killer")
	}
	f.refused("a hello of a VMM that died", <-hello)
	f.refused("a start of a VMM that died", f.VMM.Start(f.ctx, plan))
	f.refused("a call", f.Agents.Client(plan.Host).Echo(f.ctx, "x"))
	f.listed(f.ctx, plan.Host, true, true) // until somebody removes it
}

func testHelloBounded(_ *testing.T, f *fixture) {
	plan := f.plan()
	f.launch(plan)
	f.waits("a hello of a VM that was not started", func(ctx context.Context) error {
		_, err := f.Agents.Hello(ctx, plan.Host)
		return err
	})
}

func testTwo(t *testing.T, f *fixture) {
	one, two := f.plan(), f.plan()
	f.launch(one)
	f.launch(two)
	booted := make(chan error, 2)
	for _, plan := range []sandbox.Plan{one, two} {
		go func() { booted <- f.boot(plan) }()
	}
	for range 2 {
		f.must("boot", <-booted)
	}
	first, second := f.Agents.Client(one.Host), f.Agents.Client(two.Host)
	if got := f.run(first, "sh", "-c", "echo of the first >mine; cat mine"); got != "of the first\n" {
		t.Errorf("the first's file is %q", got)
	}
	if got := f.run(second, "sh", "-c", "test ! -e mine && echo none"); got != "none\n" {
		t.Errorf("the second sees %q", got)
	}
	emptied := f.watch(two.Host)
	f.remove(f.ctx, one.Host)
	f.listed(f.ctx, one.Host, false, false)
	f.listed(f.ctx, two.Host, true, true)
	f.ok("echo of the second after the first's end", second.Echo(f.ctx, "x"))
	if got := f.run(second, "echo", "still here"); got != "still here\n" {
		t.Errorf("the second says %q", got)
	}
	select {
	case err := <-emptied:
		t.Fatalf("the second's cgroup emptied with the first's: %v", err)
	default:
	}
	f.ok("kill", f.Cgroups.Kill(f.ctx, two.Host))
	f.ok("emptied", <-emptied)
}
