# Runs as root in a guest: makes in argv[1] whatever a file call could be lost in,
# and holds locks, leases and pipes for as long as it lives.
import fcntl, os, socket, sys

os.makedirs(sys.argv[1])
os.chdir(sys.argv[1])
os.mkfifo("fifo")
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket")
listener.listen()
os.mknod("null", 0o666 | 0o020000, os.makedev(1, 3))
os.mknod("zero", 0o666 | 0o020000, os.makedev(1, 5))
os.mknod("terminal", 0o666 | 0o020000, os.makedev(5, 0))
os.mknod("disk", 0o666 | 0o060000, os.makedev(254, 0))
read, write = os.pipe()
for name, target in {
    "to-zero": "/dev/zero", "to-vda": "/dev/vda", "to-vdb": "/dev/vdb", "to-serial": "/dev/ttyS0", "to-console": "/dev/console", "to-random": "/dev/random",
    "to-kmsg": "/proc/kmsg", "to-dev-kmsg": "/dev/kmsg", "to-mem": "/proc/self/mem", "to-maps": "/proc/1/maps", "to-pagemap": "/proc/self/pagemap",
    "to-pipe": f"/proc/{os.getpid()}/fd/{read}", "to-fds": "/proc/self/fd", "to-root": "/proc/1/root", "to-cwd": "/proc/self/cwd", "to-proc": "/proc",
    "to-sys": "/sys", "to-above": "../../../../../../../..", "to-vsock": "/dev/vsock", "to-none": "/nothing/here", "itself": "itself", "one": "two", "two": "one",
    "to-parent": "..", "to-here": ".",
}.items():
    os.symlink(target, name)
for name in ("leased", "locked"):
    open(name, "w").write("content")
leased = open("leased", "r+")
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
import signal
signal.signal(signal.SIGIO, signal.SIG_IGN)  # who breaks the lease waits
locked = open("locked", "r+")
fcntl.flock(locked, fcntl.LOCK_EX)
fcntl.lockf(locked, fcntl.LOCK_EX)
os.mkdir("deep")
os.chdir("deep")
for i in range(1500):
    os.mkdir("d" * 9)
    os.chdir("d" * 9)
os.chdir(sys.argv[1])
os.mkdir("wide")
for i in range(3000):
    open(f"wide/{i}", "w").close()
print("ready", flush=True)
signal.pause()
