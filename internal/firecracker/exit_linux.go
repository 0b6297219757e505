package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is how a VMM ended. One of Code and Signal counts.
type Exit struct {
	Code   int // of Firecracker (src/vmm/src/lib.rs, FcExitCode), if Signal is 0
	Signal unix.Signal
}

// ForbiddenCall reports whether the VMM was ended because it made a system call
// that its seccomp filter forbids: a bug of Firecracker, or a break-in.
func (e Exit) ForbiddenCall() bool { return e.Signal == unix.SIGSYS || e.Signal == 0 && e.Code == 148 }

// String says what the code means.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "ended by " + unix.SignalName(e.Signal)
	}
	meaning := map[int]string{
		0: "the guest rebooted or stopped", 148: "forbidden system call", 149: "SIGBUS", 150: "SIGSEGV", 151: "SIGXFSZ: a file over its limit",
		152: "bad configuration", 153: "bad arguments", 154: "SIGXCPU", 155: "SIGPIPE", 156: "SIGHUP", 157: "SIGILL",
	}[e.Code]
	if meaning == "" {
		meaning = "unknown"
	}
	return fmt.Sprintf("ended with code %d (%s)", e.Code, meaning)
}

const (
	exitEvery = time.Millisecond
	exitWait  = 2 * time.Second // a cgroup is empty a moment before its last process can be waited for
	logInErr  = 600             // bytes of the log in an error
)

// Exit tells how the VMM of a sandbox ended. Ask once its cgroup is empty. known
// is false for a VMM that an earlier daemon started, or that still runs.
func (v *VMM) Exit(host string) (exit Exit, known bool) {
	i := v.instance(host)
	if i == nil {
		return Exit{}, false
	}
	return v.reap(host, i)
}

// GuestEnded is sandbox.VMM's.
func (v *VMM) GuestEnded(_ context.Context, host string) (bool, error) {
	exit, known := v.Exit(host)
	return known && exit == Exit{}, nil
}

// reap collects the exit of a VMM, which became our child when its jailer ended.
// No other code waits for it, so its number stays its own until then.
func (v *VMM) reap(host string, i *instance) (Exit, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.exit != nil {
		return *i.exit, true
	}
	if !i.launched {
		return Exit{}, false
	}
	if pids, err := v.processes(host); err != nil || len(pids) > 0 {
		return Exit{}, false
	}
	if i.pid == 0 {
		i.pid = v.findZombie(host) // it ended before findVMM saw it
	}
	for last := time.Now().Add(exitWait); i.pid > 0; time.Sleep(exitEvery) {
		var status unix.WaitStatus
		pid, err := unix.Wait4(i.pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD: not ours
			i.pid = 0
		case pid == i.pid:
			i.pid = 0
			i.exit = &Exit{Code: status.ExitStatus()}
			if status.Signaled() {
				i.exit = &Exit{Signal: status.Signal()}
			}
			if i.exit.ForbiddenCall() {
				v.conf.Log.Error("security event: VMM made a forbidden system call", "sandbox", host, "exit", i.exit.String())
			}
			return *i.exit, true
		case time.Now().After(last):
			return Exit{}, false
		}
	}
	return Exit{}, false
}

// findZombie finds a child of ours that belongs to a sandbox's cgroup, in which
// no process is left alive, or returns 0. An ended process stays in its cgroup
// until it is waited for, though cgroup.procs does not list it.
func (v *VMM) findZombie(host string) int {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that ended meanwhile
		}
		pids, err := parsePIDs(string(data))
		if err != nil {
			continue
		}
		for _, pid := range pids {
			if v.checkPlace(pid, host) == nil {
				return pid
			}
		}
	}
	return 0
}

// noteExit says in the log how a VMM ended that nobody killed, with the end of
// its own log, which slog quotes: for a sandbox that was running there is no error to put it into.
func (v *VMM) noteExit(host string, i *instance) {
	exit, known := v.reap(host, i)
	if !known || exit.Signal == unix.SIGKILL {
		return
	}
	i.mu.Lock()
	log := i.log
	i.mu.Unlock()
	log.settle()
	text, _ := log.last(logInErr)
	v.conf.Log.Warn("VMM ended by itself", "sandbox", host, "exit", exit.String(), "log", text)
}

// explain adds to an error what is known of the VMM: that it ended and how, and
// the last of its log and console, which are quoted, since a guest may have
// written them.
func (v *VMM) explain(host string, err error) error {
	i := v.instance(host)
	if i == nil {
		return err
	}
	if exit, known := v.reap(host, i); known {
		err = fmt.Errorf("%w; the VMM %s", err, exit)
	}
	i.mu.Lock()
	log, debug := i.log, i.debug
	i.mu.Unlock()
	for _, source := range []struct {
		name string
		tail *tail
	}{{"log", log}, {"console", debug}} {
		source.tail.settle()
		if text, before := source.tail.last(logInErr); text != "" {
			err = fmt.Errorf("%w; end of its %s (%d bytes before): %q", err, source.name, before, text)
		}
	}
	return err
}
