package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Result is one figure beside its floor. Ratio is of the medians.
type Result struct {
	Name     string  `json:"name"`
	Title    string  `json:"title"`
	Subject  string  `json:"measured_is"`
	FloorIs  string  `json:"floor_is"`
	Measured Stats   `json:"measured"`
	Floor    Stats   `json:"floor"`
	Ratio    float64 `json:"ratio"`
	Goal     float64 `json:"goal"` // the greatest ratio that is wanted
	GoalMet  bool    `json:"goal_met"`
}

// Host is where the figures come from.
type Host struct {
	Kernel      string `json:"kernel"`
	Arch        string `json:"arch"`
	CPUs        int    `json:"cpus"`
	KVM         string `json:"kvm"` // the verdict of "microvm doctor --kvm"
	Firecracker string `json:"firecracker"`
	VCPUs       int    `json:"vcpus"`   // of each microVM
	MemMiB      int    `json:"mem_mib"` // of each microVM
	Image       string `json:"image"`
}

// Report is one run of the benchmarks.
type Report struct {
	Object  string   `json:"object"` // "benchmark"
	Version string   `json:"version"`
	Host    Host     `json:"host"`
	Rounds  int      `json:"rounds"`
	Figures []Result `json:"figures"`

	Memory    []MemoryResult   `json:"memory,omitempty"`
	Languages []LanguageResult `json:"languages,omitempty"`
}

// Table is the report for people.
func (r Report) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s %s, %d CPUs, KVM %s, Firecracker %s; %s with %d vCPU and %d MiB; %d rounds\n\n",
		r.Host.Kernel, r.Host.Arch, r.Host.CPUs, r.Host.KVM, r.Host.Firecracker, r.Host.Image, r.Host.VCPUs, r.Host.MemMiB, r.Rounds)
	figureTable(&b, r.Figures)
	b.WriteString(memoryTable(r.Memory))
	b.WriteString(languageTable(r.Languages))
	if r.Host.KVM != "hardware" {
		b.WriteString("\nThis host's KVM is not hardware: only the ratios mean something.\n")
	}
	return b.String()
}

func figureTable(b *strings.Builder, results []Result) {
	if len(results) == 0 {
		return
	}
	table := tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)
	say(table, "FIGURE\tMEDIAN\tP95\tFLOOR\tFLOOR P95\tRATIO\tGOAL\n")
	for _, f := range results {
		verdict := map[bool]string{true: "met", false: "MISSED"}[f.GoalMet]
		say(table, "%s\t%s\t%s\t%s\t%s\t%.2fx\t<= %.2fx, %s\n", f.Title, millis(f.Measured.Median), millis(f.Measured.P95),
			millis(f.Floor.Median), millis(f.Floor.P95), f.Ratio, f.Goal, verdict)
	}
	_ = table.Flush() // a strings.Builder takes everything
	b.WriteString("\n")
	for _, f := range results {
		fmt.Fprintf(b, "%s: %s. Floor: %s.\n", f.Title, f.Subject, f.FloorIs)
	}
}

func millis(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.2f ms", ms)
	}
}
