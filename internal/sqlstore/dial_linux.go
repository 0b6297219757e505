package sqlstore

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// silence is how long a server that acknowledges nothing counts as there. Without
// a bound the kernel sends again for a quarter of an hour (tcp(7), tcp_retries2).
const silence = 15 * time.Second

// dial connects to a server whose host may vanish without a word.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2},
		ControlContext: func(_ context.Context, network, _ string, raw syscall.RawConn) (err error) {
			if network == "unix" {
				return nil
			}
			if failed := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			}); failed != nil {
				return failed
			}
			return err
		},
	}
	return d.DialContext(ctx, network, address)
}
