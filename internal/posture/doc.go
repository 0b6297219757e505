// Package posture reads a host and says what is short for running microVMs.
// It owns the findings that `microvm doctor` prints: for each, what was read,
// what is wanted, and how to get there.
//
// It changes nothing on the host and asks no daemon. It must not know how
// anything is repaired beyond naming the step. What could not be read is
// Unknown and never OK.
package posture

// Status is the judgement of one finding.
type Status string

// The statuses, from best to worst.
const (
	OK      Status = "ok"      // as wanted
	Warn    Status = "warn"    // works, and is worse than it should be
	Unknown Status = "unknown" // could not be read: neither good nor bad
	Fail    Status = "fail"    // a microVM cannot run, or not safely
)

var rank = map[Status]int{OK: 0, Warn: 1, Unknown: 2, Fail: 3}

// Finding is one thing that was looked at.
type Finding struct {
	ID     string `json:"id"` // stable, for scripts
	Status Status `json:"status"`
	Read   string `json:"read"`   // what was found
	Wanted string `json:"wanted"` // what it should be
	Fix    string `json:"fix"`    // how to get there; empty when OK
}

// Worst is the worst status among findings; OK for none.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		if rank[f.Status] > rank[worst] {
			worst = f.Status
		}
	}
	return worst
}
