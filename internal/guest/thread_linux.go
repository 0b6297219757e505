package guest

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThreadGroups sets the supplementary groups of the calling thread only.
func setThreadGroups(groups []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0) //nolint:gosec // setgroups(2) takes a pointer
	if errno != 0 {
		return errno
	}
	return nil
}

// nameThread names the calling thread; the first one's name is what ps shows,
// which would else be that of /proc/self/exe.
func nameThread(name string) error {
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0) //nolint:gosec // prctl(2) takes a pointer
}

// setTimerSlack sets how late the calling thread's timers may be. Threads and
// processes that it starts inherit it (prctl(2), PR_SET_TIMERSLACK).
func setTimerSlack(slack time.Duration) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	return nil
}
