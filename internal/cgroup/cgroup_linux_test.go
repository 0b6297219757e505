package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
)

const testHost = "sb-01hzzzzzzzzzzzzzzzzzzzzzzz"

// fixture is a plain directory in place of a cgroup: the kernel's files appear
// when they are first written, as they would with the directory.
func fixture(t *testing.T, fail *string) (c *Cgroups, trace *[]string) {
	t.Helper()
	trace = new([]string)
	c = &Cgroups{dir: t.TempDir()}
	c.conf.Trace = func(op string) error {
		*trace = append(*trace, op)
		if fail != nil && op == *fail {
			return errors.New("injected")
		}
		if file, ok := strings.CutPrefix(op, "set "); ok {
			return os.WriteFile(filepath.Join(c.dir, testHost, file), nil, 0o600)
		}
		return nil
	}
	return c, trace
}

func testPlan() sandbox.Plan { return sandbox.Plan{Host: testHost, VCPUs: 2, MemMiB: 512} }

func TestLimitsOfAPlan(t *testing.T) {
	want := "[{memory.max 570425344} {memory.swap.max 0} {memory.oom.group 1} {pids.max 10} {cpu.max 200000 100000}]"
	if got := fmt.Sprint(limits(testPlan())); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCreateSetsAllLimitsBeforeItReturns(t *testing.T) {
	c, trace := fixture(t, nil)
	if err := c.Create(t.Context(), testPlan()); err != nil {
		t.Fatal(err)
	}
	want := "remove cgroup, make cgroup, set memory.max, set memory.swap.max, set memory.oom.group, set pids.max, set cpu.max"
	if got := strings.Join(*trace, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, l := range limits(testPlan()) {
		data, err := os.ReadFile(filepath.Join(c.dir, testHost, l.file))
		if err != nil || string(data) != l.value {
			t.Errorf("%s holds %q, want %q: %v", l.file, data, l.value, err)
		}
	}
	hosts, err := c.List(t.Context())
	if err != nil || fmt.Sprint(hosts) != "["+testHost+"]" {
		t.Errorf("list %v %v", hosts, err)
	}
}

func TestEachFailureOfCreateIsTold(t *testing.T) {
	fail := ""
	c, _ := fixture(t, &fail)
	for _, fail = range []string{"remove cgroup", "make cgroup", "set memory.max"} {
		if err := c.Create(t.Context(), testPlan()); err == nil || !strings.Contains(err.Error(), fail+": injected") {
			t.Errorf("%s: got %v", fail, err)
		}
		if hosts, err := c.List(t.Context()); err != nil || len(hosts) != 0 {
			t.Errorf("%s: left %v %v", fail, hosts, err)
		}
	}
}

func TestALimitThatReadsBackOtherwiseIsAnError(t *testing.T) {
	c, _ := fixture(t, nil)
	inner := c.conf.Trace
	c.conf.Trace = func(op string) error {
		if err := inner(op); err != nil || op != "set pids.max" {
			return err
		}
		path := filepath.Join(c.dir, testHost, "pids.max")
		return os.WriteFile(path, []byte("10000\n"), 0o600) // longer than what is written over it
	}
	if err := c.Create(t.Context(), testPlan()); err == nil || !strings.Contains(err.Error(), "set pids.max: wrote 10, read") {
		t.Errorf("got %v", err)
	}
}

func TestCreateRefusesOneThatHasProcesses(t *testing.T) {
	c, _ := fixture(t, nil)
	dir := filepath.Join(c.dir, testHost)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\nfrozen 0\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), testPlan()); err == nil || !strings.Contains(err.Error(), "has processes") {
		t.Errorf("got %v", err)
	}
}

func TestRemoveTakesNestedOnesAndWaitsForABusyOne(t *testing.T) {
	c, _ := fixture(t, nil)
	dir := filepath.Join(c.dir, testHost)
	if err := os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Remove(t.Context(), testHost); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Error(err)
		}
	}
}

func TestWhatIsNotThereIsEmptyKilledAndGone(t *testing.T) {
	c, _ := fixture(t, nil)
	ctx := t.Context()
	if err := errors.Join(c.Kill(ctx, testHost), c.Emptied(ctx, testHost), c.Remove(ctx, testHost)); err != nil {
		t.Error(err)
	}
}

func TestNamesThatAreNotOursAreRefused(t *testing.T) {
	c, _ := fixture(t, nil)
	ctx := context.Background()
	for _, name := range []string{"", ".", "..", "../x", "/x", "sb-1", "other"} {
		for call, err := range map[string]error{
			"create": c.Create(ctx, sandbox.Plan{Host: name, VCPUs: 1, MemMiB: 1}), "kill": c.Kill(ctx, name),
			"emptied": c.Emptied(ctx, name), "remove": c.Remove(ctx, name), "processor time": cpuTimeError(c, name),
			"OOM kills": oomError(c, name),
		} {
			if err == nil {
				t.Errorf("%s %q went through", call, name)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(c.dir, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if hosts, err := c.List(ctx); err != nil || len(hosts) != 0 {
		t.Errorf("list %v %v", hosts, err)
	}
}

func cpuTimeError(c *Cgroups, name string) error {
	_, err := c.CPUTime(context.Background(), name)
	return err
}

func TestCPUTimeIsThatOfTheKernel(t *testing.T) {
	c, _ := fixture(t, nil)
	if err := cpuTimeError(c, testHost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	dir := filepath.Join(c.dir, testHost)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]time.Duration{
		"usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\n": 1234567 * time.Microsecond,
		"usage_usec 0\n": 0, "user_usec 5\n": -1, "usage_usec many\n": -1, "": -1,
	} {
		if err := os.WriteFile(filepath.Join(dir, "cpu.stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.CPUTime(t.Context(), testHost)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: got %v %v, want %v", text, got, err, want)
		}
	}
}

func oomError(c *Cgroups, name string) error {
	_, err := c.OOMKilled(context.Background(), name)
	return err
}

func TestOOMKillsAreThoseOfTheKernel(t *testing.T) {
	c, _ := fixture(t, nil)
	if err := oomError(c, testHost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	dir := filepath.Join(c.dir, testHost)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const before = "low 0\nhigh 0\nmax 7\noom 7\n" // the limit was met, and nobody killed for it
	for text, want := range map[string]string{
		before + "oom_kill 0\noom_group_kill 0\n": "no", before + "oom_kill 3\noom_group_kill 1\n": "yes", before + "oom_kill 1\n": "yes",
		before: "error", before + "oom_kill many\n": "error", before + "oom_kill -1\n": "error", "": "error",
	} {
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := "no"
		if killed, err := c.OOMKilled(t.Context(), testHost); err != nil {
			got = "error"
		} else if killed {
			got = "yes"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, conf := range []Config{
		{Root: "relative", Instance: "a"},
		{Root: "/a/../b", Instance: "a"},
		{Root: "/x"},
		{Root: "/x", Instance: "A"},
		{Root: "/x", Instance: "a/b"},
		{Root: "/x", Instance: "-a"},
		{Root: "/x", Instance: strings.Repeat("a", 33)},
		{Root: t.TempDir(), Instance: "a"}, // not cgroup v2
	} {
		if _, err := New(conf); err == nil || !strings.HasPrefix(err.Error(), "check cgroup root: ") {
			t.Errorf("%+v: got %v", conf, err)
		}
	}
}
