# Runs in a guest: exchanges the directory argv[1]/d and the link argv[1]/l, which
# leads elsewhere each time, as fast as it can.
import ctypes, os, shutil, sys

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, EXCHANGE = -100, 2
TARGETS = [b"/etc", b"/proc/1/root", b"/dev", b"/outside", b"/proc/self/cwd/..", b"../../../../../.."]
os.chdir(sys.argv[1])
count = 0


def fresh():
    """whatever is left, d is a directory again and l a link"""
    for name in (b"d", b"l"):
        try:
            os.unlink(name)
        except IsADirectoryError:
            shutil.rmtree(name, ignore_errors=True)
        except OSError:
            pass
    try:
        os.makedirs(b"d/sub")
        open(b"d/own", "w").write("own")
        os.symlink(TARGETS[count % len(TARGETS)], b"l")
    except OSError:
        pass


fresh()
print("ready", flush=True)
while True:
    count += 1
    if libc.renameat2(AT_FDCWD, b"d", AT_FDCWD, b"l", EXCHANGE) != 0 or count % 512 == 0:
        fresh()
    if count % 256 == 0:
        print(count, flush=True)
