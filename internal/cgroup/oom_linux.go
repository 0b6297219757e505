package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OOMKilled reports whether the kernel's OOM killer ended a process of the cgroup
// or of one nested in it: for memory.max, here or further up, or because the host
// was out of memory. A SIGKILL from anybody else does not count.
//
// The kernel counts before it sends the signal (__oom_kill_process in
// mm/oom_kill.c), so what is read of an empty cgroup is final. One that is not
// there is an error: nobody knows what became of its processes.
func (c *Cgroups) OOMKilled(_ context.Context, host string) (bool, error) {
	dir, err := c.path(host)
	if err != nil {
		return false, err
	}
	kills, err := oomKills(dir)
	if err != nil {
		return false, fmt.Errorf("read OOM kills: %w", err)
	}
	return kills > 0, nil
}

// oomKills reads oom_kill of memory.events, which has the nested ones in it: a
// jailer that nests its VMM changes nothing.
func oomKills(dir string) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, "memory.events"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("memory.events says nothing of oom_kill")
}
