// Package bench owns the figures of "microvm bench": each is measured beside a
// floor, which is the same work done by as little code as possible, in the same
// run and in turns, so that their ratio holds on any host.
//
// A floor is independent on purpose. It knows nothing of internal/firecracker:
// it drives jailer and VMM by code of its own, with the files and limits that it
// reads off a sandbox of the daemon. It sleeps for at most 1 ms at a time, and
// starts no shell and no mkfs while the clock runs.
//
// States of one figure: open (what it needs is made, each with its undo) ->
// warm (one round that does not count) -> measured -> closed (every undo ran,
// also after an error or an interruption).
package bench
