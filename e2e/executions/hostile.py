# Runs as root in a guest: takes the listening socket of the agent over, holds
# the agent still, and answers the host in its place as argv[1] says.
import ctypes, json, os, signal, socket, struct, subprocess, sys, threading, time

way = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # the same on all architectures


def steal():
    for pid in map(int, subprocess.check_output(["pgrep", "-x", "guestd"]).split()):
        if pid == 1:
            continue
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        for name in os.listdir(f"/proc/{pid}/fd"):
            fd = libc.syscall(PIDFD_GETFD, pidfd, int(name), 0)
            if fd < 0:
                continue
            try:
                s = socket.socket(fileno=fd)
                if s.family == socket.AF_VSOCK and s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return pid, s
                s.detach()
            except OSError:
                pass
            os.close(fd)
    sys.exit("no listening socket of the agent")


def request(conn):
    """reads one request: its line, and its body if that has a length"""
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return None, b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += conn.recv(65536)
    return head.split(b"\r\n")[0].decode(), body


def frame(kind, offset, payload):
    return struct.pack(">BIQ", kind, len(payload), offset) + payload


STARTED = frame(4, 0, b'{"pid":42}')
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n" % len(data) + data + b"\r\n"


def whole(data, status=b"200 OK"):
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def pull_of(body):
    asked = json.loads(body or b"{}")
    return asked.get("pull", asked).get("stdout", 0)


def endless(conn, data, pause=0.0):
    while True:
        conn.sendall(data)
        if pause:
            time.sleep(pause)


def answer(conn, line, body):
    if way == "headers":
        conn.sendall(b"HTTP/1.1 200 OK\r\n")
        endless(conn, b"X-Padding: " + b"a" * 1000 + b"\r\n")
    elif way == "one header":
        conn.sendall(b"HTTP/1.1 200 OK\r\nX-Padding: ")
        endless(conn, b"a" * 4096)
    elif way == "continues":
        endless(conn, b"HTTP/1.1 100 Continue\r\n\r\n")
    elif way == "body":
        conn.sendall(CHUNKED + chunk(STARTED))
        endless(conn, chunk(b"\0" * 65536))
    elif way == "length":
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\n" + STARTED)
        endless(conn, b"\1" * 65536)
    elif way == "short":
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + STARTED)
        conn.close()
    elif way == "drip":
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        endless(conn, b"\4", 0.5)
    elif way == "deep":
        conn.sendall(whole(b"[" * 60000, b"404 Refused"))
    elif way == "huge frame":
        conn.sendall(CHUNKED + chunk(STARTED + struct.pack(">BIQ", 1, 0xFFFFFFFF, 0)))
        endless(conn, chunk(b"\0" * 65536))
    elif way == "a million frames":  # by and by
        at = pull_of(body)
        part = b"".join(frame(1, at + i, b"x") for i in range(5000))
        conn.sendall(whole(STARTED + part))
    elif way == "redirect":
        conn.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/../../etc/passwd\r\nContent-Length: 0\r\n\r\n")
    elif way == "lies":
        conn.sendall(whole(STARTED + frame(3, 0, b'{"exit_code":0,"signal":"","oom_killed":false,"stdout_bytes":999,"stderr_bytes":0}')))
    elif way == "silent":
        time.sleep(3600)
    elif way == "closes":
        conn.close()


def serve(conn):
    try:
        while True:
            line, body = request(conn)
            if line is None:
                return
            answer(conn, line, body)
    except (OSError, ValueError):
        pass


pid, listener = steal()
os.setsid() if os.getpgrp() != os.getpid() else None
os.kill(pid, signal.SIGSTOP)
listener.setblocking(True)
while True:
    conn, _ = listener.accept()
    conn.setblocking(True)
    threading.Thread(target=serve, args=(conn,), daemon=True).start()
