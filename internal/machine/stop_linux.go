package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// stopWithin is how long a stop waits for the keeper before it kills it: more than the keeper's own graces together.
const stopWithin = powerdownGrace + quitGrace + 10*time.Second

// Stop ends the machine: the host shuts down, or is ended when it does not. To stop a machine that does not run is no error;
// was says whether it ran.
func (m *Machine) Stop(ctx context.Context) (was bool, err error) {
	if !exists(m.dir) {
		return false, nil
	}
	p := &progress{w: m.cfg.Progress}
	lock, err := waitLock(ctx, m.path(commandLock), func() { p.say("another command works on machine %s: waiting for it", m.cfg.Name) })
	if err != nil {
		return false, err
	}
	defer lock.Close()
	return m.stop(ctx, p)
}

func (m *Machine) stop(ctx context.Context, p *progress) (was bool, err error) {
	var r run
	if readJSON(m.path(runFile), &r) != nil {
		return false, nil
	}
	if err := r.Keeper.signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, fmt.Errorf("stop machine %s: %w", m.cfg.Name, err)
	} else if err != nil {
		m.disconnect(ctx)
		return false, m.reap(r) // crashed earlier
	}
	return true, p.step(fmt.Sprintf("machine %s: shutting down, waiting for QEMU to end", m.cfg.Name), func() error {
		bounded, cancel := context.WithTimeout(ctx, stopWithin)
		defer cancel()
		held, err := waitLock(bounded, m.path(keeperLock), nil)
		m.disconnect(ctx)
		if err == nil {
			return held.Close()
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		p.say("the keeper did not end within %.0f s: killing it", stopWithin.Seconds())
		if err := r.Keeper.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill keeper: %w", err)
		}
		return m.reap(r)
	})
}

// reap makes sure that a QEMU whose keeper is gone is gone too (it dies with its keeper; this is for the moment between).
func (m *Machine) reap(r run) error {
	if err := r.QEMU.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill QEMU: %w", err)
	}
	return nil
}

// Delete removes the machine with its disks. A running machine is refused, unless force, which stops it first.
func (m *Machine) Delete(ctx context.Context, force bool) error {
	if !exists(m.dir) {
		return fmt.Errorf("delete machine %s: %w", m.cfg.Name, fs.ErrNotExist)
	}
	p := &progress{w: m.cfg.Progress}
	lock, err := waitLock(ctx, m.path(commandLock), func() { p.say("another command works on machine %s: waiting for it", m.cfg.Name) })
	if err != nil {
		return err
	}
	defer lock.Close()
	if m.alive() && !force {
		return fmt.Errorf("delete machine %s: %w", m.cfg.Name, ErrRunning)
	}
	if _, err := m.stop(ctx, p); err != nil {
		return err
	}
	// A keeper that has not written its record yet, or ends just now, holds this.
	bounded, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	keeper, err := waitLock(bounded, m.path(keeperLock), nil)
	if err != nil {
		return fmt.Errorf("delete machine %s: %w", m.cfg.Name, err)
	}
	defer keeper.Close()
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("delete machine %s: %w", m.cfg.Name, err)
	}
	return nil
}
