package guest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// How the guest's memory and process numbers are shared out. The agent's part
// is what its runtime takes (agentBase) and what executions keep of output.
const (
	agentBase   = 24 << 20 // bytes
	keepPart    = 32       // of the guest's memory, one such part
	keepLeast   = 4 << 20  // bytes
	keepMost    = 64 << 20 // bytes
	leastMemory = 16 << 20 // bytes that programs get in any case
)

// makeGroups makes the cgroup of PID 1 and worker, and the one under which
// executions have theirs, with limits that leave the agent alive under a fork
// or memory bomb.
func makeGroups() error {
	controllers := []byte("+memory +pids +cpu")
	if err := os.WriteFile(cgroupMount+"/cgroup.subtree_control", controllers, 0); err != nil {
		return fmt.Errorf("enable cgroup controllers: %w", err)
	}
	memory, err := guestMemory()
	if err != nil {
		return err
	}
	processes, err := guestProcesses()
	if err != nil {
		return err
	}
	own := agentBase + keepTotal(memory)
	table := []struct{ file, value string }{
		{agentGroup + "/cpu.weight", "1000"},
		{agentGroup + "/memory.low", strconv.FormatInt(own, 10)},
		{agentGroup + "/cgroup.procs", "0"},
		{programGroup + "/cpu.weight", "100"},
		{programGroup + "/memory.max", strconv.FormatInt(max(memory-own, leastMemory), 10)},
		{programGroup + "/pids.max", strconv.FormatInt(processes, 10)},
		{programGroup + "/cgroup.subtree_control", string(controllers)},
	}
	for _, group := range []string{agentGroup, programGroup} {
		if err := os.Mkdir(group, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	for _, entry := range table {
		if err := os.WriteFile(entry.file, []byte(entry.value), 0); err != nil {
			return fmt.Errorf("set up cgroups: %w", err)
		}
	}
	return nil
}

// keepTotal is Config.KeepTotal for a guest of that much memory.
func keepTotal(memory int64) int64 {
	return min(max(memory/keepPart, keepLeast), keepMost)
}

func guestMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil //nolint:gosec,unconvert // far below 2^63; the width differs by architecture
}

// guestProcesses is three quarters of what the kernel allows at all.
func guestProcesses() (int64, error) {
	least := int64(0)
	for _, file := range []string{"/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, fmt.Errorf("read limit of processes: %w", err)
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read limit of processes: %w", err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return max(least*3/4, 64), nil
}
