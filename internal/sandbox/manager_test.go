package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// provisionTrace is the golden order of a create, teardownTrace of a delete.
var (
	provisionTrace = []string{"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello"}
	teardownTrace  = []string{"cgroup.kill", "jail.remove", "cgroup.remove"}
)

type images struct{}

func (images) Use(_ context.Context, id string, _ image.By) (*image.Use, error) {
	if id != "python" {
		return nil, fault.New(fault.ImageNotFound, "no such image")
	}
	return &image.Use{Image: image.Image{ID: "python", Path: "/images/python/rootfs.erofs", User: "user", Workdir: "/workspace"}}, nil
}

func (images) Hold(id string) *image.Use { return &image.Use{Image: image.Image{ID: id}} }

var limits = sandbox.Limits{
	Slots: 4, VCPUs: 8, MemMiB: 4 * (512 + sandbox.VMOverheadMiB), MaxVCPUs: 2, MaxMemMiB: 512,
	MaxTTL: time.Hour, ScratchMiB: 64, DiskMiB: 4 * 64, BootsAtOnce: 4, BootTurn: 5 * time.Second, BootTimeout: 30 * time.Second,
	StallTimeout: 20 * time.Second, StepTimeout: 10 * time.Second, ReconcileEvery: time.Minute,
}

// stallLook is how often the manager looks for progress.
const stallLook = 2 * time.Second

// hostName is what a sandbox is called on the host.
func hostName(id string) string { return strings.ReplaceAll(strings.ToLower(id), "_", "-") }

var quiet = slog.New(slog.DiscardHandler)

func newID() string { return ident.New(ident.Sandbox) }

// uptime is the host's, in the time of a bubble.
func uptime() time.Duration { return time.Duration(time.Now().UnixNano()) }

type fixture struct {
	*sandbox.Manager
	host  *testkit.Host
	store *sqlstore.Store
}

func newFixture(t *testing.T, limits sandbox.Limits) *fixture {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	host := testkit.NewHost(testkit.ConfiguredAgent())
	f := &fixture{host: host, store: store, Manager: manager(t, host, store, limits)}
	t.Cleanup(func() {
		if err := f.Close(context.Background(), true); err != nil {
			t.Error(err)
		}
		if left := host.Left(); len(left) > 0 {
			t.Errorf("left on the host: %v", left)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func manager(t *testing.T, host *testkit.Host, store sandbox.Store, limits sandbox.Limits) *sandbox.Manager {
	t.Helper()
	return managerOf(t, host, store, limits, images{})
}

func managerOf(t *testing.T, host *testkit.Host, store sandbox.Store, limits sandbox.Limits, images sandbox.Images) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.New(sandbox.Config{
		Store: store, Images: images, Cgroups: host.Cgroups(), VMM: host.VMM(), Agents: host.Agents(), Secrets: newKey(t),
		Limits: limits, Logger: quiet, Uptime: uptime, HostBoot: "boot",
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var spec = sandbox.Spec{Image: "python"}

func TestCreateAndDelete(t *testing.T) {
	f := newFixture(t, limits)
	sb, err := f.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if sb.State != sandbox.Running || sb.Boot != sandbox.BootCold || sb.VCPUs != 1 || sb.MemMiB != 256 || sb.Expires.Sub(sb.Created).Round(time.Second) != 15*time.Minute {
		t.Fatalf("created %+v", sb)
	}
	if trace := f.host.Trace(); !slices.Equal(trace, provisionTrace) {
		t.Fatalf("provision did %v", trace)
	}
	gone, err := f.Delete(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if gone.State != sandbox.Stopped || gone.StopReason != sandbox.StopDeleted || gone.Reason != sandbox.ReasonDeleted || gone.Stopped.IsZero() {
		t.Fatalf("deleted %+v", gone)
	}
	if trace := f.host.Trace(); !slices.Equal(trace, teardownTrace) {
		t.Fatalf("teardown did %v", trace)
	}
	again, err := f.Delete(t.Context(), sb.ID)
	if err != nil || again.Reason != sandbox.ReasonDeleted {
		t.Fatalf("a second delete: %+v %v", again, err)
	}
	if trace := f.host.Trace(); len(trace) > 0 {
		t.Fatalf("a second delete did %v", trace)
	}
}

// TestAFaultInEachOperation fails each operation of a create in turn: the
// caller is told, the sandbox is stopped, and nothing is left.
func TestAFaultInEachOperation(t *testing.T) {
	for _, operation := range provisionTrace {
		t.Run(operation, func(t *testing.T) {
			f := newFixture(t, limits)
			broken := errors.New("injected")
			f.host.Fail(operation, broken)
			_, err := f.Create(t.Context(), spec)
			if !fault.Is(err, fault.InternalError) || !errors.Is(err, broken) {
				t.Fatalf("create: %v", err)
			}
			sb := only(t, f)
			if sb.State != sandbox.Stopped || sb.StopReason != sandbox.StopFailed || sb.Reason != sandbox.ReasonBootFailed {
				t.Fatalf("after the fault: %+v", sb)
			}
			f.host.Fail(operation, nil)
			if _, err := f.Delete(t.Context(), sb.ID); err != nil { // returns when nothing is left
				t.Fatal(err)
			}
			fillNode(t, f, limits.Slots) // every slot came back
		})
	}
}

// TestAFaultInEachUndo fails each operation of a teardown once: it is tried
// again, and the slot is free only when nothing is left.
func TestAFaultInEachUndo(t *testing.T) {
	for _, operation := range teardownTrace {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := limits
				one.Slots = 1
				f := newFixture(t, one)
				sb, err := f.Create(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				f.host.Fail(operation, errors.New("injected"))
				deleted := make(chan error, 1)
				go func() { _, err := f.Delete(t.Context(), sb.ID); deleted <- err }()
				time.Sleep(time.Second) // of the bubble's clock: some tries
				if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) {
					t.Fatalf("the slot was given away before the teardown was complete: %v", err)
				}
				f.host.Fail(operation, nil)
				if err := <-deleted; err != nil {
					t.Fatal(err)
				}
				fillNode(t, f, 1)
			})
		})
	}
}

// TestAHangInEachOperation hangs each operation of a create: others are not held
// up, and it is given up: after StallTimeout where nothing gets on, only after
// BootTimeout where the VMM still runs on a processor.
func TestAHangInEachOperation(t *testing.T) {
	for _, operation := range append(slices.Clone(provisionTrace), "agent.hello of a stuck VMM") {
		t.Run(operation, func(t *testing.T) {
			operation, stuck := strings.CutSuffix(operation, " of a stuck VMM")
			limit, why := limits.StallTimeout, "no progress"
			if !stuck && (operation == "vmm.start" || operation == "agent.hello") {
				limit, why = limits.BootTimeout, "not usable"
			}
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits)
				f.host.Hang(operation, true)
				began := time.Now()
				failed := make(chan error, 1)
				go func() { _, err := f.Create(t.Context(), spec); failed <- err }()
				synctest.Wait()
				f.host.Hang(operation, false)
				if stuck {
					f.host.Stick(hostName(only(t, f).ID), true)
				}
				if _, err := f.Create(t.Context(), spec); err != nil {
					t.Fatalf("another sandbox was held up: %v", err)
				}
				if time.Since(began) != 0 {
					t.Fatalf("another sandbox waited %s", time.Since(began))
				}
				err := <-failed
				if !fault.Is(err, fault.InternalError) || !strings.Contains(err.Error(), why) {
					t.Fatalf("create: %v", err)
				}
				if took := time.Since(began); took < limit || took > limit+stallLook {
					t.Fatalf("ended after %s", took)
				}
			})
		})
	}
}

func TestTTLEndsASandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		sb, err := f.Create(t.Context(), sandbox.Spec{Image: "python", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		session, err := f.Use(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-session.Done()
		if took := time.Since(began); took != time.Minute {
			t.Fatalf("ended after %s", took)
		}
		if session.Reason() != sandbox.ReasonTTL {
			t.Fatalf("reason %s", session.Reason())
		}
		synctest.Wait()
		if sb := only(t, f); sb.StopReason != sandbox.StopExpired || sb.Reason != sandbox.ReasonTTL {
			t.Fatalf("%+v", sb)
		}
		if left := f.host.Left(); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
		if _, err := f.Use(t.Context(), sb.ID); !fault.Is(err, fault.SandboxNotRunning) {
			t.Fatalf("use after the end: %v", err)
		}
	})
}

func TestADeadVMMEndsItsSandboxOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		victim, err := f.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		other, err := f.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		session, err := f.Use(t.Context(), victim.ID)
		if err != nil {
			t.Fatal(err)
		}
		f.host.Die(hostName(victim.ID))
		<-session.Done()
		if session.Reason() != sandbox.ReasonVMDied {
			t.Fatalf("reason %s", session.Reason())
		}
		if _, err := f.Use(t.Context(), other.ID); err != nil {
			t.Fatalf("the other sandbox: %v", err)
		}
	})
}

// lastWords is a guest whose VMM dies when the agent has answered everything
// that makes a sandbox usable.
type lastWords struct {
	http.RoundTripper
	die func()
}

func (w lastWords) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := w.RoundTripper.RoundTrip(r)
	w.die()
	<-r.Context().Done() // the owner has seen it
	return reply, err
}

func TestAVMMThatDiesAsItsSandboxBecomesUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		configured := testkit.ConfiguredAgent()
		f.host = testkit.NewHost(func(plan sandbox.Plan) (http.RoundTripper, func(), error) {
			transport, stop, err := configured(plan)
			return lastWords{transport, func() { f.host.Die(plan.Host) }}, stop, err
		})
		f.Manager = manager(t, f.host, f.store, limits)
		began := time.Now()
		_, _ = f.Create(t.Context(), spec)
		synctest.Wait()
		if sb := only(t, f); sb.State != sandbox.Stopped || sb.Reason != sandbox.ReasonVMDied {
			t.Fatalf("%+v", sb)
		}
		if took := time.Since(began); took != 0 {
			t.Fatalf("ended after %s", took)
		}
		if left := f.host.Left(); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	})
}

func TestDeleteWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		f.host.Hang("agent.hello", true)
		created := make(chan error, 1)
		go func() { _, err := f.Create(t.Context(), spec); created <- err }()
		synctest.Wait()
		sb := only(t, f)
		if sb.State != sandbox.Starting {
			t.Fatalf("state %s", sb.State)
		}
		began := time.Now()
		gone, err := f.Delete(t.Context(), sb.ID)
		if err != nil || gone.Reason != sandbox.ReasonDeleted || time.Since(began) != 0 {
			t.Fatalf("delete: %+v %v after %s", gone, err, time.Since(began))
		}
		if err := <-created; !fault.Is(err, fault.SandboxNotRunning) {
			t.Fatalf("the create: %v", err)
		}
	})
}

// TestABurstOverCapacity: of 100 concurrent creates against 4 slots exactly 4
// get in, the rest are told that the node is full, and nothing is held after.
func TestABurstOverCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		f.host.Hang("agent.hello", true) // nobody finishes before all have asked
		results := make(chan error, 100)
		for range 100 {
			go func() { _, err := f.Create(t.Context(), spec); results <- err }()
		}
		synctest.Wait()
		for range 100 - limits.Slots {
			var full *fault.Error
			if err := <-results; !errors.As(err, &full) || full.Code != fault.NodeAtCapacity || full.RetryAfter <= 0 {
				t.Fatalf("a create over capacity: %v", err)
			}
		}
		page, err := f.List(t.Context(), sandbox.Query{Limit: 100})
		if err != nil || len(page.Data) != limits.Slots {
			t.Fatalf("%d sandboxes got in: %v", len(page.Data), err)
		}
		slots := map[int]bool{}
		for _, sb := range page.Data {
			slots[sb.Slot] = true
		}
		if len(slots) != limits.Slots {
			t.Fatalf("slots shared: %v", slots)
		}
		f.host.Hang("agent.hello", false)
		for range limits.Slots {
			<-results // they time out or come up; either way
		}
	})
}

// TestBootsTakeTurns: of four creates at once two boot; one that hangs gives
// its turn away after BootTurn, and one that is deleted while it waits goes.
func TestBootsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := limits
		two.BootsAtOnce = 2
		f := newFixture(t, two)
		f.host.Hang("agent.hello", true)
		began := time.Now()
		results := make(chan error, 4)
		for range 4 {
			go func() { _, err := f.Create(t.Context(), spec); results <- err }()
		}
		synctest.Wait()
		if n := launches(f); n != 2 {
			t.Fatalf("%d boots at once", n)
		}
		time.Sleep(two.BootTurn) // of the bubble's clock
		synctest.Wait()
		if n := launches(f); n != 2 {
			t.Fatalf("%d more boots after a turn", n)
		}
		page, err := f.List(t.Context(), sandbox.Query{Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Data {
			if _, err := f.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			<-results
		}
		f.host.Hang("agent.hello", false)
		fillNode(t, f, two.Slots) // every turn came back
		if took := time.Since(began); took != two.BootTurn {
			t.Fatalf("took %s", took)
		}
	})
}

// launches counts the VMMs that were launched since it was last asked.
func launches(f *fixture) (n int) {
	for _, operation := range f.host.Trace() {
		if operation == "vmm.launch" {
			n++
		}
	}
	return n
}

func TestAdmissionCountsMemoryAndVCPUs(t *testing.T) {
	few := limits
	few.VCPUs = 2
	f := newFixture(t, few)
	if _, err := f.Create(t.Context(), sandbox.Spec{Image: "python", VCPUs: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) || !strings.Contains(err.Error(), "vCPU") {
		t.Fatalf("over the vCPUs: %v", err)
	}
	little := limits
	little.MemMiB = 512 + sandbox.VMOverheadMiB
	f = newFixture(t, little)
	if _, err := f.Create(t.Context(), sandbox.Spec{Image: "python", MemMiB: 512}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) || !strings.Contains(err.Error(), "MiB") {
		t.Fatalf("over the memory: %v", err)
	}
}

func TestWrongSpecsNameTheField(t *testing.T) {
	f := newFixture(t, limits)
	tags := map[string]string{}
	for i := range 11 {
		tags[fmt.Sprint(i)] = ""
	}
	for _, c := range []struct {
		param string
		code  fault.Code
		spec  sandbox.Spec
	}{
		{"image", fault.ParameterMissing, sandbox.Spec{}},
		{"", fault.ImageNotFound, sandbox.Spec{Image: "cobol"}},
		{"name", fault.ParameterInvalid, sandbox.Spec{Image: "python", Name: "Upper"}},
		{"name", fault.ParameterInvalid, sandbox.Spec{Image: "python", Name: strings.Repeat("a", 65)}},
		{"vcpus", fault.ParameterInvalid, sandbox.Spec{Image: "python", VCPUs: 3}},
		{"vcpus", fault.ParameterInvalid, sandbox.Spec{Image: "python", VCPUs: -1}},
		{"mem_mib", fault.ParameterInvalid, sandbox.Spec{Image: "python", MemMiB: 513}},
		{"mem_mib", fault.ParameterInvalid, sandbox.Spec{Image: "python", MemMiB: 127}},
		{"ttl_seconds", fault.ParameterInvalid, sandbox.Spec{Image: "python", TTL: 2 * time.Hour}},
		{"ttl_seconds", fault.ParameterInvalid, sandbox.Spec{Image: "python", TTL: -time.Second}},
		{"env", fault.ParameterInvalid, sandbox.Spec{Image: "python", Env: secret.Env{"A=B": "c"}}},
		{"env", fault.ParameterInvalid, sandbox.Spec{Image: "python", Env: secret.Env{"A": strings.Repeat("v", secret.MaxBytes)}}},
		{"tags", fault.ParameterInvalid, sandbox.Spec{Image: "python", Tags: tags}},
		{"tags", fault.ParameterInvalid, sandbox.Spec{Image: "python", Tags: map[string]string{"k": strings.Repeat("v", 257)}}},
	} {
		_, err := f.Create(t.Context(), c.spec)
		var got *fault.Error
		if !errors.As(err, &got) || got.Code != c.code || got.Param != c.param {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
	if trace := f.host.Trace(); len(trace) > 0 {
		t.Errorf("wrong requests reached the host: %v", trace)
	}
}

func TestNamesAreFreeAgainWhenTheirSandboxStops(t *testing.T) {
	f := newFixture(t, limits)
	named := sandbox.Spec{Image: "python", Name: "job"}
	sb, err := f.Create(t.Context(), named)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), named); !fault.Is(err, fault.ResourceAlreadyExists) {
		t.Fatalf("a second one of that name: %v", err)
	}
	if _, err := f.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), named); err != nil {
		t.Fatalf("after its end: %v", err)
	}
	fillNode(t, f, limits.Slots-1) // the refused one held no slot
}

func TestCloseEndsEverythingAndRefusesMore(t *testing.T) {
	f := newFixture(t, limits)
	fillNode(t, f, limits.Slots)
	if err := f.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.ShuttingDown) {
		t.Fatalf("a create after Close: %v", err)
	}
}

func TestLimitsAreCheckedAtOnce(t *testing.T) {
	_, err := sandbox.New(sandbox.Config{Limits: sandbox.Limits{MaxVCPUs: 64}})
	for _, name := range []string{"slots", "vcpus", "max-vcpus", "max-mem-mib", "max-ttl", "boot-timeout", "step-timeout", "scratch-mib", "boots-at-once", "boot-turn", "stall-timeout", "reconcile-every"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}

// fillNode creates n sandboxes at once and expects all of them to run.
func fillNode(t *testing.T, f *fixture, n int) {
	t.Helper()
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			if _, err := f.Create(t.Context(), spec); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func only(t *testing.T, f *fixture) sandbox.Sandbox {
	t.Helper()
	page, err := f.List(t.Context(), sandbox.Query{Limit: 1})
	if err != nil || len(page.Data) != 1 {
		t.Fatalf("list: %v %v", page, err)
	}
	return page.Data[0]
}
