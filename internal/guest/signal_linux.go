package guest

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// signalBatch is how many processes are held by descriptors at once.
const signalBatch = 256

// signal sends to the process group while the program runs, and to every
// process of the cgroup that is not in that group. SIGKILL reaches all of the
// cgroup at once, also what a process of it starts meanwhile.
func (e *execution) signal(name string) error {
	number, ok := guestwire.SignalNumber(name)
	if !ok {
		return refuse(guestwire.BadRequest, "no such signal")
	}
	group := 0
	e.mu.Lock()
	if !e.reaped { // under the lock: the pid cannot be reaped and used again meanwhile
		group = e.pid
		_ = unix.Kill(-group, syscall.Signal(number))
	}
	e.mu.Unlock()
	var err error
	if number == int(unix.SIGKILL) && e.group != nil {
		err = e.group.kill()
	} else {
		err = signalOthers(e.members, group, syscall.Signal(number))
	}
	if err != nil {
		return refuse(guestwire.Failed, err.Error())
	}
	return nil
}

// members are the processes that belong to an execution now: those of its
// cgroup or, where there is none, of its session. The number of a session is not
// used again while it has members.
func (e *execution) members() ([]int, error) {
	if e.group != nil {
		return e.group.processes()
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if session, err := unix.Getsid(pid); err == nil && session == e.pid {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// signalOthers sends to all members that are not in process group besides. A
// number may get another owner between its reading and its use: so each process
// is first held by a descriptor, then the members are read again, and only what
// is still among them is sent to.
func signalOthers(members func() ([]int, error), besides int, number syscall.Signal) error {
	all, err := members()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(pid int) bool {
		group, err := unix.Getpgid(pid)
		return err != nil || group == besides
	})
	var errs []error
	for batch := range slices.Chunk(all, signalBatch) {
		errs = append(errs, signalHeld(members, batch, number))
	}
	return errors.Join(errs...)
}

func signalHeld(members func() ([]int, error), pids []int, number syscall.Signal) error {
	held := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // else it has ended
			held[pid] = fd
		}
	}
	now, err := members()
	if err != nil {
		return err
	}
	for _, pid := range now {
		if fd, ok := held[pid]; ok {
			_ = unix.PidfdSendSignal(fd, number, nil, 0) // one that has ended needs none
		}
	}
	return nil
}
