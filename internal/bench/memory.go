package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

const (
	// MemoryName is the figure of memory that Names has.
	MemoryName = "file-memory"

	memoryBytes = 300_000_000 // of the file
	memoryWarm  = 8 << 20     // of the one before it, which makes what every first transfer makes
	memoryGoal  = 32 << 20    // bytes that a process may take more, whatever the size
)

// MemoryResult is what one transfer of a file takes of the memory of both ends.
type MemoryResult struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Bytes   int64   `json:"bytes"`   // of the file
	Seconds float64 `json:"seconds"` // that the transfer took
	Daemon  Growth  `json:"daemon"`
	Agent   Growth  `json:"agent"` // the agent's worker, in the guest
	Goal    int64   `json:"goal"`  // the greatest growth that is wanted, bytes
	GoalMet bool    `json:"goal_met"`
}

// Growth is the resident memory of a process before and at its peak, bytes.
type Growth struct {
	Before int64 `json:"before"`
	Peak   int64 `json:"peak"`
}

// By is how much it grew, bytes.
func (g Growth) By() int64 { return max(g.Peak-g.Before, 0) }

func (m *MemoryResult) judge() {
	m.Goal = memoryGoal
	m.GoalMet = m.Daemon.By() < m.Goal && m.Agent.By() < m.Goal
}

// residentOf reads a line of /proc/PID/status, bytes.
func residentOf(status, name string) (int64, error) {
	_, rest, _ := strings.Cut("\n"+status, "\n"+name+":")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("read memory of process: no %s in %.100q", name, status)
	}
	return kib << 10, nil
}

// memoryTable is the part of the report that has memory, for people.
func memoryTable(results []MemoryResult) string {
	if len(results) == 0 {
		return ""
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	say(table, "MEMORY\tTOOK\tDAEMON BEFORE\tGREW BY\tAGENT BEFORE\tGREW BY\tGOAL\n")
	for _, m := range results {
		verdict := map[bool]string{true: "met", false: "MISSED"}[m.GoalMet]
		say(table, "%s\t%.0f s\t%s\t%s\t%s\t%s\t< %s, %s\n", m.Title, m.Seconds,
			mebibytes(m.Daemon.Before), mebibytes(m.Daemon.By()), mebibytes(m.Agent.Before), mebibytes(m.Agent.By()), mebibytes(m.Goal), verdict)
	}
	_ = table.Flush() // a strings.Builder takes everything
	say(&b, "\nResident memory of microvmd, and of the agent's worker in the guest: before, and at its peak during one transfer through the SDK.\n")
	return b.String()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
