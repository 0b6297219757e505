package sandbox_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
)

// The golden orders of what templates add.
var (
	makerTrace   = []string{"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello", "vmm.freeze", "cgroup.kill", "template.keep", "cgroup.kill", "jail.remove", "cgroup.remove"}
	restoreTrace = []string{"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start"}
)

func booted(t *testing.T, f *fixture, spec sandbox.Spec, want sandbox.Boot) sandbox.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // a template may be made
	if sb.Boot != want {
		t.Errorf("booted %s, want %s", sb.Boot, want)
	}
	return sb
}

func template(t *testing.T, f *fixture) string {
	t.Helper()
	names, err := f.host.VMM().Templates(t.Context())
	if err != nil || len(names) != 1 {
		t.Fatalf("templates %v: %v", names, err)
	}
	return names[0]
}

func TestTheSecondCreateRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, templated())
		booted(t, f, spec, sandbox.BootCold)
		if trace := f.host.Trace(); !slices.Equal(trace, append(slices.Clone(provisionTrace), makerTrace...)) {
			t.Errorf("the first create did %v", trace)
		}
		restored := booted(t, f, spec, sandbox.BootSnapshot)
		if trace := f.host.Trace(); !slices.Equal(trace, restoreTrace) {
			t.Errorf("the second create did %v", trace)
		}
		booted(t, f, sandbox.Spec{Image: "python", VCPUs: 2}, sandbox.BootCold) // another shape
		if _, err := f.Delete(t.Context(), restored.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestAColdBootOnDemand neither uses a template nor has one made.
func TestAColdBootOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, templated())
		cold := sandbox.Spec{Image: "python", Boot: sandbox.BootCold}
		booted(t, f, cold, sandbox.BootCold)
		if names, err := f.host.VMM().Templates(t.Context()); err != nil || len(names) > 0 {
			t.Errorf("%v %v", names, err)
		}
		booted(t, f, spec, sandbox.BootCold)
		booted(t, f, cold, sandbox.BootCold)
		booted(t, f, spec, sandbox.BootSnapshot)
		if _, err := f.Create(t.Context(), sandbox.Spec{Image: "python", Boot: sandbox.BootSnapshot}); !fault.Is(err, fault.ParameterInvalid) {
			t.Errorf("boot: snapshot: %v", err)
		}
	})
}

func TestNoTemplatesWhereNoneAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		booted(t, f, spec, sandbox.BootCold)
		booted(t, f, spec, sandbox.BootCold)
		if names, err := f.host.VMM().Templates(t.Context()); err != nil || len(names) > 0 {
			t.Errorf("%v %v", names, err)
		}
	})
}

// TestABrokenTemplateIsRebuilt: the create that meets it boots instead, and the
// next one restores again.
func TestABrokenTemplateIsRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, templated())
		booted(t, f, spec, sandbox.BootCold)
		f.host.Damage(template(t, f))
		booted(t, f, spec, sandbox.BootCold)
		booted(t, f, spec, sandbox.BootSnapshot)
	})
}

// TestATemplateThatNeverWorksIsLeftAlone: after some faults in a row the making
// pauses, longer each time, and every create boots.
func TestATemplateThatNeverWorksIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, templated())
		f.host.Fail("vmm.freeze", errors.New("injected"))
		made := 0
		began := time.Now()
		for time.Since(began) < time.Hour {
			sb := booted(t, f, spec, sandbox.BootCold)
			made += count(f.host.Trace(), "vmm.freeze")
			if _, err := f.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
		}
		if made < 5 || made > 8 { // at once, then after 1, 2, 4, 8, 16, 32 minutes
			t.Errorf("made %d times in an hour", made)
		}
		f.host.Fail("vmm.freeze", nil)
		time.Sleep(time.Hour)
		booted(t, f, spec, sandbox.BootCold)
		booted(t, f, spec, sandbox.BootSnapshot)
	})
}

func count(trace []string, operation string) (n int) {
	for _, o := range trace {
		if o == operation {
			n++
		}
	}
	return n
}

// TestAFaultInEachOperationOfATemplate: no create is hurt by a template that
// cannot be made, and nothing of it is left.
func TestAFaultInEachOperationOfATemplate(t *testing.T) {
	for _, harm := range []string{"fails", "hangs"} {
		for _, operation := range []string{"vmm.freeze", "template.keep"} {
			t.Run(operation+" "+harm, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, templated())
					set := func(on bool) {
						if harm == "hangs" {
							f.host.Hang(operation, on)
							return
						}
						f.host.Fail(operation, map[bool]error{true: errors.New("injected")}[on])
					}
					set(true)
					booted(t, f, spec, sandbox.BootCold)
					booted(t, f, spec, sandbox.BootCold)
					time.Sleep(10 * time.Minute) // of the bubble's clock: beyond every deadline
					synctest.Wait()
					for _, left := range f.host.Left() {
						t.Errorf("left: %s", left) // both sandboxes were idle for long
					}
					set(false)
					time.Sleep(time.Hour)
					booted(t, f, spec, sandbox.BootCold)
					booted(t, f, spec, sandbox.BootSnapshot)
				})
			})
		}
	}
}

// TestAFaultInEachOperationOfARestore: when the cold boot behind it fails as
// well, the caller is told and nothing is left.
func TestAFaultInEachOperationOfARestore(t *testing.T) {
	for _, operation := range append(slices.Clone(restoreTrace), "agent.configure") {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, templated())
				first := booted(t, f, spec, sandbox.BootCold)
				broken := errors.New("injected")
				f.host.Fail(operation, broken)
				_, err := f.Create(t.Context(), spec)
				if !fault.Is(err, fault.InternalError) || !errors.Is(err, broken) {
					t.Errorf("create: %v", err)
				}
				f.host.Fail(operation, nil)
				for _, id := range []string{first.ID, only(t, f).ID} {
					if _, err := f.Delete(t.Context(), id); err != nil {
						t.Error(err)
					}
				}
				synctest.Wait()
				if left := f.host.Left(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				// What the host did not do is no fault of the template.
				if operation == "vmm.start" || operation == "agent.configure" {
					booted(t, f, spec, sandbox.BootCold)
				}
				booted(t, f, spec, sandbox.BootSnapshot)
			})
		})
	}
}

// TestFewTemplatesAreKept: of too many, the least recently used go.
func TestFewTemplatesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, templated()) // two are kept
		shape := func(mem int, want sandbox.Boot) {
			sb := booted(t, f, sandbox.Spec{Image: "python", MemMiB: mem}, want)
			if _, err := f.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		shape(256, sandbox.BootCold)
		shape(300, sandbox.BootCold)
		shape(256, sandbox.BootSnapshot)
		shape(400, sandbox.BootCold)
		shape(256, sandbox.BootSnapshot)
		shape(300, sandbox.BootCold)
		if names, err := f.host.VMM().Templates(t.Context()); err != nil || len(names) != 2 {
			t.Errorf("%v %v", names, err)
		}
	})
}

// TestATemplateYields: a create that needs the room of a template in the making
// gets it.
func TestATemplateYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := templated()
		two.Slots, two.DiskMiB = 2, 2*64
		f := newFixture(t, two)
		f.host.Hang("vmm.freeze", true)
		booted(t, f, spec, sandbox.BootCold)
		began := time.Now()
		booted(t, f, spec, sandbox.BootCold)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %s", took)
		}
		if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) {
			t.Errorf("a third: %v", err)
		}
	})
}
