package machine

import (
	"fmt"
	"net"
)

// choosePorts returns count different free ports of 127.0.0.1, keeping each of want that is free. Somebody else may take one
// before QEMU does: the caller tries again.
func choosePorts(want []int, count int) ([]int, error) {
	ports := make([]int, 0, count)
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for i := range count {
		port := 0
		if i < len(want) {
			port = want[i]
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && port != 0 {
			l, err = net.Listen("tcp4", "127.0.0.1:0")
		}
		if err != nil {
			return nil, fmt.Errorf("find free port: %w", err)
		}
		held = append(held, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
