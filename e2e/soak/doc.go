// Package soak uses a node as many callers at once do, kills its daemon and its
// VMMs meanwhile, writes down every answer, and afterwards holds all answers
// against each other: whatever a caller was told must have stayed true.
//
// It owns the workload (Work), the history that it records and the checker that
// replays it (Check). It knows a node only by a Driver; there is one for the
// fake host, in this package's tests, and one for real microVMs in soak/real.
package soak
