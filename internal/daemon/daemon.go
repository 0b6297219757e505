// Package daemon is the composition root of microvmd: it builds every part,
// starts them in order and stops them in reverse. It decides nothing about
// sandboxes; each part does, in its own package.
//
// States of a daemon: starting -> ready [-> reloading -> ready] -> stopping.
// The service manager is told each.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/httpapi"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// Reload is called on each hangup. It reads the configuration again and hands it
// to apply, which puts Limits and Drain in force, or returns an error and changes
// nothing. Nothing else of a Config can change while the daemon runs, and apply
// does not look at it: Reload has refused it.
type Reload func(apply func(Config) error)

// daemon is one life of microvmd, from the point on where it has sandboxes.
type daemon struct {
	conf       Config // the goroutine of Run only
	below      *host
	store      *sqlstore.Store
	sandboxes  *sandbox.Manager
	executions *execution.Manager
	serving    *serving
	background sync.WaitGroup
}

// Run runs the daemon until ctx ends. Then its sandboxes go on without it, for the
// next start to adopt, or, with Drain, are ended. After an error of its own they
// always go on.
func Run(ctx context.Context, c Config, hangup <-chan os.Signal, reload Reload) (err error) {
	c = c.filled()
	if err := c.check(); err != nil {
		return err
	}
	unlock, err := lockState(c.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	key, err := secret.LoadKey(filepath.Join(c.StateDir, secret.KeyFile))
	if err != nil {
		return err
	}

	store, err := sqlstore.Open(ctx, c.database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	images := image.Open(filepath.Join(c.StateDir, "images"), c.imageBounds())
	if err := images.Sweep(); err != nil {
		return err
	}
	broken, err := images.Broken(ctx)
	if err != nil {
		return err
	}
	for _, b := range broken {
		c.Logger.Error("image cannot be used", "image", b.ID, "error", b.Err)
	}
	below, err := newHost(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, below.leave(ctx)) }()

	boot, err := hostBoot()
	if err != nil {
		return err
	}
	sandboxes, err := sandbox.New(sandbox.Config{
		Store: store, Images: images, Cgroups: below.cgroups, VMM: below.vmm, Agents: below.agents, Secrets: key,
		Limits: c.Limits, Logger: c.Logger, Uptime: uptime, HostBoot: boot,
	})
	if err != nil {
		return err
	}
	executions := execution.New(execution.Config{
		Store: store, Sandboxes: sandboxes, Dir: filepath.Join(c.StateDir, "executions"), Logger: c.Logger,
		AgentTimeout: c.AgentTimeout, KillTimeout: c.KillTimeout, KeepBytes: int64(c.OutputMiB) << 20, KeepSandboxBytes: int64(c.BoxOutputMiB) << 20, Uptime: uptime,
	})
	keys := httpapi.NewKeyRing(keyStore{store})
	if err := firstKey(ctx, store, keys, c.StateDir); err != nil {
		return err
	}
	handler, err := httpapi.New(httpapi.Config{
		Sandboxes: sandboxes, Executions: executions, Attached: httpapi.Attach(executions), Files: sandbox.NewFiles(sandboxes), Images: sandbox.NewImages(sandboxes, images),
		Keys: keys, Version: c.Version, Logger: c.Logger, MaxBodyBytes: c.MaxBodyBytes,
	})
	if err != nil {
		return err
	}
	// Before anything is adopted: who cannot serve has touched no sandbox.
	serving, err := listen(c, handler)
	if err != nil {
		return err
	}
	d := &daemon{conf: c, below: below, store: store, sandboxes: sandboxes, executions: executions, serving: serving}
	err = d.work(ctx, hangup, reload)
	// However the work ended: owners let go of their sandboxes before what they
	// stand on is closed. They would take it for a death of the microVM.
	return errors.Join(err, d.stop(ctx))
}

// work recovers what an earlier daemon left and serves until ctx ends.
func (d *daemon) work(ctx context.Context, hangup <-chan os.Signal, reload Reload) error {
	if err := d.sandboxes.Recover(ctx); err != nil {
		return err
	}
	if err := d.executions.Recover(ctx); err != nil { // they need their sandboxes
		return err
	}
	d.serving.start()
	serves, ended := context.WithCancel(ctx) // also when it ends by itself
	defer ended()
	c := d.conf
	d.background.Go(func() { expire(serves, c, d.store, d.executions) })
	c.Logger.Info("ready", "version", c.Version, "instance", c.Instance, "socket", c.Socket, "listen", d.serving.addr,
		"slots", c.Limits.Slots, "vcpus", c.Limits.VCPUs, "mem_mib", c.Limits.MemMiB)
	d.tell(ready)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.serving.failed:
			return err
		case <-hangup:
			d.tell(reloading())
			reload(d.apply)
			d.tell(ready)
		}
	}
}

// apply puts another configuration in force, as far as a running daemon can.
func (d *daemon) apply(next Config) error {
	next = next.filled()
	if err := next.check(); err != nil {
		return err
	}
	if err := d.sandboxes.Reload(next.Limits); err != nil {
		return err
	}
	d.conf.Limits, d.conf.Drain = next.Limits, next.Drain
	return nil
}

// stop ends in reverse: sandboxes end or are left, so that their executions and
// callers are told, then callers get their answers.
func (d *daemon) stop(ctx context.Context) error {
	drain := d.conf.Drain && ctx.Err() != nil // a fault of ours is no wish to end them
	d.tell(stopping)
	if drain {
		d.conf.Logger.Info("stopping: no new work, sandboxes are ended")
	} else {
		d.conf.Logger.Info("stopping: no new work, sandboxes go on for the next start to adopt")
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*d.conf.Limits.StepTimeout)
	defer cancel()
	err := d.sandboxes.Close(bound, drain)
	d.executions.Close()
	err = errors.Join(err, d.serving.stop(ctx))
	d.background.Wait()
	left, listErr := d.below.left(context.WithoutCancel(ctx))
	if drain && len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("drain: the next start has to reap %s", strings.Join(left, ", ")))
	}
	d.conf.Logger.Info("stopped", "sandboxes_left", len(left))
	return errors.Join(err, listErr)
}

// tell tells the service manager. It does without us, and we without it.
func (d *daemon) tell(state string) {
	if err := notify(d.conf.Notify, state); err != nil {
		d.conf.Logger.Warn("cannot tell the service manager", "error", err)
	}
}

// lockState makes the state directory and takes its lock, which ends with the
// process.
func lockState(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock state directory: another microvmd uses %s; stop it, or give this one its own --state-dir and --instance", dir)
	}
	return func() { _ = file.Close() }, nil
}

// expire forgets stopped sandboxes, their executions and their output after
// the retention time.
func expire(ctx context.Context, c Config, store *sqlstore.Store, executions *execution.Manager) {
	ticker := time.NewTicker(min(c.StoppedRetain/4, time.Minute))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ids, err := store.DeleteStopped(ctx, time.Now().Add(-c.StoppedRetain))
		if err = errors.Join(err, executions.Forget(ids)); err != nil && ctx.Err() == nil {
			c.Logger.Error("cannot forget stopped sandboxes", "error", err)
		}
	}
}
