package bench

import (
	"strings"
	"testing"
)

func TestMemoryOfAProcess(t *testing.T) {
	const status = "Name:\tguestd\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t 1 kB\n"
	for name, want := range map[string]int64{"VmRSS": 1 << 20, "VmHWM": 2 << 20, "Vm": -1, "VmSwap": -1, "Name": -1} {
		if got, err := residentOf(status, name); got != want && (want >= 0 || err == nil) {
			t.Errorf("%s: %d %v", name, got, err)
		}
	}
	if _, err := residentOf("", "VmRSS"); err == nil {
		t.Error("nothing has memory")
	}
}

func TestMemoryIsJudgedByBothEnds(t *testing.T) {
	const little, much = 31 << 20, 32 << 20
	for _, c := range []struct {
		daemon, agent int64
		met           bool
	}{{0, 0, true}, {-5, little, true}, {little, little, true}, {much, 0, false}, {0, much, false}} {
		m := MemoryResult{Title: "upload of 300 MB", Daemon: Growth{50 << 20, 50<<20 + c.daemon}, Agent: Growth{8 << 20, 8<<20 + c.agent}}
		m.judge()
		if m.GoalMet != c.met {
			t.Errorf("%+v", m)
		}
		table := Report{Memory: []MemoryResult{m}}.Table()
		if verdict := map[bool]string{true: "32.0 MiB, met", false: "MISSED"}[c.met]; !strings.Contains(table, verdict) || strings.Contains(table, "FIGURE") {
			t.Errorf("the table is\n%s", table)
		}
	}
}
