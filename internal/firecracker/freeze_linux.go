package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// Names of what Freeze lets the VMM write into its jail. They are none that a
// jail restored from a template has.
const (
	frozenMemory = "memory.new"
	frozenState  = "state.new"

	maxState = 16 << 20 // bytes of the devices' state; 1 vCPU with our devices has 16 KiB
)

// Freeze pauses the microVM and lets the VMM write memory and devices into its
// jail. The microVM must be fresh: booted by this process, its hello taken, and
// its agent not called since, so that nothing of a caller is in its memory and
// nothing is in flight on its vsock.
func (v *VMM) Freeze(ctx context.Context, plan sandbox.Plan) error {
	if err := checkPlan(plan); err != nil {
		return fmt.Errorf("freeze microVM: %w", err)
	}
	i := v.instance(plan.Host)
	if i == nil {
		return fmt.Errorf("freeze microVM: %s was not started by this process", plan.Host)
	}
	i.mu.Lock()
	fresh := i.template == "" && !i.adopted && i.greeted && !i.called && i.frozen == nil
	i.mu.Unlock()
	if !fresh {
		return fmt.Errorf("freeze microVM: %s is not fresh from a cold boot and its hello", plan.Host)
	}
	vmm := v.api(plan.Host)
	defer vmm.close()
	err := v.do("pause microVM", func() error { return vmm.patch(ctx, "/vm", vmState{paused}) })
	if err == nil {
		err = v.do("create snapshot", func() error {
			return vmm.put(ctx, "/snapshot/create", snapshotCreate{Type: "Full", State: frozenState, Memory: frozenMemory})
		})
	}
	if err != nil {
		return v.explain(plan.Host, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen = &plan
	return nil
}

// Keep makes a template of what Freeze wrote. The VMM, which may have been
// hostile, is dead; its files are taken by descriptor, checked, made root's and
// moved, so nothing that it could have left in the jail leads elsewhere.
func (v *VMM) Keep(ctx context.Context, host, template string) error {
	plan, err := v.frozenPlan(host, template)
	if err != nil {
		return fmt.Errorf("keep template: %w", err)
	}
	blank, err := v.blankScratch(ctx, plan.ScratchMiB)
	if err != nil {
		return err
	}
	root, err := v.openRoot(host)
	if err != nil {
		return fmt.Errorf("keep template: %w", err)
	}
	defer func() { _ = root.Close() }()
	temp := newPrefix + host
	dir, err := v.makeTemplate(ctx, temp)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	from, to := int(root.Fd()), int(dir.Fd())
	for _, step := range []struct {
		op     string
		effect func() error
	}{
		{"take memory", func() error {
			size := int64(plan.MemMiB) << 20
			return takeFrozen(from, frozenMemory, to, memoryName, size, size, func(f *os.File) error { return dig(ctx, f) })
		}},
		{"take state", func() error { return takeFrozen(from, frozenState, to, stateName, 1, maxState, nil) }},
		{"link scratch", func() error { return linkFile(blank, to, scratchName) }},
		{"sync template", func() error { return unix.Fsync(to) }},
		{"keep template", func() error { return v.enterTemplate(ctx, temp, template) }},
	} {
		if err := v.do(step.op, step.effect); err != nil {
			return errors.Join(err, removeTree(context.WithoutCancel(ctx), int(v.templates.Fd()), temp))
		}
	}
	return nil
}

// frozenPlan is the plan of a jail that Freeze went through, whose template has
// that name and whose VMM is dead.
func (v *VMM) frozenPlan(host, template string) (sandbox.Plan, error) {
	if err := validHost(host); err != nil {
		return sandbox.Plan{}, err
	}
	var plan *sandbox.Plan
	if i := v.instance(host); i != nil {
		i.mu.Lock()
		plan = i.frozen
		i.mu.Unlock()
	}
	if plan == nil {
		return sandbox.Plan{}, fmt.Errorf("%s was not frozen by this process", host)
	}
	if want := v.TemplateOf(*plan); want != template {
		return sandbox.Plan{}, fmt.Errorf("%s is template %s, not %.40q", host, want, template)
	}
	if pids, err := v.processes(host); err != nil || len(pids) > 0 {
		return sandbox.Plan{}, errors.Join(err, fmt.Errorf("%d processes of %s still run", len(pids), host))
	}
	return *plan, nil
}

// makeTemplate makes an empty directory beside the templates.
func (v *VMM) makeTemplate(ctx context.Context, name string) (dir *os.File, err error) {
	err = v.do("make template", func() error {
		at := int(v.templates.Fd())
		if err := removeTree(ctx, at, name); err != nil {
			return err
		}
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: name, Err: err}
		}
		dir, err = openForRead(at, name)
		return err
	})
	return dir, err
}

// takeFrozen moves a file that a VMM wrote into dir to, root-owned, read-only
// and on the disk. It must be a regular file of no other name and of a
// plausible size.
func takeFrozen(from int, name string, to int, as string, least, most int64, change func(*os.File) error) (err error) {
	fd, err := openBeneath(from, name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { err = errors.Join(err, f.Close()) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink != 1 || stat.Size < least || stat.Size > most {
		return fmt.Errorf("%s is not what a snapshot leaves: mode %o, %d links, %d bytes, want %d to %d", name, stat.Mode, stat.Nlink, stat.Size, least, most)
	}
	if err := errors.Join(f.Chown(0, 0), f.Chmod(0o444)); err != nil {
		return err
	}
	if change != nil {
		if err := change(f); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Renameat2(from, name, to, as, unix.RENAME_NOREPLACE); err != nil {
		return &os.PathError{Op: "rename", Path: name, Err: err}
	}
	var moved unix.Stat_t
	if err := unix.Fstatat(to, as, &moved, unix.AT_SYMLINK_NOFOLLOW); err != nil || moved.Ino != stat.Ino {
		return errors.Join(err, fmt.Errorf("%s is not the file that was checked", name))
	}
	return nil
}

// enterTemplate gives a complete directory its name, in the place of an older
// one of that name if there is one.
func (v *VMM) enterTemplate(ctx context.Context, temp, template string) error {
	at := int(v.templates.Fd())
	err := unix.Renameat2(at, temp, at, template, unix.RENAME_NOREPLACE)
	replaced := errors.Is(err, unix.EEXIST)
	if replaced {
		err = unix.Renameat2(at, temp, at, template, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return &os.PathError{Op: "rename", Path: temp, Err: err}
	}
	if err := unix.Fsync(at); err != nil {
		return &os.PathError{Op: "fsync", Path: v.templatesDir(), Err: err}
	}
	if replaced {
		return removeTree(ctx, at, temp)
	}
	return nil
}
