// Package guest is the guest agent: the program that the host brings into
// every microVM at boot, and that runs executions, moves files and gives the
// guest its identity on the host's word. The protocol is package guestwire.
//
// It owns, in the guest: PID 1 (Boot), which mounts what the kernel needs,
// starts the worker and from then on only reaps; and the worker (Work), which
// serves the host on vsock. It must not know anything of the host: no sandbox,
// no tenant, no timeout. It runs beside hostile code that may be root, so it
// stays small and protects itself only against being starved; the host
// believes nothing that it says.
//
// An execution starts -> runs -> ends (its program exited, output may still be
// pulled) -> is forgotten. It has its own process group, session and, where
// there is a cgroup tree, cgroup.
//
// Agent itself needs neither PID 1 nor vsock nor root: New with a Config that
// names a directory serves the same protocol on any listener, for tests and
// for a fake microVM on the host.
package guest
