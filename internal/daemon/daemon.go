// Package daemon is the composition root of microvmd: it builds every part,
// starts them in order and stops them in reverse. It decides nothing about
// sandboxes; each part does, in its own package.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/cgroup"
	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/firecracker"
	"github.com/microvmd/microvm/internal/hostnet"
	"github.com/microvmd/microvm/internal/httpapi"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// Defaults is the configuration for a host of so many cores and so much
// memory. A quarter of the memory, at least 512 MiB, is left to the host;
// vCPUs are overcommitted by four, since most sandboxes wait most of the time.
func Defaults(cores, memMiB int) Config {
	give := max(memMiB-max(memMiB/4, 512), sandbox.MinMemMiB+sandbox.VMOverheadMiB)
	return Config{
		Instance:     "microvm",
		StateDir:     "/var/lib/microvm",
		Socket:       "/run/microvm/microvmd.sock",
		Listen:       "127.0.0.1:7080",
		CgroupRoot:   cgroup.DefaultRoot,
		NetnsDir:     hostnet.DefaultDir,
		UIDBase:      firecracker.DefaultUIDBase,
		MaxBodyBytes: httpapi.DefaultMaxBodyBytes,
		MaxConns:     1024,
		OutputMiB:    4096,
		Limits: sandbox.Limits{
			Slots:       max(1, give/(sandbox.DefaultMemMiB+sandbox.VMOverheadMiB)),
			VCPUs:       max(4*cores, 8),
			MemMiB:      give,
			MaxVCPUs:    min(32, max(cores, 2)),
			MaxTTL:      24 * time.Hour,
			ScratchMiB:  2048,
			Templates:   8,
			BootsAtOnce: max(2, cores),
			BootTurn:    15 * time.Second,

			BootTimeout:    3 * time.Minute,
			StallTimeout:   30 * time.Second,
			StepTimeout:    30 * time.Second,
			ReconcileEvery: time.Minute,
		},
		AgentTimeout:  time.Minute,
		KillTimeout:   5 * time.Second,
		StoppedRetain: time.Hour,
	}
}

// host is what a daemon needs below its sandboxes: the real one, or the fake
// of the contract tests' build.
type host struct {
	cgroups sandbox.Cgroups
	vmm     sandbox.VMM
	agents  sandbox.Agents
	close   func() error
}

// Run runs the daemon until ctx ends. Then its sandboxes go on without it, for the
// next start to adopt, or, with Drain, are ended.
func Run(ctx context.Context, c Config) (err error) {
	if c.Limits.MaxMemMiB == 0 {
		c.Limits.MaxMemMiB = c.Limits.MemMiB - sandbox.VMOverheadMiB
	}
	if c.Limits.DiskMiB == 0 { // disks are sparse: nobody fills all of them
		c.Limits.DiskMiB = c.Limits.Slots * c.Limits.ScratchMiB
	}
	if err := c.check(); err != nil {
		return err
	}
	unlock, err := lockState(c.StateDir)
	if err != nil {
		return err
	}
	defer unlock()

	store, err := sqlstore.Open(ctx, c.database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	images := image.Open(filepath.Join(c.StateDir, "images"))
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
	defer func() { err = errors.Join(err, below.close()) }()

	boot, err := hostBoot()
	if err != nil {
		return err
	}
	sandboxes, err := sandbox.New(sandbox.Config{
		Store: store, Images: images, Cgroups: below.cgroups, VMM: below.vmm, Agents: below.agents,
		Limits: c.Limits, Logger: c.Logger, Uptime: uptime, HostBoot: boot,
	})
	if err != nil {
		return err
	}
	executions := execution.New(execution.Config{
		Store: store, Sandboxes: sandboxes, Dir: filepath.Join(c.StateDir, "executions"), Logger: c.Logger,
		AgentTimeout: c.AgentTimeout, KillTimeout: c.KillTimeout, KeepBytes: int64(c.OutputMiB) << 20, Uptime: uptime,
	})
	if err := errors.Join(sandboxes.Recover(ctx), executions.Recover(ctx)); err != nil {
		return err
	}

	keys := httpapi.NewKeyRing(keyStore{store})
	if err := firstKey(ctx, store, keys, c.StateDir); err != nil {
		return err
	}
	handler, err := httpapi.New(httpapi.Config{
		Sandboxes: sandboxes, Executions: executions, Files: sandbox.NewFiles(sandboxes), Images: images,
		Keys: keys, Version: c.Version, Logger: c.Logger, MaxBodyBytes: c.MaxBodyBytes,
	})
	if err != nil {
		return err
	}
	serving, err := serve(c, handler)
	if err != nil {
		return err
	}
	serves, ended := context.WithCancel(ctx) // also when it ends by itself
	defer ended()
	var background sync.WaitGroup
	background.Go(func() { expire(serves, c, store, executions) })
	c.Logger.Info("ready", "version", c.Version, "instance", c.Instance, "socket", c.Socket, "listen", serving.addr,
		"slots", c.Limits.Slots, "vcpus", c.Limits.VCPUs, "mem_mib", c.Limits.MemMiB)

	select {
	case <-ctx.Done():
		if c.Drain {
			c.Logger.Info("stopping: no new work, sandboxes are ended")
		} else {
			c.Logger.Info("stopping: no new work, sandboxes go on for the next start to adopt")
		}
	case err = <-serving.failed:
		c.Logger.Error("cannot serve", "error", err)
	}
	ended()
	// In reverse: callers first get their answers, because their sandboxes end or are left.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*c.Limits.StepTimeout)
	defer cancel()
	err = errors.Join(err, sandboxes.Close(stop, c.Drain))
	executions.Close()
	err = errors.Join(err, serving.stop(stop))
	background.Wait()
	return err
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

// keyStore gives httpapi the store's keys.
type keyStore struct{ *sqlstore.Store }

func (s keyStore) InsertKey(ctx context.Context, id, name string, hash [32]byte, created time.Time) error {
	return s.Store.InsertKey(ctx, sqlstore.Key{ID: id, Name: name, Hash: hash, Created: created})
}

func (s keyStore) KeyByHash(ctx context.Context, hash [32]byte) (string, [32]byte, bool, error) {
	key, err := s.Store.KeyByHash(ctx, hash)
	if errors.Is(err, sqlstore.ErrNoKey) {
		return "", hash, false, nil
	}
	return key.ID, key.Hash, err == nil, err
}

// firstKey makes the admin key at the first start and puts its text into
// admin.key, root-only, where the command line finds it. A start that was
// killed in between leaves a text that is no key yet: the next one writes
// another.
func firstKey(ctx context.Context, store *sqlstore.Store, keys *httpapi.KeyRing, dir string) error {
	if have, err := store.Keys(ctx); err != nil || len(have) > 0 {
		return err
	}
	path := filepath.Join(dir, "admin.key")
	_, err := keys.Make(ctx, "admin", func(token string) error {
		draft := path + ".new"
		if err := os.WriteFile(draft, []byte(token+"\n"), 0o600); err != nil {
			return err
		}
		return os.Rename(draft, path)
	})
	return err
}

// serving is the API on its listeners.
type serving struct {
	server *http.Server
	addr   string // of the TCP listener, "" if there is none
	failed chan error
	group  sync.WaitGroup
}

func serve(c Config, handler http.Handler) (*serving, error) {
	listeners := make([]net.Listener, 0, 2)
	unixListener, err := listenUnix(c.Socket)
	if err != nil {
		return nil, err
	}
	listeners = append(listeners, unixListener)
	s := &serving{server: httpapi.NewServer(handler, c.Logger), failed: make(chan error, 2)}
	if c.Listen != "" {
		tcp, err := net.Listen("tcp", c.Listen)
		if err != nil {
			_ = unixListener.Close()
			return nil, fmt.Errorf("listen on %s: %w", c.Listen, err)
		}
		listeners = append(listeners, limit(tcp, c.MaxConns))
		s.addr = tcp.Addr().String()
	}
	for _, l := range listeners {
		s.group.Go(func() {
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
		})
	}
	return s, nil
}

// listenUnix takes the socket over from a daemon that is gone; the state
// directory's lock says that it is.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another daemon answers there; give this one its own --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	old := unix.Umask(0o177) // the socket is root's from its first moment
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func (s *serving) stop(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		_ = s.server.Close()
		err = fmt.Errorf("stop serving: %w", err)
	}
	s.group.Wait()
	return err
}
