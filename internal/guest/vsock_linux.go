package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// The hello is tried until the host says ok: each try may take helloTry, the
// next comes helloPoll later, and after helloWait the agent gives up.
const (
	helloTry  = 5 * time.Second
	helloPoll = 20 * time.Millisecond
	helloWait = 2 * time.Minute
)

// vsockListener accepts connections of the host and closes every other.
type vsockListener struct {
	file *os.File
	port uint32
}

// listenVsock listens on a port of every context id that the guest has.
func listenVsock(port uint32) (*vsockListener, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("listen on vsock: %w", err)
	}
	file := os.NewFile(uintptr(fd), "vsock") //nolint:gosec // a descriptor is not negative
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("listen on vsock: %w", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("listen on vsock: %w", err)
	}
	return &vsockListener{file: file, port: port}, nil
}

// Accept waits for the host. Close unblocks it.
func (l *vsockListener) Accept() (net.Conn, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		fd, peer, failed := -1, unix.Sockaddr(nil), error(nil)
		err := raw.Read(func(listener uintptr) bool {
			fd, peer, failed = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return nil, err
		case errors.Is(failed, unix.EINTR), errors.Is(failed, unix.ECONNABORTED):
			continue
		case failed != nil:
			return nil, failed
		}
		conn := vsockConn{os.NewFile(uintptr(fd), "vsock"), vsockAddr{guestwire.HostCID, l.port}} //nolint:gosec // see above
		if from, ok := peer.(*unix.SockaddrVM); ok && from.CID == guestwire.HostCID {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// Close stops listening.
func (l *vsockListener) Close() error { return l.file.Close() }

// Addr is the address that is listened on.
func (l *vsockListener) Addr() net.Addr { return vsockAddr{unix.VMADDR_CID_ANY, l.port} }

// vsockConn is a connection with deadlines: package os polls the descriptor.
type vsockConn struct {
	*os.File
	addr vsockAddr
}

func (c vsockConn) LocalAddr() net.Addr  { return c.addr }
func (c vsockConn) RemoteAddr() net.Addr { return c.addr }

type vsockAddr struct{ cid, port uint32 }

func (vsockAddr) Network() string  { return "vsock" }
func (a vsockAddr) String() string { return fmt.Sprintf("%d:%d", a.cid, a.port) }

// sayHello tells the host that the agent is ready.
func sayHello(hello guestwire.Hello) error {
	deadline := time.Now().Add(helloWait)
	for {
		err := tryHello(hello)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("say hello: %w", err)
		}
		time.Sleep(helloPoll)
	}
}

func tryHello(hello guestwire.Hello) error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "vsock") //nolint:gosec // a descriptor is not negative
	defer func() { _ = file.Close() }()
	limit := unix.NsecToTimeval(helloTry.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrVM{CID: guestwire.HostCID, Port: guestwire.HelloPort}); err != nil {
		return err
	}
	if err := json.NewEncoder(file).Encode(hello); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(file, 64)).ReadString('\n')
	if err != nil {
		return err
	}
	if line != "ok\n" {
		return errors.New("the host did not say ok")
	}
	return nil
}
