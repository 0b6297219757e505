package machine

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Identity is a process that cannot be mistaken for a later one with the same number: its pid and its start time in clock
// ticks since boot (field 22 of /proc/PID/stat, proc(5)), together with the boot it belongs to.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_ticks"`
	Boot  string `json:"boot_id"`
}

// identify reads the identity of the live process pid. A zombie is not alive.
func identify(pid int) (Identity, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	start, state, err := parseStat(text)
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return Identity{}, fmt.Errorf("identify process %d: it has ended", pid)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, Start: start, Boot: string(bytes.TrimSpace(boot))}, nil
}

// parseStat reads state and start time. The command name may hold blanks and parentheses: fields count from its last one.
func parseStat(text []byte) (start uint64, state byte, err error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("no command name in stat")
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%d fields after the command name in stat, want 20", len(fields))
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return start, fields[0][0], err
}

// Alive says whether this very process still runs.
func (i Identity) Alive() bool {
	if i.PID <= 0 {
		return false
	}
	now, err := identify(i.PID)
	return err == nil && now == i
}

// signal sends to this very process, or says os.ErrProcessDone. os.FindProcess opens a pidfd, so the process checked after
// it is the one signalled.
func (i Identity) signal(s os.Signal) error {
	p, err := os.FindProcess(i.PID)
	if err != nil {
		return os.ErrProcessDone
	}
	defer func() { _ = p.Release() }()
	if !i.Alive() {
		return os.ErrProcessDone
	}
	return p.Signal(s)
}
