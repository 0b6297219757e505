# Runs as root in a guest: takes the listening socket of the agent over, holds the
# agent still, ends its connections, and answers file calls in its place as argv[1]
# says. A look at /taken is answered well, so that the test knows when it is there.
import base64, ctypes, json, os, signal, socket, subprocess, sys, threading, time, urllib.parse

way = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # the same on all architectures


def steal():
    for pid in map(int, subprocess.check_output(["pgrep", "-x", "guestd"]).split()):
        if pid == 1:
            continue
        os.kill(pid, signal.SIGSTOP)
        listener = None
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        for name in os.listdir(f"/proc/{pid}/fd"):
            fd = libc.syscall(PIDFD_GETFD, pidfd, int(name), 0)
            if fd < 0:
                continue
            try:
                s = socket.socket(fileno=fd)
                if s.family == socket.AF_VSOCK and s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listener = s
                    continue
                if s.family == socket.AF_VSOCK:
                    s.shutdown(socket.SHUT_RDWR)  # or calls would wait for the agent there
                s.detach()
            except OSError:
                pass
            os.close(fd)
        if listener:
            return listener
    sys.exit("no listening socket of the agent")


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def entry(name, /, **more):
    e = {"path": b64(name), "type": "file", "size": 1, "mode": "0644", "uid": 0, "gid": 0, "modified_ns": 1, "inode": 1}
    e.update(more)
    return {k: v for k, v in e.items() if v is not None}


def line(value):
    return json.dumps(value).encode() + b"\n"


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n" % len(data) + data + b"\r\n"


def whole(data, head=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(data) + data


def endless(conn, data, pause=0.0):
    while True:
        conn.sendall(data)
        if pause:
            time.sleep(pause)


def listing(conn, *lines):
    """a list; one that has an end ends as HTTP wants, but for that which goes back"""
    end = b"0\r\n\r\n" if lines and way not in ("list back", "list cut") else b""
    conn.sendall(CHUNKED + chunk(line(entry("/workspace", type="directory"))) + b"".join(chunk(line(one)) for one in lines) + end)


def answer(conn, method, path, query):
    if not path.startswith(("/v1/files", "/v1/archive")):
        time.sleep(3600)
    elif query.get("path") == ["/taken"]:
        conn.sendall(whole(line(entry("/taken"))))
    elif way == "list for ever":
        listing(conn)
        for i in range(1 << 62):
            conn.sendall(chunk(b"".join(line(entry("/workspace/%019d" % (i * 100 + j))) for j in range(100))))
    elif way == "line for ever":
        conn.sendall(CHUNKED)
        endless(conn, chunk(b'{"path":"' + b"A" * 65536))
    elif way == "spaces for ever":
        conn.sendall(CHUNKED)
        endless(conn, chunk(b" " * 65536))
    elif way == "signs for ever":
        conn.sendall(CHUNKED)
        endless(conn, chunk(b" "), 0.2)
    elif way == "list up":
        listing(conn, entry("/workspace/../etc/passwd"), {"more": False})
    elif way == "list elsewhere":
        listing(conn, entry("/etc/passwd"), {"more": False})
    elif way == "list back":
        listing(conn, entry("/workspace/b"), entry("/workspace/a"), {"more": False})
    elif way == "list deep":
        listing(conn, entry("/workspace/a/b/c/d"), {"more": False})
    elif way == "list more than asked":
        listing(conn, *(entry("/workspace/%04d" % i) for i in range(1001)), {"more": True})
    elif way == "list on":
        listing(conn, {"more": False}, entry("/workspace/late"))
    elif way == "list cut":
        listing(conn, entry("/workspace/a"))
        conn.close()
    elif way.startswith("wrong entry"):
        wrong = [{"size": -1}, {"type": "portal"}, {"mode": "99999"}, {"mode": "rwx"}, {"uid": -1}, {"uid": 1 << 40}, {"target": b64("x")},
                 {"type": "symlink", "target": b64("x" * 5000)}, {"path": b64("relative")}, {"path": b64("/x/../y")}, {"path": b64("/other")}, {"path": None},
                 {"path": "no base64 !"}, {"size": 1 << 70}, {"modified_ns": "yesterday"}, {"path": b64("/x\0y")}]
        conn.sendall(whole(line(entry(query["path"][0], **wrong[int(way.split()[-1])]))))
    elif way == "body too short":
        conn.sendall(whole(b"", b"File: " + line(entry("", path=None, size=1000000)).strip() + b"\r\n").replace(b"Content-Length: 0", b"Content-Length: 1000000") + b"x" * 100)
        conn.close()
    elif way == "body that is another's":
        conn.sendall(whole(b"x" * 100, b"File: " + line(entry("", path=None, size=99)).strip() + b"\r\n"))
    elif way == "body without a file":
        conn.sendall(whole(b"x" * 100))
    elif way == "huge body":
        conn.sendall(whole(b"", b"File: " + line(entry("", path=None, size=1 << 62)).strip() + b"\r\n").replace(b"Content-Length: 0", b"Content-Length: %d" % (1 << 62)))
        endless(conn, b"x" * 65536)
    elif way == "huge header":
        conn.sendall(b"HTTP/1.1 200 OK\r\nFile: ")
        endless(conn, b"x" * 65536)
    elif way == "archive for ever":
        conn.sendall(CHUNKED)
        endless(conn, chunk(b"\0" * 65536))
    elif way == "changes for ever":
        conn.sendall(CHUNKED + chunk(line({"path": b64("/workspace")})))
        endless(conn, chunk(line({"type": "created", "path": b64("/workspace/x")}) * 500))
    elif way == "changes elsewhere":
        conn.sendall(CHUNKED + chunk(line({"path": b64("/workspace")}) + line({"type": "created", "path": b64("/etc/x")})))
        time.sleep(3600)
    elif way == "impossible sums":
        conn.sendall(whole(line({"entries": -5 if method == "DELETE" else [], "bytes": -1})))
    elif way == "unknown refusal":
        text = line({"code": "sudo", "detail": "<script>" * 1000})
        conn.sendall(b"HTTP/1.1 404 Refused\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


def serve(conn):
    data = b""
    try:
        while True:
            while b"\r\n\r\n" not in data:
                more = conn.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            if b"chunked" in head.lower():  # a body without a length: to its end
                while not data.endswith(b"0\r\n\r\n"):
                    data += conn.recv(65536)
                data = b""
            for field in head.split(b"\r\n"):
                if field.lower().startswith(b"content-length:"):
                    left = int(field.split(b":")[1])
                    while len(data) < left:
                        data += conn.recv(65536)
                    data = data[left:]
            path, _, query = target.partition("?")
            answer(conn, method, path, urllib.parse.parse_qs(query))
    except (OSError, ValueError):
        pass


listener = steal()
listener.setblocking(True)
while True:
    conn, _ = listener.accept()
    conn.setblocking(True)
    threading.Thread(target=serve, args=(conn,), daemon=True).start()
