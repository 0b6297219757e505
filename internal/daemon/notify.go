package daemon

import (
	"fmt"
	"net"
	"time"
)

// notifyWait bounds the wait for a service manager that does not read.
const notifyWait = time.Second

// What a service manager wants to know, in the words of sd_notify(3).
const (
	ready    = "READY=1"
	stopping = "STOPPING=1"
)

// reloading carries the time because Type=notify-reload wants it.
func reloading() string {
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", uptime().Microseconds())
}

// notify sends one state to a service manager's socket: a path, or '@' and an
// abstract name. "" is nobody.
func notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(notifyWait)); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}
