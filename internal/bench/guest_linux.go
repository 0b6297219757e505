package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// FloorPort is the vsock port of the loop in the guest.
const FloorPort = 2000

// What the loop in the guest is asked for, a byte each.
const (
	askTrue   = 1 // it starts "true", waits for its end, and sends a byte back
	askOutput = 2 // it sends outputBytes
	askInput  = 3 // it reads outputBytes that follow, and sends a byte back
)

// outputBytes is how much output one sample is: more than all buffers between a
// program and its reader.
const outputBytes = 8 << 20

// GuestFloor is the floor of an execution and of its output, and runs in a guest
// as root: it does what it is asked for over vsock from the host. It serves one
// connection after the other for ever.
func GuestFloor() error {
	path, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("listen on vsock: %w", err)
	}
	if err := unix.Bind(listener, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: FloorPort}); err != nil {
		return fmt.Errorf("listen on vsock: %w", err)
	}
	if err := unix.Listen(listener, 1); err != nil {
		return fmt.Errorf("listen on vsock: %w", err)
	}
	runtime.LockOSThread()
	for {
		conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		err = floorLoop(conn, path)
		if err := errors.Join(err, unix.Close(conn)); err != nil {
			return err
		}
	}
}

// floorLoop serves one connection until its end.
func floorLoop(conn int, path string) error {
	attributes := &syscall.ProcAttr{Env: []string{}}
	one := make([]byte, 1)
	zeros := make([]byte, 64<<10)
	input := make([]byte, 64<<10)
	for {
		n, err := unix.Read(conn, one)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return nil // the host has gone
		}
		if one[0] == askOutput {
			for left := outputBytes; left > 0; {
				n, err := unix.Write(conn, zeros[:min(left, len(zeros))])
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil {
					return nil
				}
				left -= n
			}
			continue
		}
		if one[0] == askInput {
			for left := outputBytes; left > 0; {
				n, err := unix.Read(conn, input[:min(left, len(input))])
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || n == 0 {
					return nil
				}
				left -= n
			}
			if _, err := unix.Write(conn, one); err != nil {
				return nil
			}
			continue
		}
		pid, err := syscall.ForkExec(path, []string{"true"}, attributes)
		if err != nil {
			return fmt.Errorf("start true: %w", err)
		}
		var status syscall.WaitStatus
		for {
			if _, err = syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		if err != nil || status.ExitStatus() != 0 {
			return errors.Join(err, fmt.Errorf("true ended with %d", status.ExitStatus()))
		}
		if _, err := unix.Write(conn, one); err != nil {
			return nil
		}
	}
}
