// Package contract tests what a user of the daemon can see and no kernel is
// needed for: the real microvmd, built with the fake host below its sandboxes
// (tag fakevmm), as a process of its own, by HTTP, by sdk/go and by the real
// microvm. It owns no rule of the daemon's; packages test theirs themselves,
// and e2e/ tests what only a booted microVM shows.
//
// What the fake may be trusted with is said by internal/testkit/hosttest.
package contract
