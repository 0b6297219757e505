// Package firecracker owns the jails of microVMs on this node and the VMM
// processes in them: the files of a jail, the jailer's arguments, the VMM's API
// over its socket, the agent's hello, and the way to a guest over vsock. The
// released Firecracker and jailer are the only VMM it knows.
//
// It knows nothing of limits and networks: a sandbox's cgroup exists before
// Launch, and a network namespace is given to it as a path. It stores nothing:
// a jail is found by its name in the state directory.
//
// States of one jail: absent -> prepared (its files are there, nothing runs) ->
// launched (the VMM's API answers) -> started (vCPUs run) [-> frozen (paused for
// good, memory and devices are written)] -> ended (the cgroup is empty) ->
// absent. Remove works from every state in which no process is left.
//
// A template is absent -> kept -> absent: what Freeze wrote is moved out of the
// jail, and every jail that is prepared from it holds links of its own.
//
// From Launch on the jail's root directory belongs to the VMM's uid, and the
// VMM is held to be hostile: nothing in there is touched by path, only by
// descriptors that follow no link, and every reply is bounded in size and time.
package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

var (
	_ sandbox.VMM    = (*VMM)(nil)
	_ sandbox.Agents = (*VMM)(nil)
)

// VMM makes jails and runs Firecracker in them. It is safe for concurrent use;
// calls of sandbox.VMM for one sandbox come one at a time.
type VMM struct {
	conf      Config
	version   string
	files     bootFiles
	basis     string   // what every template depends on
	jails     *os.File // StateDir/jails/firecracker, O_PATH
	templates *os.File // StateDir/templates

	blank sync.Mutex // held while a blank scratch disk is looked for or made

	mu      sync.Mutex
	running map[string]*instance // guarded by mu; what this process knows of a jail, by Plan.Host
	agents  map[string]*agent    // guarded by mu; connection pools, by Plan.Host
}

// instance is what cannot be found again by name: it is lost with the daemon,
// and an adopted VM does without.
type instance struct {
	template string // that it is restored from, or ""; set at construction
	adopted  bool   // an earlier daemon started it; set at construction

	mu       sync.Mutex     // guards all below
	log      *tail          // the VMM's log; set by Prepare
	debug    *tail          // stdout and stderr of jailer and VMM; set by Launch, if at all
	hello    *helloListener // until Hello took it
	greeted  bool           // its hello was taken
	called   bool           // its agent was called
	frozen   *sandbox.Plan  // once Freeze went through
	launched bool           // a jailer was started
	pid      int            // of the VMM, our child, from Launch until it is waited for; else 0
	exit     *Exit          // once waited for
}

// New checks the configuration and the host, asks Firecracker for its version,
// and places what every jail needs in the state directory. The context bounds
// it.
func New(ctx context.Context, conf Config) (*VMM, error) {
	if err := conf.complete(); err != nil {
		return nil, err
	}
	v := &VMM{conf: conf, running: map[string]*instance{}, agents: map[string]*agent{}}
	for _, dir := range []string{conf.StateDir, v.bootDir(), v.jailsDir(), v.templatesDir()} {
		if err := v.do("make state directory", func() error { return os.MkdirAll(dir, 0o700) }); err != nil {
			return nil, err
		}
		if err := checkOwned(dir); err != nil {
			return nil, fmt.Errorf("check state directory: %w", err)
		}
	}
	if !conf.anyMount {
		if err := checkMount(conf.StateDir); err != nil {
			return nil, fmt.Errorf("check state directory: %w", err)
		}
	}
	var err error
	if v.version, err = askVersion(ctx, conf.FirecrackerPath); err != nil {
		return nil, err
	}
	if v.files, err = v.placeBootFiles(); err != nil {
		return nil, err
	}
	if v.basis, err = v.findBasis(); err != nil {
		return nil, fmt.Errorf("describe host for templates: %w", err)
	}
	if err := v.openTemplates(ctx); err != nil {
		return nil, err
	}
	jails, err := os.OpenFile(v.jailsDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open jails: %w", err)
	}
	v.jails = jails
	return v, nil
}

// Close lets go of everything this process holds. VMs go on running; their
// files and sockets stay.
func (v *VMM) Close() error {
	v.mu.Lock()
	running, agents := v.running, v.agents
	v.running, v.agents = map[string]*instance{}, map[string]*agent{}
	v.mu.Unlock()
	for _, a := range agents {
		a.close()
	}
	for _, i := range running {
		i.close()
	}
	return errors.Join(v.jails.Close(), v.templates.Close())
}

// Version is what the Firecracker binary says of itself, "1.17.0".
func (v *VMM) Version() string { return v.version }

// UID is the uid and gid of the VMM in a slot.
func (v *VMM) UID(slot int) int { return v.conf.UIDBase + slot }

// List names all jails below the state directory, sorted.
func (v *VMM) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(v.jailsDir())
	if err != nil {
		return nil, fmt.Errorf("list jails: %w", err)
	}
	var hosts []string
	for _, entry := range entries {
		if validHost(entry.Name()) == nil && entry.IsDir() {
			hosts = append(hosts, entry.Name())
		}
	}
	return hosts, nil
}

// Remove deletes a jail and all that is in it. It refuses while the sandbox's
// cgroup has a process, and may be repeated until it succeeds.
func (v *VMM) Remove(ctx context.Context, host string) error {
	if err := validHost(host); err != nil {
		return fmt.Errorf("remove jail: %w", err)
	}
	if pids, err := v.processes(host); err != nil || len(pids) > 0 {
		return errors.Join(err, fmt.Errorf("remove jail: %d processes of %s still run", len(pids), host))
	}
	v.Release(host)
	v.mu.Lock()
	i := v.running[host]
	v.mu.Unlock()
	if i != nil {
		v.noteExit(host, i)
		i.close()
		v.mu.Lock()
		delete(v.running, host)
		v.mu.Unlock()
	}
	return v.do("remove jail", func() error { return removeTree(ctx, int(v.jails.Fd()), host) })
}

// instance finds what this process knows of a jail, or nil.
func (v *VMM) instance(host string) *instance {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.running[host]
}

// close ends the goroutines and closes the files of an instance.
func (i *instance) close() {
	i.mu.Lock()
	log, debug, hello := i.log, i.debug, i.hello
	i.log, i.debug, i.hello = nil, nil, nil
	i.mu.Unlock()
	if hello != nil {
		hello.close()
	}
	log.close()
	debug.close()
}

func (v *VMM) bootDir() string  { return filepath.Join(v.conf.StateDir, "boot") }
func (v *VMM) jailsDir() string { return filepath.Join(v.conf.StateDir, "jails", execName) }

// validHost takes only names that ident.Host made, so none leads out of a
// directory and each is a valid jail id.
func validHost(host string) error {
	if _, ok := ident.FromHost(ident.Sandbox, host); !ok {
		return fmt.Errorf("%q is no name of a sandbox", host)
	}
	return nil
}

// do is the one way to an effect on the host: it carries the label that errors,
// traces and injected faults share.
func (v *VMM) do(op string, effect func() error) error {
	if v.conf.Trace != nil {
		if err := v.conf.Trace(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := effect(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
