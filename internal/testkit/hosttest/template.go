package hosttest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	echoTry  = 5 * time.Second // for one echo after a restore: the first connections may get no answer
	clockOff = 2 * time.Second // by which a guest's clock may be wrong, beside what asking it took
)

// freeze boots a microVM of a plan up to its hello, and freezes and kills it.
func (f *fixture) freeze(plan sandbox.Plan) {
	f.t.Helper()
	f.launch(plan)
	f.must("start", f.VMM.Start(f.ctx, plan))
	_, err := f.Agents.Hello(f.ctx, plan.Host)
	f.must("hello", err)
	f.must("freeze", f.VMM.Freeze(f.ctx, plan))
}

// template makes the template of a plan, takes its maker down, and drops it
// when the test ends.
func (f *fixture) template() (name string) {
	f.t.Helper()
	plan := f.plan()
	name = f.VMM.TemplateOf(plan)
	f.t.Cleanup(func() { f.ok("drop template", f.VMM.DropTemplate(context.Background(), name)) })
	f.freeze(plan)
	f.must("kill", f.Cgroups.Kill(f.ctx, plan.Host))
	f.must("keep", f.VMM.Keep(f.ctx, plan.Host, name))
	f.remove(f.ctx, plan.Host)
	return name
}

// restored is the plan of a sandbox that is restored from a template.
func (f *fixture) restored(template string) sandbox.Plan {
	plan := f.plan()
	plan.Template = template
	return plan
}

// restore brings a restored sandbox up to its configured agent.
func (f *fixture) restore(plan sandbox.Plan) error {
	if err := f.VMM.Start(f.ctx, plan); err != nil {
		return err
	}
	client := f.Agents.Client(plan.Host)
	for {
		ctx, cancel := context.WithTimeout(f.ctx, echoTry)
		err := client.Echo(ctx, "some text")
		cancel()
		if err == nil {
			return f.configure(client, plan)
		}
		if f.ctx.Err() != nil {
			return err
		}
	}
}

func (f *fixture) kept(template string, want bool) {
	f.t.Helper()
	names, err := f.VMM.Templates(f.ctx)
	f.ok("list templates", err)
	if slices.Contains(names, template) != want {
		f.t.Errorf("templates %v: want %s in them: %v", names, template, want)
	}
}

func testMake(t *testing.T, f *fixture) {
	plan := f.plan()
	name := f.VMM.TemplateOf(plan)
	t.Cleanup(func() { f.ok("drop template", f.VMM.DropTemplate(context.Background(), name)) })
	for what, change := range map[string]func(*sandbox.Plan){
		"image":   func(p *sandbox.Plan) { p.Image.Digest += "0" },
		"vCPUs":   func(p *sandbox.Plan) { p.VCPUs++ },
		"memory":  func(p *sandbox.Plan) { p.MemMiB++ },
		"scratch": func(p *sandbox.Plan) { p.ScratchMiB++ },
	} {
		other := plan
		if change(&other); f.VMM.TemplateOf(other) == name {
			t.Errorf("another %s has the same template", what)
		}
		if alike := f.VMM.TemplateOf(other)[:sandbox.TemplateImage] == name[:sandbox.TemplateImage]; alike == (what == "image") {
			t.Errorf("another %s has a template whose name begins alike: %t", what, alike)
		}
	}
	same := f.plan()
	same.Template = name
	if got := f.VMM.TemplateOf(same); got != name {
		t.Errorf("the template of another sandbox like it is %s, not %s", got, name)
	}
	f.kept(name, false)
	f.refused("preparing from a template that does not exist", f.VMM.Prepare(f.ctx, same))
	f.ok("drop of what is not there", f.VMM.DropTemplate(f.ctx, name))

	keep := func() error { return f.VMM.Keep(f.ctx, plan.Host, name) }
	f.refused("freezing nothing", f.VMM.Freeze(f.ctx, plan))
	f.refused("keeping nothing", keep())
	f.launch(plan)
	f.refused("freezing what was not started", f.VMM.Freeze(f.ctx, plan))
	f.must("start", f.VMM.Start(f.ctx, plan))
	f.refused("freezing before the hello", f.VMM.Freeze(f.ctx, plan))
	_, err := f.Agents.Hello(f.ctx, plan.Host)
	f.must("hello", err)
	f.refused("keeping what is not frozen", keep())
	f.must("freeze", f.VMM.Freeze(f.ctx, plan))
	f.refused("freezing twice", f.VMM.Freeze(f.ctx, plan))
	f.refused("keeping while it has a process", keep())
	f.kept(name, false)
	f.must("kill", f.Cgroups.Kill(f.ctx, plan.Host))
	other := plan
	other.MemMiB++
	f.refused("keeping as another template", f.VMM.Keep(f.ctx, plan.Host, f.VMM.TemplateOf(other)))
	f.must("keep", keep())
	f.kept(name, true)
	f.refused("keeping twice", keep())
	f.remove(f.ctx, plan.Host)
	f.kept(name, true)
	f.reopen().kept(name, true)
	f.damaged(name)
}

func testRestore(t *testing.T, f *fixture) {
	name := f.template()
	one, two := f.restored(name), f.restored(name)
	f.launch(one)
	f.launch(two)
	_, err := f.Agents.Hello(f.ctx, one.Host)
	f.refused("a hello of a restored VM", err)
	up := make(chan error, 2)
	for _, plan := range []sandbox.Plan{one, two} {
		go func() { up <- f.restore(plan) }()
	}
	for range 2 {
		f.must("restore", <-up)
	}
	f.refused("freezing a restored VM", f.VMM.Freeze(f.ctx, one))
	first, second := f.Agents.Client(one.Host), f.Agents.Client(two.Host)
	f.differ(first, second, "random numbers", "head -c 16 /dev/urandom | od -An -tx1")
	if f.OwnKernel {
		f.differ(first, second, "boot ids", "cat /proc/sys/kernel/random/boot_id")
		f.differ(first, second, "machine ids", "cat /etc/machine-id")
		f.differ(first, second, "hostnames", "hostname")
	}
	f.clock(first)
	if got := f.run(first, "sh", "-c", "echo of the first >mine; cat mine"); got != "of the first\n" {
		t.Errorf("the first's file is %q", got)
	}
	if got := f.run(second, "sh", "-c", "test ! -e mine && echo none"); got != "none\n" {
		t.Errorf("the second sees %q", got)
	}

	// They go on without the template, and without each other; and the next
	// daemon adopts what was restored.
	f.must("drop", f.VMM.DropTemplate(f.ctx, name))
	f.refused("preparing from a dropped template", f.VMM.Prepare(f.ctx, f.restored(name)))
	f.remove(f.ctx, one.Host)
	next := f.reopen()
	f.must("adopt", next.VMM.Adopt(f.ctx, two))
	second = next.Agents.Client(two.Host)
	f.ok("echo of an adopted one", second.Echo(f.ctx, "x"))
	if got := f.run(second, "echo", "still here"); got != "still here\n" {
		t.Errorf("the second says %q", got)
	}
}

// differ runs a script in two guests and wants two answers.
func (f *fixture) differ(first, second *guestwire.Client, what, script string) {
	f.t.Helper()
	one, two := f.run(first, "sh", "-c", script), f.run(second, "sh", "-c", script)
	if one == two || one == "" || two == "" {
		f.t.Errorf("%s: %q and %q", what, one, two)
	}
}

// clock compares a guest's clock with ours.
func (f *fixture) clock(client *guestwire.Client) {
	f.t.Helper()
	began := time.Now()
	said := f.run(client, "date", "+%s")
	seconds, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
	if err != nil {
		f.t.Errorf("date says %q", said)
		return
	}
	if at := time.Unix(seconds, 0); at.Before(began.Add(-clockOff)) || at.After(time.Now().Add(clockOff)) {
		f.t.Errorf("the guest's clock says %v between %v and %v", at, began, time.Now())
	}
}

// damaged finds out that a template does not load, and does without.
func (f *fixture) damaged(template string) {
	f.t.Helper()
	f.Damage(f.t, template)
	plan := f.restored(template)
	f.launch(plan)
	if err := f.VMM.Start(f.ctx, plan); err == nil || errors.Is(err, context.DeadlineExceeded) {
		f.t.Errorf("a start from a damaged template: %v", err)
	}
	f.remove(f.ctx, plan.Host)
	f.must("drop", f.reopen().VMM.DropTemplate(f.ctx, template))
	f.must("drop again", f.VMM.DropTemplate(f.ctx, template))
	f.kept(template, false)
	cold := f.plan()
	f.launch(cold)
	f.must("boot", f.boot(cold))
}
