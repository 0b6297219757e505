// Package machine owns the emulated host: a whole AMD machine with SVM in software, by QEMU, in which the released
// Firecracker and jailer run unchanged where the real machine has no usable KVM. It builds the two cached roots (QEMU's own
// and the host's), owns each machine's directory, starts and stops it, puts files into it and says what state it is in.
//
// It must not know what a sandbox, an image or the API is: programs and artifacts are files that its caller names, and the
// daemon in the host is one systemd unit with a health route.
//
// A machine is one directory:
//
//	machine.json     settings, ports, machine id          data.img      persistent disk, /var/lib/microvm in the host
//	run.json         the live keeper and QEMU, by identity mailbox.img   raw disk through which files enter the host
//	exit.json        how the last run ended               serial.log    the host's console, two files of 1 MiB at most
//	endpoint.json    URL and key for the command line     id_ed25519 .. key pair, the host's key, known_hosts
//
// States: StateAbsent (no directory), StateStopped (ended as asked, or powered itself off), StateRunning, StateCrashed
// (everything else; Status.Reason says what). One process, the keeper, owns a running machine: it holds the lock keeper.lock
// for its whole life, is QEMU's parent, reads its console, and writes down how it ended. QEMU dies with its keeper.
//
// Emulation is no security boundary: QEMU's TCG is not meant to hold hostile code. That QEMU runs in a root of its own, as
// nobody, with its disks as descriptors only, is order, not a promise.
package machine
