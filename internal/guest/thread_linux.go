package guest

import (
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
