package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// dialGuest connects to a port of a guest once, through Firecracker's socket
// (docs/vsock.md there): the request in one write, the answer byte by byte,
// since the stream begins right after it. The connection has no deadline then.
func dialGuest(ctx context.Context, socket string, port uint32) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if deadline, has := ctx.Deadline(); has {
		_ = conn.SetDeadline(deadline)
	}
	if err := askPort(conn, port); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to guest port %d: %w", port, err), conn.Close())
	}
	return conn, conn.SetDeadline(time.Time{})
}

func askPort(conn net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	var answer []byte
	for one := make([]byte, 1); len(answer) < 32; {
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			break
		}
		answer = append(answer, one[0])
	}
	if !strings.HasPrefix(string(answer), "OK ") {
		return fmt.Errorf("answer %.32q", answer)
	}
	return nil
}
