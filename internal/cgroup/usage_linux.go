package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPUTime is the processor time that all processes ever in the cgroup have
// used, those that ended too. A cgroup that is not there is an error: a reading
// of zero after one of seconds would look like a clock that stands.
func (c *Cgroups) CPUTime(_ context.Context, host string) (time.Duration, error) {
	dir, err := c.path(host)
	if err != nil {
		return 0, err
	}
	used, err := cpuTime(dir)
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return used, nil
}

// cpuTime reads usage_usec of cpu.stat, which is there without the cpu
// controller as well.
func cpuTime(dir string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			micros, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(micros) * time.Microsecond, err
		}
	}
	return 0, errors.New("cpu.stat says nothing of usage_usec")
}
