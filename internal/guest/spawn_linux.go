package guest

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// spawn starts the program. Where its path was only guessed, a start that the
// kernel refuses is looked into with the user's rights, which names what is
// wrong or finds another path.
func (e *execution) spawn(p program, w *wires) error {
	err := e.clone(p, w)
	if err != nil && p.guessed {
		guess := p.path
		if refusal := p.resolve(); refusal != nil {
			return refusal
		}
		if p.path != guess {
			err = e.clone(p, w)
		}
	}
	if err != nil {
		return startRefusal(err)
	}
	return nil
}

// clone clones the program into its cgroup, with its ends of the wires.
func (e *execution) clone(p program, w *wires) (err error) {
	pidfd := -1
	attr := &syscall.ProcAttr{Dir: p.dir, Env: p.env, Files: make([]uintptr, len(w.program))}
	attr.Sys = &syscall.SysProcAttr{Setsid: true, Setctty: w.screen != nil, Credential: p.who.credential(), PidFD: &pidfd}
	for i, fd := range w.program {
		if fd < 0 {
			fd = e.agent.null
		}
		attr.Files[i] = uintptr(fd)
	}
	if e.group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, e.group.fd
	}
	e.agent.fork(func() { e.pid, _, err = syscall.StartProcess(p.path, p.argv, attr) })
	if err != nil {
		return err
	}
	if pidfd >= 0 {
		e.pidfd, err = polled(pidfd, "pidfd")
	} else {
		err = errors.New("the kernel gives no pidfd")
	}
	if err != nil {
		_ = unix.Kill(-e.pid, unix.SIGKILL)
		_, _ = unix.Wait4(e.pid, nil, 0, nil)
	}
	return err
}

// usualSlack is the timer slack of programs, as everywhere (prctl(2)).
const usualSlack = 50 * time.Microsecond

// fork runs fn, which starts a program, on a thread that has nothing which the
// program must not inherit. The agent itself may be chosen by the kernel's OOM
// killer meanwhile: a program that started with its oom_score_adj never would be.
func (a *Agent) fork(fn func()) {
	a.forking.Lock()
	defer a.forking.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = setTimerSlack(usualSlack) // fails on no kernel; the thread needs no other from now on
	if a.oomScore != nil {
		_, _ = a.oomScore.WriteAt([]byte("0"), 0)
		defer func() { _, _ = a.oomScore.WriteAt([]byte("-1000"), 0) }()
	}
	fn()
}

// protect keeps the kernel's OOM killer away from the calling process, and
// returns the file that says so.
func protect() (*os.File, error) {
	file, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := file.WriteString("-1000"); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// startRefusal names what the kernel said when it was asked to start a program
// that looked fine. A script or program whose interpreter is missing is a
// command that was not found.
func startRefusal(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return refuse(guestwire.CommandNotFound, err.Error())
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC): // 126 to a shell, both
		return refuse(guestwire.PermissionDenied, err.Error())
	default:
		return refuse(guestwire.StartFailed, err.Error())
	}
}
