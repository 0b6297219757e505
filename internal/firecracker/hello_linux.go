package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	maxHello    = 4 << 10                // bytes of the hello
	maxGoodbye  = 4 << 10                // bytes that a guest may send after its hello before it closes
	helloLook   = 200 * time.Millisecond // between two looks whether the VMM still lives
	helloWait   = 15 * time.Second       // for the line, on one connection
	goodbyeWait = 10 * time.Second       // for the guest to close; the hello counts without it
)

var helloVersion = regexp.MustCompile(`^[0-9A-Za-z.+_-]{1,64}$`)

// helloListener waits for the guest's hello on a socket in the jail.
type helloListener struct {
	socket *net.UnixListener
	once   sync.Once
}

func (h *helloListener) close() { h.once.Do(func() { _ = h.socket.Close() }) }

// listenHello makes the socket to which Firecracker connects when the guest
// calls guestwire.HelloPort on the host. Connecting needs write permission.
func listenHello(dir int, name string, uid int) (*helloListener, error) {
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // by then the path may lead elsewhere
	err = unix.Fchmodat(dir, name, 0o600, 0)
	if err == nil {
		err = unix.Fchownat(dir, name, uid, uid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "chown", Path: name, Err: err}, listener.Close())
	}
	return &helloListener{socket: listener}, nil
}

// Hello waits for the agent's hello, once. A guest that says another protocol,
// or anything that is no hello, is an error that wraps guestwire.ErrProtocol.
// The listener is gone after it, whatever came.
func (v *VMM) Hello(ctx context.Context, host string) (guestwire.Hello, error) {
	hello, err := v.takeHello(ctx, host)
	if err != nil {
		return guestwire.Hello{}, v.explain(host, fmt.Errorf("wait for hello: %w", err))
	}
	return hello, nil
}

func (v *VMM) takeHello(ctx context.Context, host string) (guestwire.Hello, error) {
	i := v.instance(host)
	if i == nil {
		return guestwire.Hello{}, fmt.Errorf("%q was not prepared by this process", host)
	}
	i.mu.Lock()
	listener := i.hello
	i.mu.Unlock()
	if i.template != "" {
		return guestwire.Hello{}, fmt.Errorf("%s is restored from a template, whose hello was taken", host)
	}
	if listener == nil {
		return guestwire.Hello{}, errors.New("the listener is gone")
	}
	defer func() {
		listener.close()
		i.mu.Lock()
		i.hello = nil
		i.mu.Unlock()
		v.unlinkHello(host)
	}()
	// A guest on a loaded host gives a connection up after two seconds (vsock's
	// own limit) and tries again: a connection that broke off says nothing.
	for {
		conn, err := v.accept(ctx, host, i, listener)
		if err != nil {
			return guestwire.Hello{}, err
		}
		hello, err := readHello(ctx, conn)
		_ = conn.Close()
		if err == nil {
			i.mu.Lock()
			i.greeted = true
			i.mu.Unlock()
		}
		if err == nil || errors.Is(err, guestwire.ErrProtocol) || ctx.Err() != nil {
			return hello, err
		}
		v.conf.Log.Debug("hello broke off", "host", host, "error", err)
	}
}

// accept waits for a connection, the end of the VMM or that of the context.
func (v *VMM) accept(ctx context.Context, host string, i *instance, listener *helloListener) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = listener.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		// Set before the context is asked, so that its end is not overwritten.
		if err := listener.socket.SetDeadline(time.Now().Add(helloLook)); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		conn, err := listener.socket.AcceptUnix()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if pids, err := v.processes(host); err != nil || len(pids) > 0 || ctx.Err() != nil {
			continue
		}
		i.mu.Lock()
		launched := i.launched
		i.mu.Unlock()
		if launched {
			return nil, errors.New("the VMM ended first")
		}
	}
}

// readHello reads one line, answers it, and waits for the guest to close first:
// a host that closes at once makes Firecracker log a broken pipe.
func readHello(ctx context.Context, conn net.Conn) (guestwire.Hello, error) {
	_ = conn.SetDeadline(time.Now().Add(helloWait))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := readLine(conn, maxHello)
	if errors.Is(err, errTooLong) { // it did not break off: another try would say the same
		return guestwire.Hello{}, fmt.Errorf("read: %w: %w", err, guestwire.ErrProtocol)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return guestwire.Hello{}, fmt.Errorf("read: %w", err)
	}
	var hello guestwire.Hello
	if err := json.Unmarshal([]byte(line), &hello); err != nil {
		return guestwire.Hello{}, fmt.Errorf("no JSON: %w", guestwire.ErrProtocol)
	}
	if hello.Protocol != guestwire.Protocol {
		return guestwire.Hello{}, fmt.Errorf("protocol %d, want %d: %w", hello.Protocol, guestwire.Protocol, guestwire.ErrProtocol)
	}
	if !helloVersion.MatchString(hello.Version) {
		return guestwire.Hello{}, fmt.Errorf("version is malformed: %w", guestwire.ErrProtocol)
	}
	if _, err := io.WriteString(conn, "ok\n"); err != nil {
		return guestwire.Hello{}, fmt.Errorf("answer: %w", err)
	}
	if ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(goodbyeWait))
	}
	_, _ = io.CopyN(io.Discard, conn, maxGoodbye)
	return hello, nil
}

// unlinkHello removes the socket, or whatever the VMM put in its place. A jail
// that is gone has none.
func (v *VMM) unlinkHello(host string) {
	root, err := v.openRoot(host)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	_ = unix.Unlinkat(int(root.Fd()), helloName, 0)
}
