package guest

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Work is the worker: it listens on vsock, says hello, and serves until that
// fails. version is the build's, for the hello. Its caller then ends the
// process, and with it PID 1 ends the microVM.
func Work(version string) error {
	memory, err := guestMemory()
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	if err := nameThread("guestd"); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	keep := keepTotal(memory)
	debug.SetMemoryLimit(agentBase/2 + keep)
	random, err := os.OpenFile("/dev/random", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	defer func() { _ = random.Close() }()
	score, err := protect()
	if err != nil {
		return fmt.Errorf("work: protect the agent from the OOM killer: %w", err)
	}
	defer func() { _ = score.Close() }()
	agent, err := New(Config{
		Version: version, Cgroup: programGroup, KeepTotal: keep,
		Apply: (&identity{random: random}).apply,
	})
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	agent.oomScore = score
	listener, err := listenVsock(guestwire.AgentPort)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	hello := guestwire.Hello{Protocol: guestwire.Protocol, Version: version}
	served := make(chan error, 1)
	go func() { served <- agent.Serve(listener) }()
	if err := sayHello(hello); err != nil {
		closed := agent.Close()
		return fmt.Errorf("work: %w", errors.Join(err, closed, <-served))
	}
	return <-served
}

// identity is what Configure changes in a guest that is a microVM.
type identity struct {
	random *os.File // /dev/random from before the image's programs could touch it
	rooted bool     // the root file system is put together; owner: apply
}

// apply is Config.Apply of the worker. The root file system is put together at
// the first generation and not at boot, so that a snapshot can be taken before
// scratch is mounted. The host ends a guest in which that failed.
func (i *identity) apply(conf guestwire.Configure) error {
	for _, step := range []func(guestwire.Configure) error{setClock, i.stir, setHostname} {
		if err := step(conf); err != nil {
			return fmt.Errorf("set identity: %w", err)
		}
	}
	names, err := nameFiles(conf.Hostname)
	if err != nil {
		return fmt.Errorf("set identity: %w", err)
	}
	if !i.rooted {
		if err := makeRoot(names); err != nil {
			return fmt.Errorf("put root together: %w", err)
		}
		i.rooted = true
		return nil
	}
	for _, file := range names {
		if err := replaceFile("/etc/"+file.name, file.text, file.mode); err != nil {
			return fmt.Errorf("set identity: %w", err)
		}
	}
	return nil
}
