package bench

import (
	"math"
	"slices"
	"time"
)

// Stats sums up the samples of one side of a figure, in milliseconds.
type Stats struct {
	Median  float64   `json:"median_ms"`
	P95     float64   `json:"p95_ms"`
	Samples []float64 `json:"samples_ms"` // in the order in which they were taken
}

// Summarize sums up at least one sample. The median of an even number is the
// mean of the middle two; p95 is the nearest rank: the least sample that is not
// below 95 of 100, which is the greatest when there are fewer than 20.
func Summarize(samples []time.Duration) Stats {
	s := Stats{Samples: make([]float64, len(samples))}
	for i, d := range samples {
		s.Samples[i] = math.Round(float64(d)/float64(time.Microsecond)) / 1000
	}
	sorted := slices.Sorted(slices.Values(s.Samples))
	n := len(sorted)
	if n == 0 {
		return s
	}
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	s.P95 = sorted[(95*n+99)/100-1]
	return s
}
