package firecracker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// templateTest is a VMM above a script for a Firecracker, whose trace and
// faults a test sees.
type templateTest struct {
	*VMM
	plan  sandbox.Plan
	root  string // of the plan's jail
	trace []string
	fail  string // the operation that fails
}

var errInjected = errors.New("injected")

func newTemplateTest(t *testing.T) *templateTest {
	t.Helper()
	conf := testConfig(t)
	f := &templateTest{plan: testPlan(filepath.Join(filepath.Dir(conf.StateDir), "rootfs"))}
	f.plan.MemMiB = 8
	conf.Trace = func(op string) error {
		f.trace = append(f.trace, op)
		if op == f.fail {
			return errInjected
		}
		return nil
	}
	f.VMM = newTest(t, conf)
	f.root = filepath.Join(f.jailsDir(), testHost, rootName)
	return f
}

// frozen prepares a jail as a VMM leaves it after Freeze.
func (f *templateTest) frozen(t *testing.T) {
	t.Helper()
	must(t, f.Prepare(t.Context(), f.plan))
	f.trace = nil
	uid := f.UID(f.plan.Slot)
	memory, state := filepath.Join(f.root, frozenMemory), filepath.Join(f.root, frozenState)
	must(t, os.WriteFile(memory, []byte("memory"), 0o600), os.Truncate(memory, int64(f.plan.MemMiB)<<20), os.Chown(memory, uid, uid),
		os.WriteFile(state, []byte("state"), 0o600), os.Chown(state, uid, uid))
	i := f.instance(testHost)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen = &f.plan
}

// kept makes the template of the plan, and removes the jail.
func (f *templateTest) kept(t *testing.T) (name string) {
	t.Helper()
	f.frozen(t)
	name = f.TemplateOf(f.plan)
	must(t, f.Keep(t.Context(), testHost, name), f.Remove(t.Context(), testHost))
	f.trace = nil
	return name
}

// files lists a directory: name, mode, uid less the base, size.
func (f *templateTest) files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var all []string
	for _, entry := range entries {
		var stat unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, entry.Name()), &stat))
		owner := "root"
		if stat.Uid != 0 || stat.Gid != 0 {
			owner = fmt.Sprintf("%d:%d", int(stat.Uid)-f.conf.UIDBase, int(stat.Gid)-f.conf.UIDBase)
		}
		all = append(all, fmt.Sprintf("%s %o %s", entry.Name(), stat.Mode, owner))
	}
	return strings.Join(all, ", ")
}

func TestKeepMakesATemplateAndPrepareUsesIt(t *testing.T) {
	f := newTemplateTest(t)
	f.frozen(t)
	name := f.TemplateOf(f.plan)
	must(t, f.Keep(t.Context(), testHost, name))
	if got, want := strings.Join(f.trace, ", "), "make template, take memory, take state, link scratch, sync template, keep template"; got != want {
		t.Errorf("trace %s, want %s", got, want)
	}
	if got, want := f.files(t, filepath.Join(f.templatesDir(), name)), "memory 100444 root, scratch 100400 root, state 100444 root"; got != want {
		t.Errorf("template %s, want %s", got, want)
	}
	must(t, f.Remove(t.Context(), testHost))
	f.trace = nil

	f.plan.Template = name
	must(t, f.Prepare(t.Context(), f.plan))
	if got, want := strings.Join(f.trace, ", "), "make jail, link image, link memory, link state, copy scratch, make log"; got != want {
		t.Errorf("trace %s, want %s", got, want)
	}
	if got, want := f.files(t, f.root), "image 100755 root, log 10600 3:3, memory 100444 root, scratch 100600 3:3, state 100444 root"; got != want {
		t.Errorf("jail %s, want %s", got, want)
	}
	memory, err := os.ReadFile(filepath.Join(f.root, memoryName))
	if err != nil || len(memory) != f.plan.MemMiB<<20 || !strings.HasPrefix(string(memory), "memory\x00") {
		t.Errorf("%d bytes, %v", len(memory), err)
	}
	must(t, f.DropTemplate(t.Context(), name))
	if _, err := os.Stat(filepath.Join(f.root, memoryName)); err != nil {
		t.Errorf("a jail lost its memory with the template: %v", err)
	}
	must(t, f.Remove(t.Context(), testHost))
}

func TestPrepareRefusesATemplate(t *testing.T) {
	f := newTemplateTest(t)
	name := f.kept(t)
	other := strings.Repeat("a", len(name))
	for what, c := range map[string]struct {
		change func(*sandbox.Plan)
		want   string
	}{
		"of another plan":      {func(p *sandbox.Plan) { p.Template, p.MemMiB = name, p.MemMiB+1 }, "is none of this plan"},
		"of another name":      {func(p *sandbox.Plan) { p.Template = other }, "is none of this plan"},
		"that leads elsewhere": {func(p *sandbox.Plan) { p.Template = "../boot" }, "is none of this plan"},
		"that is not there":    {func(p *sandbox.Plan) { p.VCPUs++; p.Template = f.TemplateOf(*p) }, "find template"},
	} {
		plan := f.plan
		c.change(&plan)
		if err := f.Prepare(t.Context(), plan); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if hosts, err := f.List(t.Context()); err != nil || len(hosts) > 0 {
		t.Errorf("left %v %v", hosts, err)
	}
}

func TestKeepTakesOnlyWhatASnapshotLeaves(t *testing.T) {
	for what, spoil := range map[string]func(memory, state string) error{
		"no memory":         func(memory, _ string) error { return os.Remove(memory) },
		"no state":          func(_, state string) error { return os.Remove(state) },
		"short memory":      func(memory, _ string) error { return os.Truncate(memory, 1<<20) },
		"long memory":       func(memory, _ string) error { return os.Truncate(memory, 1<<30) },
		"empty state":       func(_, state string) error { return os.Truncate(state, 0) },
		"huge state":        func(_, state string) error { return os.Truncate(state, maxState+1) },
		"a link":            func(_, state string) error { return errors.Join(os.Remove(state), os.Symlink("/etc/passwd", state)) },
		"a link in the way": func(memory, _ string) error { return errors.Join(os.Remove(memory), os.Symlink("scratch", memory)) },
		"a second name":     func(memory, _ string) error { return os.Link(memory, memory+".too") },
		"a FIFO":            func(_, state string) error { return errors.Join(os.Remove(state), unix.Mkfifo(state, 0o600)) },
		"a directory":       func(_, state string) error { return errors.Join(os.Remove(state), os.Mkdir(state, 0o700)) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newTemplateTest(t)
			f.frozen(t)
			must(t, spoil(filepath.Join(f.root, frozenMemory), filepath.Join(f.root, frozenState)))
			if err := f.Keep(t.Context(), testHost, f.TemplateOf(f.plan)); err == nil {
				t.Error("it was kept")
			}
			if left := f.files(t, f.templatesDir()); left != "" {
				t.Errorf("left %s", left)
			}
			must(t, f.Remove(t.Context(), testHost))
		})
	}
}

func TestEachFailureOfKeepLeavesNothing(t *testing.T) {
	f := newTemplateTest(t)
	for _, f.fail = range []string{"make template", "take memory", "take state", "link scratch", "sync template", "keep template"} {
		f.frozen(t)
		if err := f.Keep(t.Context(), testHost, f.TemplateOf(f.plan)); !errors.Is(err, errInjected) || !strings.HasPrefix(err.Error(), f.fail+": ") {
			t.Errorf("%s: got %v", f.fail, err)
		}
		if left := f.files(t, f.templatesDir()); left != "" {
			t.Errorf("%s: left %s", f.fail, left)
		}
		must(t, f.Remove(t.Context(), testHost))
	}
}

func TestKeepIsRefused(t *testing.T) {
	f := newTemplateTest(t)
	name := f.TemplateOf(f.plan)
	keep := func(what, host, template, want string) {
		if err := f.Keep(t.Context(), host, template); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	keep("a bad name", "..", name, "no name of a sandbox")
	keep("no jail", testHost, name, "was not frozen")
	must(t, f.Prepare(t.Context(), f.plan))
	keep("a jail that is not frozen", testHost, name, "was not frozen")
	must(t, f.Remove(t.Context(), testHost))
	f.frozen(t)
	keep("as another", testHost, strings.Repeat("0", 32), "is template "+name)
	procs := filepath.Join(f.conf.CgroupDir, testHost, "cgroup.procs")
	must(t, os.MkdirAll(filepath.Dir(procs), 0o700), os.WriteFile(procs, []byte("17\n"), 0o600))
	keep("while the VMM lives", testHost, name, "still run")
	must(t, os.WriteFile(procs, nil, 0o600), f.Keep(t.Context(), testHost, name))
}

func TestKeepReplacesAnOlderTemplate(t *testing.T) {
	f := newTemplateTest(t)
	name := f.kept(t)
	state := filepath.Join(f.templatesDir(), name, stateName)
	must(t, os.WriteFile(state, []byte("broken"), 0o444))
	if f.kept(t) != name {
		t.Error("another name")
	}
	if data, err := os.ReadFile(state); err != nil || string(data) != "state" {
		t.Errorf("%q %v", data, err)
	}
	if left := f.files(t, f.templatesDir()); !strings.HasPrefix(left, name+" ") || strings.Contains(left, ",") {
		t.Errorf("left %s", left)
	}
}

func TestNewRemovesHalfMadeTemplates(t *testing.T) {
	f := newTemplateTest(t)
	name := f.kept(t)
	must(t, os.MkdirAll(filepath.Join(f.templatesDir(), newPrefix+testHost), 0o700),
		os.WriteFile(filepath.Join(f.templatesDir(), newPrefix+testHost, memoryName), nil, 0o600))
	again := newTest(t, f.conf)
	names, err := again.Templates(t.Context())
	if err != nil || !slices.Equal(names, []string{name}) || strings.Contains(f.files(t, f.templatesDir()), newPrefix) {
		t.Errorf("templates %v %v, files %s", names, err, f.files(t, f.templatesDir()))
	}
	if got := again.TemplateOf(f.plan); got != name {
		t.Errorf("the next daemon calls it %s, not %s", got, name)
	}
}

func TestDropTemplateIsWhole(t *testing.T) {
	f := newTemplateTest(t)
	name := f.kept(t)
	f.fail = "drop template"
	if err := f.DropTemplate(t.Context(), name); !errors.Is(err, errInjected) {
		t.Errorf("got %v", err)
	}
	f.fail = ""
	// An earlier drop was cut short.
	must(t, os.MkdirAll(filepath.Join(f.templatesDir(), newPrefix+name, "x"), 0o700), f.DropTemplate(t.Context(), name), f.DropTemplate(t.Context(), name))
	if left := f.files(t, f.templatesDir()); left != "" {
		t.Errorf("left %s", left)
	}
	for _, bad := range []string{"", ".", "..", "../boot", "/", name + "0", strings.ToUpper(name), newPrefix + name} {
		if err := f.DropTemplate(t.Context(), bad); err == nil {
			t.Errorf("%q was dropped", bad)
		}
	}
}

func TestTemplateOfTellsPlansAndHostsApart(t *testing.T) {
	conf := testConfig(t)
	v, plan := newTest(t, conf), testPlan("/i")
	name := v.TemplateOf(plan)
	must(t, validTemplate(name))
	same := plan
	same.ID, same.Host, same.Slot, same.Template, same.Image.Path = "x", "y", 9, "z", "/elsewhere"
	if v.TemplateOf(same) != name {
		t.Error("two sandboxes of one shape have two templates")
	}
	for what, change := range map[string]func(*sandbox.Plan){
		"vCPUs": func(p *sandbox.Plan) { p.VCPUs++ }, "memory": func(p *sandbox.Plan) { p.MemMiB++ }, "scratch": func(p *sandbox.Plan) { p.ScratchMiB++ },
		"image": func(p *sandbox.Plan) { p.Image.ID = "node" }, "digest": func(p *sandbox.Plan) { p.Image.Digest = "sha256:1" },
	} {
		other := plan
		if change(&other); v.TemplateOf(other) == name {
			t.Errorf("%s makes no difference", what)
		}
	}
	for what, change := range map[string]func() error{
		"kernel": func() error { return os.WriteFile(conf.KernelPath, []byte("newer kernel"), 0o600) },
		"agent":  func() error { return os.WriteFile(conf.GuestdPath, []byte("newer agent"), 0o600) },
		"Firecracker": func() error {
			return os.WriteFile(conf.FirecrackerPath, []byte("#!/bin/sh\necho Firecracker v1.17.1\n"), 0o755) //nolint:gosec // a binary
		},
		"debug": func() error { conf.Debug = true; return nil },
	} {
		before := newTest(t, conf).TemplateOf(plan)
		must(t, change())
		if newTest(t, conf).TemplateOf(plan) == before {
			t.Errorf("another %s makes no difference", what)
		}
	}
}

func TestDescribeCPU(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\nmodel name\t: AMD EPYC\nstepping\t: 0\nmicrocode\t: 0x1\ncpu MHz\t\t: 2.5\nflags\t\t: fpu svm\n\nprocessor\t: 1\nflags\t\t: other\n": "vendor_id: AuthenticAMD\ncpu family: 23\nmodel: 49\nmodel name: AMD EPYC\nstepping: 0\nmicrocode: 0x1\nflags: fpu svm\n",
		"processor\t: 0\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\n":                                                                                                        "Features: fp asimd\nCPU implementer: 0x41\nCPU part: 0xd0b\n",
	} {
		if got, err := describeCPU(strings.NewReader(text)); err != nil || got != want {
			t.Errorf("got %q %v, want %q", got, err, want)
		}
	}
	if _, err := describeCPU(strings.NewReader("processor\t: 0\n")); err == nil {
		t.Error("a processor of no name was taken")
	}
}
