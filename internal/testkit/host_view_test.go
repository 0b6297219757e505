package testkit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit"
)

func newPlan() sandbox.Plan {
	id := ident.New(ident.Sandbox)
	return sandbox.Plan{ID: id, Host: ident.Host(id), VCPUs: 1, MemMiB: 256, ScratchMiB: 64, Image: image.Image{ID: "i", Path: "/i"}}
}

// life is everything that a daemon does to one sandbox, in order: from a cold
// boot to a template, or from a template to its end.
func life(ctx context.Context, v *testkit.View, plan sandbox.Plan) error {
	c, m, a := v.Cgroups(), v.VMM(), v.Agents()
	steps := []func() error{
		func() error { return c.Create(ctx, plan) },
		func() error { return m.Prepare(ctx, plan) },
		func() error { return m.Launch(ctx, plan) },
		func() error { return m.Start(ctx, plan) },
	}
	if plan.Template == "" {
		steps = append(steps,
			func() error { _, err := a.Hello(ctx, plan.Host); return err },
			func() error { return m.Freeze(ctx, plan) },
			func() error { return c.Kill(ctx, plan.Host) },
			func() error { return m.Keep(ctx, plan.Host, m.TemplateOf(plan)) },
		)
	} else {
		steps = append(steps,
			func() error {
				_, err := a.Client(plan.Host).Configure(ctx, guestwire.Configure{Generation: 1})
				return err
			},
			func() error { return m.Adopt(ctx, plan) },
			func() error { return c.Kill(ctx, plan.Host) },
		)
	}
	steps = append(steps,
		func() error { return m.Remove(ctx, plan.Host) },
		func() error { return c.Remove(ctx, plan.Host) },
	)
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// reap removes whatever a view finds.
func reap(t *testing.T, v *testkit.View) {
	t.Helper()
	ctx := context.Background()
	jails, err1 := v.VMM().List(ctx)
	groups, err2 := v.Cgroups().List(ctx)
	for _, host := range append(jails, groups...) {
		if err := errors.Join(v.Cgroups().Kill(ctx, host), v.VMM().Remove(ctx, host), v.Cgroups().Remove(ctx, host)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(err1, err2); err != nil {
		t.Error(err)
	}
}

// TestKilledAtEachStep strikes a daemon at every operation of a template's
// making and of a restored sandbox's life, and lets the next one find the rest.
func TestKilledAtEachStep(t *testing.T) {
	struck := map[string]bool{}
	for _, moment := range []testkit.Moment{testkit.Before, testkit.Amid, testkit.After} {
		for n := 1; ; n++ {
			host := testkit.NewHost(testkit.ConfiguredAgent())
			view := host.View()
			view.KillAt(n, moment)
			made := newPlan()
			restored := newPlan()
			restored.Template = view.VMM().TemplateOf(made)
			err := life(t.Context(), view, made)
			if err == nil {
				err = life(t.Context(), view, restored)
			}
			count, died := view.Count()
			if err == nil {
				if died != "" || n != count+1 {
					t.Fatalf("nobody died at %d of %d: %q", n, count, died)
				}
				break
			}
			if !errors.Is(err, testkit.ErrKilled) || count != n || died == "" {
				t.Fatalf("%d: %v, died at %d in %q", n, err, count, died)
			}
			<-view.Dead()
			struck[fmt.Sprint(moment, " ", died)] = true
			if err := view.Cgroups().Kill(t.Context(), made.Host); !errors.Is(err, testkit.ErrKilled) {
				t.Errorf("a call of the dead: %v", err)
			}
			next := host.View()
			reap(t, next)
			if left := host.Left(); len(left) > 0 {
				t.Errorf("%s %s: left %v", moment, died, left)
			}
			names, err := next.VMM().Templates(t.Context())
			if err != nil || len(names) > 1 {
				t.Errorf("templates %v %v", names, err)
			}
		}
	}
	for _, operation := range []string{
		"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello", "vmm.freeze", "cgroup.kill",
		"template.keep", "jail.remove", "cgroup.remove", "agent.configure", "vmm.adopt",
	} {
		for _, moment := range []testkit.Moment{testkit.Before, testkit.Amid, testkit.After} {
			if !struck[fmt.Sprint(moment, " ", operation)] {
				t.Errorf("nobody died %s %s", moment, operation)
			}
		}
	}
}

func TestWhatAKilledDaemonLeft(t *testing.T) {
	for name, c := range map[string]struct {
		at     int
		moment testkit.Moment
		left   int    // cgroups and jails
		adopts string // error of adoption, or ""
	}{
		"before the jail":   {2, testkit.Before, 1, "no microVM"},
		"after the jail":    {2, testkit.After, 2, "no microVM"},
		"amid launch":       {3, testkit.Amid, 2, "no microVM"},
		"after launch":      {3, testkit.After, 2, "no microVM"},
		"amid start":        {4, testkit.Amid, 2, "no microVM"},
		"after start":       {4, testkit.After, 2, ""},
		"amid freeze":       {6, testkit.Amid, 2, ""},
		"after the freeze":  {6, testkit.After, 2, ""},
		"after the kill":    {7, testkit.After, 2, "no microVM"},
		"amid the removal":  {9, testkit.Amid, 2, "no microVM"},
		"after the removal": {9, testkit.After, 1, "no microVM"},
	} {
		t.Run(name, func(t *testing.T) {
			host := testkit.NewHost(testkit.ConfiguredAgent())
			view, plan := host.View(), newPlan()
			view.KillAt(c.at, c.moment)
			_ = life(t.Context(), view, plan)
			if left := host.Left(); len(left) != c.left {
				t.Errorf("left %v", left)
			}
			next := host.View()
			err := next.VMM().Adopt(t.Context(), plan)
			if (c.adopts == "") != (err == nil) {
				t.Errorf("adopt: %v", err)
			}
			if err == nil { // what was paused goes on
				_, err = next.Agents().Client(plan.Host).Configure(t.Context(), guestwire.Configure{Generation: 1})
				if err != nil {
					t.Error(err)
				}
			}
			reap(t, next)
		})
	}
}

// TestKillEndsWhatWaits: a call that hangs ends with its daemon, and nothing
// comes late.
func TestKillEndsWhatWaits(t *testing.T) {
	for _, operation := range []string{"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello", "vmm.freeze", "cgroup.kill", "template.keep", "jail.remove", "cgroup.remove"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := testkit.NewHost(testkit.ConfiguredAgent())
				view, plan := host.View(), newPlan()
				host.Hang(operation, true)
				done := make(chan error, 1)
				go func() { done <- life(context.Background(), view, plan) }()
				synctest.Wait()
				before := host.Left()
				view.Kill()
				if err := <-done; !errors.Is(err, testkit.ErrKilled) {
					t.Errorf("got %v", err)
				}
				host.Hang(operation, false)
				if after := host.Left(); !slices.Equal(before, after) {
					t.Errorf("%v became %v", before, after)
				}
				reap(t, host.View())
			})
		})
	}
}

func TestKillEndsWatchersAndCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := testkit.NewHost(testkit.ConfiguredAgent())
		view, plan := host.View(), newPlan()
		ctx, c, m := context.Background(), view.Cgroups(), view.VMM()
		if err := errors.Join(c.Create(ctx, plan), m.Prepare(ctx, plan), m.Launch(ctx, plan)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 3)
		go func() { done <- c.Emptied(ctx, plan.Host) }()
		go func() { _, err := view.Agents().Hello(ctx, plan.Host); done <- err }()
		synctest.Wait()
		if err := m.Start(ctx, plan); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil { // the hello
			t.Error(err)
		}
		if err := m.Freeze(ctx, plan); err != nil {
			t.Fatal(err)
		}
		go func() { done <- view.Agents().Client(plan.Host).Echo(ctx, "to one that is paused") }()
		synctest.Wait()
		view.Kill()
		for range 2 {
			if err := <-done; !errors.Is(err, testkit.ErrKilled) {
				t.Errorf("got %v", err)
			}
		}
		_, err := c.List(ctx)
		for _, err := range []error{err, c.Emptied(ctx, plan.Host), view.Agents().Client(plan.Host).Echo(ctx, "x"), m.Adopt(ctx, plan)} {
			if !errors.Is(err, testkit.ErrKilled) {
				t.Errorf("got %v", err)
			}
		}
		reap(t, host.View())
	})
}

func TestProcessorClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := testkit.NewHost(testkit.ConfiguredAgent())
		ctx, c, m, plan := context.Background(), host.Cgroups(), host.VMM(), newPlan()
		used := func(want time.Duration) {
			t.Helper()
			if got, err := c.CPUTime(ctx, plan.Host); err != nil || got != want {
				t.Errorf("used %v %v, want %v", got, err, want)
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(c.Create(ctx, plan))
		time.Sleep(time.Second)
		used(0)
		must(errors.Join(m.Prepare(ctx, plan), m.Launch(ctx, plan)))
		time.Sleep(2 * time.Second)
		used(2 * time.Second)
		host.Stick(plan.Host, true)
		time.Sleep(time.Second)
		used(2 * time.Second)
		host.Stick(plan.Host, false)
		time.Sleep(time.Second)
		used(3 * time.Second)
		must(c.Kill(ctx, plan.Host))
		time.Sleep(time.Second)
		used(3 * time.Second)
		must(errors.Join(m.Remove(ctx, plan.Host), c.Remove(ctx, plan.Host)))
		if _, err := c.CPUTime(ctx, plan.Host); err == nil {
			t.Error("nothing has processor time")
		}
		host.Fail("cgroup.cpu", errors.New("injected"))
		if _, err := c.CPUTime(ctx, plan.Host); err == nil {
			t.Error("no fault")
		}
	})
}

// TestOOMKillIsTold: until the cgroup is made anew, and only of one that ran.
func TestOOMKillIsTold(t *testing.T) {
	host := testkit.NewHost(testkit.ConfiguredAgent())
	ctx, c, m, plan := t.Context(), host.Cgroups(), host.VMM(), newPlan()
	told := func(want bool) {
		t.Helper()
		if got, err := c.OOMKilled(ctx, plan.Host); err != nil || got != want {
			t.Errorf("OOM killed: %t %v, want %t", got, err, want)
		}
	}
	for range 2 {
		if err := c.Create(ctx, plan); err != nil {
			t.Fatal(err)
		}
		host.OOMKill(plan.Host) // nothing is in it
		told(false)
		if err := errors.Join(m.Prepare(ctx, plan), m.Launch(ctx, plan)); err != nil {
			t.Fatal(err)
		}
		told(false)
		host.OOMKill(plan.Host)
		told(true)
		if err := errors.Join(c.Emptied(ctx, plan.Host), m.Remove(ctx, plan.Host), c.Remove(ctx, plan.Host)); err != nil {
			t.Fatal(err)
		}
	}
	host.Fail("cgroup.oom", errors.New("injected"))
	if _, err := c.OOMKilled(ctx, plan.Host); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Error(err)
	}
}

// TestManyLivesOnOneHost runs sandboxes side by side, whose daemon is killed
// again and again.
func TestManyLivesOnOneHost(t *testing.T) {
	host := testkit.NewHost(testkit.ConfiguredAgent())
	began, operations := time.Now(), 0
	for generation := range 200 {
		view := host.View()
		reap(t, view)
		view.KillAt(20+generation, testkit.Moment(generation%3))
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for {
					if err := life(context.Background(), view, newPlan()); err != nil {
						if !errors.Is(err, testkit.ErrKilled) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		work.Wait()
		n, _ := view.Count()
		operations += n
	}
	reap(t, host.View())
	if left := host.Left(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	t.Logf("%d operations in %v", operations, time.Since(began))
}
