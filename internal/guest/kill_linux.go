package guest

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// killAll kills what belongs to an execution, also after its program ended.
func (a *Agent) killAll(e *execution) error {
	if a.tree != nil {
		return a.tree.kill(e.id)
	}
	killSession(e.pid)
	return nil
}

// killSession kills what is left of a session where there is no cgroup. The
// number of a session is not used again while it has members.
func killSession(session int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if sid, err := unix.Getsid(pid); err == nil && sid == session {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// exposed runs fn, which starts a program, while the agent itself may be
// chosen by the kernel's OOM killer: a child inherits oom_score_adj, and one
// that started with the agent's would never be chosen.
func (a *Agent) exposed(fn func()) {
	a.forking.Lock()
	defer a.forking.Unlock()
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
